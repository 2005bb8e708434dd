"""Read other frameworks' logs into points that `scalerl.scaling` fits. Loads no torch; fits nothing.

>>> from scalerl.importers import read
>>> from scalerl.scaling import Curve, fit
>>> found = read("run.log", devices=8)  # a verl console log          # doctest: +SKIP
>>> print(fit(Curve.from_rows(found.rows)))                            # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerl.importers.points import IMPORTERS, Imported, read, write_points

__all__ = ["IMPORTERS", "Imported", "read", "write_points"]


def __getattr__(name: str) -> Any:
    """Load the importers at their first use: the command line takes its parser from here and must stay instant."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scalerl.importers import points

    return getattr(points, name)
