"""What all records do: they say what to write in place of attributes that they lack, and show themselves in notebooks.

HTML and pictures are made by `scalerl.reading.pages`, which is loaded for this only.
"""

from __future__ import annotations

from typing import Any, Literal

from scalerl.core import VIEWS
from scalerl.core.calls import missing

Scale = Literal["log", "linear"]
"""Scale of a compute axis."""


PLOT_HABITS = {
    "title": "name={value}",
    "label": "name={value}",
    "axes": "ax=... with axes of matplotlib",
    "figsize": "ax=pyplot.subplots(figsize={value})[1]",
    "logx": "scale='log' or 'linear'",
    "log": "scale='log' or 'linear'",
    "xscale": "scale={value}",
    "save": "plot().figure.savefig({value})",
    "path": "plot().figure.savefig({value})",
}
"""What to write instead of keywords of other packages' `plot`."""


class Guided:
    """A record whose missing attributes say what to write instead."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name.startswith("_"):  # protocols of Python and of notebooks ask for such names
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        from scalerl.reading.curves.habits import HABITS  # which only such an error needs

        habits = {words: hint for parent in kind.__mro__ for words, hint in HABITS.get(parent.__name__, {}).items()}
        names = {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}
        raise missing(f"{kind.__name__} object", name, habits, [word for word in names if word[0] != "_"])


class InNotebooks(Guided):
    """A record that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = VIEWS["html_of"](self)
        return html
