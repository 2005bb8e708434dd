"""What records show in a notebook: a table and a picture, made by `scalerl.view`, which is loaded for this only."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

Scale = Literal["log", "linear"]
"""Scale of a compute axis."""


class InNotebooks:
    """A record that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # by name, because the packages below `view` do not import it
        html: str = import_module("scalerl.view.notebook").html_of(self)
        return html


def plot(shown: Any, axes: Any, **options: Any) -> Any:
    """Draw a curve or a fit on matplotlib axes, on new ones if there are none; return the axes."""
    return import_module("scalerl.view.figures").plot(shown, axes, **options)
