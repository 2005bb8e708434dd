"""The error for everything that a user can correct, and helpers for its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """An error that the user can correct; its message gives what was got, what is allowed and what to do."""


def short(value: Any, most: int = 80) -> str:
    """Return the repr of a value; a long one is cut and its length is added."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]!r}... ({len(value)} characters)"
    try:
        shown = repr(value)
    except (RecursionError, ValueError):  # too deep, or an integer of over 4,300 digits
        return f"a {type(value).__name__}"
    return shown if len(shown) <= most else f"{shown[:most]}... ({len(shown)} characters)"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ' (did you mean X?)' for the closest allowed name, or an empty string."""
    if len(name) > 200:  # the search takes quadratic time
        return ""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
