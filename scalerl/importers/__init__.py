"""Reads other frameworks' logs into points that `scalerl.scaling` fits. Does not import torch.

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
    """Import the importers at their first use, so that `import scalerl.importers` is fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scalerl.importers import points

    return getattr(points, name)
