"""Reads the logs of any trainer into points that `scalerl.reading.curves` fits. Does not import torch.

>>> from scalerl.reading.logs import read
>>> print(*read("run.log", devices=8).lines())  # a verl console log     # doctest: +SKIP

`scalerl.fit("run.log", devices=8)` reads and fits it.
"""

from scalerl.reading.logs.dialects import IMPORTERS
from scalerl.reading.logs.points import Imported, read, write_points

__all__ = ["IMPORTERS", "Imported", "read", "write_points"]
