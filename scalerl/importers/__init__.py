"""Reads the logs of any trainer into points that `scalerl.scaling` fits. Does not import torch.

>>> from scalerl.importers import read
>>> from scalerl.scaling import Curve, fit
>>> imported = read("run.log", devices=8)  # a verl console log          # doctest: +SKIP
>>> print(fit(Curve.from_rows(imported.rows)))                            # doctest: +SKIP
"""

from scalerl.importers.dialects import IMPORTERS
from scalerl.importers.points import Imported, read, write_points

__all__ = ["IMPORTERS", "Imported", "read", "write_points"]
