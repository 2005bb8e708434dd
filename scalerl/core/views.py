"""What `scalerl.view` does for records of packages that do not import it; the package's face registers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VIEWS: dict[str, Callable[..., Any]] = {}
"""Functions by name: `html_of` of a record, `plot` of a curve or a fit, `curve_from` a path, frame or rows."""
