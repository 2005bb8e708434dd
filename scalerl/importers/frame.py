"""The rows of a log by column, numbers and words apart, and the conversion of text to numbers.

A log may have a million rows, of which a curve needs three columns, so cells are stored by column and without gaps.

Axes in names: N rows, K cells of one column.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_WORDS = 2_000
"""Most distinct words of a column; one with more holds texts, such as completions, and is left out."""

LONGEST_WORD = 120
"""Characters of the longest cell that is read; longer ones are completions or prompts."""

DEEPEST = 12
"""Depth of nesting down to which objects in a row become columns."""


@dataclass(frozen=True, eq=False)
class Words:
    """A column of words: the code of each cell, and the words by code.

    Example:
        Words(index=array([0, 1]), codes=array([0, 1]), words=("base", "long"))
    """

    index: NDArray[np.intp]
    codes: NDArray[np.intp]
    words: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Frame:
    """A log: N rows in their order, by column.

    Example:
        Frame(size=2, cells={"step": (array([0, 1]), array([1., 2.])), "reward": (array([1]), array([0.5]))}, words={})
    """

    size: int
    """Number of rows."""
    cells: dict[str, tuple[NDArray[np.intp], Array]]
    """Column -> rows that have a cell, ascending, shape (K,), and its numbers, shape (K,), NaN included."""
    words: dict[str, Words] = field(default_factory=dict)
    """Columns of words, such as the name of a run."""

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns with at least one finite number, in their order in the log."""
        return [name for name, (_, value_K) in self.cells.items() if np.isfinite(value_K).any()]

    @cached_property
    def _by_key(self) -> dict[str, str]:
        keys: dict[str, str] = {}
        for name in self.names:
            keys.setdefault(key(name), name)
        return keys

    def find(self, name: str) -> str | None:
        """Return the column of a name: in its own spelling, in that of another logger, or within a wrapper's prefix."""
        if name in self.cells and np.isfinite(self.cells[name][1]).any():
            return name
        name_key = key(name)
        if (same := self._by_key.get(name_key)) is not None:
            return same
        prefixed = [f"{prefix}_{name_key}" for prefix in WRAPPERS]
        wrapped = [self._by_key[name] for name in prefixed if name in self._by_key]
        return wrapped[0] if len(wrapped) == 1 else None

    def first(self, names: Iterable[str]) -> str | None:
        """Return the column of the first name that the log has."""
        return next((column for name in names if (column := self.find(name)) is not None), None)

    def column(self, name: str) -> Array:
        """Return a column, shape (N,); NaN where a row has no cell."""
        value_N = np.full(self.size, np.nan)
        if name in self.cells:
            index_K, value_K = self.cells[name]
            value_N[index_K] = value_K
        return value_N

    def count(self, name: str) -> int:
        """Return the number of finite cells of a column."""
        return int(np.isfinite(self.cells[name][1]).sum()) if name in self.cells else 0

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return the rows with a finite cell in a column, shape (N,)."""
        return np.isfinite(self.column(name))

    def labels(self, name: str) -> NDArray[np.object_]:
        """Return the words of a column, or its numbers as text, shape (N,); None where a row has no cell."""
        label_N = np.full(self.size, None, dtype=object)
        if name in self.words:
            column = self.words[name]
            label_N[column.index] = np.array(column.words, dtype=object)[column.codes]
        elif name in self.cells:
            index_K, value_K = self.cells[name]
            label_N[index_K] = [f"{value:g}" for value in value_K]
        return label_N

    def select(self, keep_N: NDArray[np.bool_]) -> Frame:
        """Return the frame of some rows."""
        place_N = np.cumsum(keep_N) - 1
        cells = {}
        for name, (index_K, value_K) in self.cells.items():
            keep_K = keep_N[index_K]
            if keep_K.any():
                cells[name] = (place_N[index_K[keep_K]], value_K[keep_K])
        words = {}
        for name, column in self.words.items():
            keep_K = keep_N[column.index]
            if keep_K.any():
                words[name] = Words(place_N[column.index[keep_K]], column.codes[keep_K], column.words)
        return Frame(int(keep_N.sum()), cells, words)

    def without(self, names: Iterable[str]) -> Frame:
        """Return the frame without some columns."""
        removed = set(names)
        return Frame(self.size, {name: cell for name, cell in self.cells.items() if name not in removed}, self.words)


WRAPPERS = ("train", "training", "metrics", "metric", "log", "logs", "data", "main", "global", "trainer", "stats")
"""Prefixes that loggers and wrappers put before the names of a trainer."""


@lru_cache(maxsize=65536)
def key(name: str) -> str:
    """Return a name without the differences between loggers: `critic/score/mean` and `critic_score_mean` are equal."""
    plain = re.sub(r"[\s/._\-:]+", "_", name.strip().lower().replace("@", "_at_")).strip("_")
    return f"_{plain}" if name.startswith("_") else plain  # _step of wandb is no step of the trainer


def joined(frames: Sequence[Frame]) -> Frame:
    """Return the rows of several frames, one after the other."""
    if len(frames) == 1:
        return frames[0]
    starts = np.cumsum([0, *(frame.size for frame in frames)])
    cells: dict[str, list[tuple[NDArray[np.intp], Array]]] = {}
    words: dict[str, list[tuple[NDArray[np.intp], Words]]] = {}
    for start, frame in zip(starts, frames, strict=False):
        for name, (index_K, value_K) in frame.cells.items():
            cells.setdefault(name, []).append((index_K + start, value_K))
        for name, column in frame.words.items():
            words.setdefault(name, []).append((column.index + start, column))
    merged = {
        name: (np.concatenate([i for i, _ in parts]), np.concatenate([v for _, v in parts]))
        for name, parts in cells.items()
    }
    texts = {}
    for name, parts in words.items():
        code = {word: n for n, word in enumerate(dict.fromkeys(w for _, column in parts for w in column.words))}
        codes = [np.array([code[w] for w in column.words], dtype=np.intp)[column.codes] for _, column in parts]
        texts[name] = Words(np.concatenate([i for i, _ in parts]), np.concatenate(codes), tuple(code))
    return Frame(int(starts[-1]), merged, texts)


FLUSHED = 4_096
"""Rows of one layout that are converted together."""


PLAIN = {float, int}
TEXT = {str}


class Builder:
    """Collects rows into a frame. Rows with the same columns are converted together, which is ten times as fast."""

    def __init__(self) -> None:
        self.size = 0
        self._layouts: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        self._numbers: dict[str, tuple[array[int], array[float]]] = {}
        self._words: dict[str, tuple[array[int], array[int], dict[str, int]] | None] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row; objects in it become columns `outer/inner`, and the content of `data` (verl) moves up."""
        layout = tuple(row)
        rows = self._layouts.get(layout)
        if rows is None:
            rows = self._layouts[layout] = []
        rows.append((self.size, *row.values()))
        self.size += 1
        if len(rows) == FLUSHED:
            self._flush(layout)

    def _flush(self, layout: tuple[str, ...]) -> None:
        rows, self._layouts[layout] = self._layouts[layout], []
        if not rows:
            return
        places, *columns = zip(*rows, strict=True)
        for name, cells in zip(layout, columns, strict=True):
            kinds = set(map(type, cells))
            values: Array | None = None
            try:
                if kinds <= PLAIN:
                    values = np.array(cells, dtype=np.float64)
                elif kinds == TEXT:
                    values = np.array(list(map(float, cells)))
            except (ValueError, OverflowError):
                values = None
            if values is not None:
                index, numbers = self._column(name)
                index.frombytes(np.array(places, dtype=np.int64).tobytes())
                numbers.frombytes(values.tobytes())
            else:
                for place, cell in zip(places, cells, strict=True):
                    self._cell(name, cell, place, 0)

    def _column(self, name: str) -> tuple[array[int], array[float]]:
        column = self._numbers.get(name)
        if column is None:
            column = self._numbers[name] = (array("q"), array("d"))
        return column

    def _cell(self, name: str, value: Any, place: int, depth: int) -> None:
        kind = type(value)
        if kind is float or kind is int:
            index, numbers = self._column(name)
            try:
                numbers.append(value)
            except OverflowError:  # an integer of over 308 digits
                return
            index.append(place)
        elif kind is str:
            self.add_text(name, value, place)
        elif kind is dict and depth < DEEPEST and name.rpartition("/")[2] != "_wandb":
            prefix = "" if name == "data" else f"{name.removesuffix('/data')}/"
            for inner, cell in value.items():
                self._cell(f"{prefix}{inner}", cell, place, depth + 1)

    def add_text(self, name: str, text: str, place: int) -> None:
        """Add a cell of text to a row: its number, or a word."""
        if len(text) > LONGEST_WORD:
            return
        number = number_of(text)
        if number is not None:
            index, values = self._column(name)
            index.append(place)
            values.append(number)
        elif text := text.strip():
            column = self._words.setdefault(name, (array("q"), array("q"), {}))
            if column is None or text.lower() in EMPTY:
                return
            places, codes, vocabulary = column
            places.append(place)
            codes.append(vocabulary.setdefault(text, len(vocabulary)))
            if len(vocabulary) > MOST_WORDS:
                self._words[name] = None

    def add_columns(self, columns: Mapping[str, tuple[NDArray[np.intp], Array]], rows: int) -> None:
        """Add rows by column; `columns` has the places within these rows, and the numbers."""
        for name, (index_K, value_K) in columns.items():
            index, values = self._column(name)
            index.frombytes(np.ascontiguousarray(index_K + self.size, dtype=np.int64).tobytes())
            values.frombytes(np.ascontiguousarray(value_K, dtype=np.float64).tobytes())
        self.size += rows

    def frame(self) -> Frame:
        """Return the rows so far."""
        for layout in self._layouts:
            self._flush(layout)
        cells = {}
        for name in sorted(self._numbers, key=self._first):
            index, values = self._numbers[name]
            index_K, value_K = np.array(index, dtype=np.intp), np.array(values, dtype=np.float64)
            if (np.diff(index_K) < 0).any():  # rows of several layouts
                order = np.argsort(index_K, kind="stable")
                index_K, value_K = index_K[order], value_K[order]
            value_K[np.abs(value_K) > 1e300] = np.nan
            cells[name] = (index_K, value_K)
        words = {}
        for name, column in self._words.items():
            if column is not None and len(column[0]):
                places, codes, vocabulary = column
                index_K = np.array(places, dtype=np.intp)
                order = np.argsort(index_K, kind="stable")
                words[name] = Words(index_K[order], np.array(codes, dtype=np.intp)[order], tuple(vocabulary))
        return Frame(self.size, cells, words)

    def _first(self, name: str) -> int:
        index = self._numbers[name][0]
        return int(np.frombuffer(index, dtype=np.int64).min()) if index else 0


def frame_of(rows: Iterable[Mapping[str, Any]]) -> Frame:
    """Return the frame of rows (dicts)."""
    builder = Builder()
    for row in rows:
        builder.add(row)
    return builder.frame()


# ------------------------------------------------------------------------------------------------------ text to numbers

EMPTY = frozenset(("", "null", "none", "n/a", "na", "-", "--", "no log", "nil"))
"""Texts of an empty cell. (A notebook of transformers prints `No Log`.)"""

PERCENT = re.compile(r"([-+]?\d+(?:[.,]\d+)?)\s*%")
UNIT = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(ms|s|sec|secs|seconds|m|min|h)")
SECONDS_PER_UNIT = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
CLOCK = re.compile(r"(?:(\d+) days?, )?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)|(\d+):([0-5]\d)")
"""`0:12:01`, `1 day, 2:03:04` and `12:01`."""
SPOKEN = re.compile(r"(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+(?:\.\d+)?)s")
"""`1d 2h 3m 4s`, as ms-swift prints times."""
OF = re.compile(r"(\d+)\s*/\s*\d+")
"""`12/100`: a step and their number."""
GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
"""`1,000`."""
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
WRAPPED = re.compile(
    r"(?:(?:np|numpy|torch|jnp)\.)?(?:float\d*|int\d*|tensor|array|Tensor)\(\s*([^(),]+?)\s*(?:,[^()]*)?\)"
)
"""numpy 2 prints `np.float64(0.5)`, torch `tensor(0.5)`."""
DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def number_of(text: str) -> float | None:
    """Return the number of a cell, or None: also of a percentage, a time, a date (seconds since 1970), `3/100`.

    Examples: "0.5" is 0.5, "57.9%" 0.579, "1,000" 1000, "0,5" 0.5, "1m 2s" 62, "0:01:02" 62, "44.7s" 44.7.
    """
    try:
        return float(text)
    except ValueError:
        pass
    text = text.strip()
    if not text or not (text[0].isdigit() or text[0] in "+-.," or text[-1] == ")"):
        return None
    if match := PERCENT.fullmatch(text):
        return float(match[1].replace(",", ".")) / 100
    if match := WRAPPED.fullmatch(text):
        return number_of(match[1])
    if GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if DECIMAL_COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    return time_of(text)


def time_of(text: str) -> float | None:
    """Return the seconds of a time or date, or the first number of `3/100`; None if a text is none of these."""
    if match := UNIT.fullmatch(text):
        return float(match[1]) * SECONDS_PER_UNIT[match[2]]
    if match := CLOCK.fullmatch(text):
        days, hours, minutes, seconds, only_minutes, only_seconds = match.groups()
        if only_minutes:
            return float(only_minutes) * 60 + float(only_seconds)
        return float(days or 0) * 86400 + float(hours) * 3600 + float(minutes) * 60 + float(seconds)
    if match := SPOKEN.fullmatch(text):
        parts = [float(part or 0) for part in match.groups()]
        return math.fsum(part * size for part, size in zip(parts, (86400, 3600, 60, 1), strict=True))
    if match := OF.fullmatch(text):
        return float(match[1])
    if DATE.match(text):
        try:
            return datetime.fromisoformat(text.replace(",", ".")).timestamp()
        except (ValueError, OverflowError):
            return None
    return None
