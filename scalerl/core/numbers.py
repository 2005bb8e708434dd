"""Numbers in rows from elsewhere."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> float:
    """Return a JSON value as a number; NaN if it is not a number."""
    return float(value) if isinstance(value, int | float) else math.nan
