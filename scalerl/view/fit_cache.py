"""Forecasts of runs that have ended, kept between commands: `ls` and `watch` fit a finished run once.

The key has everything that a forecast depends on, so a kept one is never out of date. The file is in the user's cache
directory; without it, or if it cannot be used, runs are fitted again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scalerl.core.files import cache_root
from scalerl.types import EvalPoint

MOST = 100_000
"""Largest number of forecasts in the file, the oldest of which are removed."""


class FitCache:
    """The forecasts in the cache directory."""

    def __init__(self) -> None:
        """Open the file, or go on without it."""
        self._file: Any = None
        try:
            import sqlite3

            root = cache_root()
            root.mkdir(parents=True, exist_ok=True)
            # the watcher opens it in one thread and uses it in the one that fits
            file = sqlite3.connect(root / "fits.sqlite", timeout=1.0, check_same_thread=False, isolation_level=None)
            file.execute("CREATE TABLE IF NOT EXISTS fits (key TEXT PRIMARY KEY, content TEXT)")
            file.execute("DELETE FROM fits WHERE rowid <= (SELECT max(rowid) FROM fits) - ?", (MOST,))
            self._file = file
        except (ImportError, OSError, RuntimeError, _errors()):  # RuntimeError: no home directory
            pass

    def get(self, key: str) -> dict[str, Any] | None:
        """Return a kept forecast; None if there is none."""
        try:
            row = (
                self._file.execute("SELECT content FROM fits WHERE key = ?", (key,)).fetchone() if self._file else None
            )
            values = json.loads(row[0]) if row else None
        except (ValueError, _errors()):
            return None
        return values if isinstance(values, dict) else None

    def put(self, key: str, values: dict[str, Any]) -> None:
        """Keep a forecast, if the file can be written."""
        try:
            if self._file:
                self._file.execute("INSERT OR REPLACE INTO fits VALUES (?, ?)", (key, json.dumps(values)))
        except _errors():
            self._file = None


def key_of(points: Sequence[EvalPoint], axis: str, terms: Sequence[float | None]) -> str:
    """Return a digest of everything that the forecast of a task depends on.

    Args:
        points: Evaluations of the task.
        axis: Compute axis.
        terms: Smallest gain and price of a run.
    """
    rows = [(getattr(p, axis), p.pass_rate, p.stderr, p.device_hours, p.prompts, p.task) for p in points]
    return hashlib.blake2b(repr((_code(), axis, tuple(terms), rows)).encode(), digest_size=16).hexdigest()


@cache
def _code() -> tuple[Any, ...]:
    """Return what changes if the code of the forecast does."""
    package = Path(__file__).parents[1]
    files = sorted([*(package / "scaling").glob("*.py"), *(package / "view").glob("*.py")])
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@cache
def _errors() -> type[Exception]:
    """Return the error of the database, whose package a small installation may lack."""
    try:
        from sqlite3 import Error
    except ImportError:
        return OSError
    return Error
