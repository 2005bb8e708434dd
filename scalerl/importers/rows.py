"""One row of a log: a dict from column to cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]
"""Column -> number (or text, in `TEXT_COLUMNS`); a cell that is empty or not a number is absent."""

RUN_COLUMNS = ("run", "run_name", "run_id")
"""Columns that distinguish several runs in one file."""

TEXT_COLUMNS = frozenset({"task", *RUN_COLUMNS})


def flat(row: Mapping[str, Any], prefix: str = "") -> Row:
    """Return a flat row: nested objects become `outer/inner`; the content of `data` (verl) moves to the top level."""
    cells: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            cells.update(flat(value, prefix if name == "data" else f"{prefix}{name}/"))
        elif (cell := as_cell(name, value)) is not None:
            cells[prefix + name] = cell
    return cells


def as_cell(name: str, value: Any) -> float | str | None:
    """Return a number (NaN included), a text of `TEXT_COLUMNS`, or None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 or value != value else None
    if not isinstance(value, str):
        return None
    if name in TEXT_COLUMNS:
        return value.strip() or None
    try:
        return float(value) if len(value) < 40 else None
    except ValueError:
        return None
