"""The rows of a log by column, numbers and words apart: whatever is read becomes a `Table`.

A log may have a million rows, of which a curve needs three columns, so cells are stored by column and without gaps.

Axes in names: N rows, K cells of one column.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.tables.numbers import EMPTY, number_of

Array = NDArray[np.float64]

MOST_WORDS = 2_000
"""Most distinct words of a column; one with more holds texts, such as completions, and is left empty."""

LONGEST_WORD = 120
"""Characters of the longest cell that is read; longer ones are completions or prompts."""

HUGE = 1e150
"""Number beyond which a cell of a log is no measurement."""

DEEPEST_COLUMNS = 12
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
class Table:
    """A log: N rows in their order, by column.

    Example:
        Table(size=2, cells={"step": (array([0, 1]), array([1., 2.])), "reward": (array([1]), array([0.5]))},
              form="CSV", name="run.csv")
    """

    size: int
    """Number of rows."""
    cells: dict[str, tuple[NDArray[np.intp], Array]]
    """Column -> rows that have a number, ascending, shape (K,), and the numbers, shape (K,), NaN included."""
    words: dict[str, Words] = field(default_factory=dict)
    """Columns of words, such as the name of a run."""
    form: str = ""
    """What the source is: "JSON lines", "CSV", "notebook", "TensorBoard"."""
    name: str = ""
    """Name of the file or run, for messages."""
    notes: tuple[str, ...] = ()
    """What was left out."""
    ended: str = ""
    """How the run ended, if the source says so: "finished", "failed", ..."""
    points: bool = False
    """Whether the columns are those of a curve, so that nothing has to be guessed."""
    grows: bool = False
    """Whether rows are added at the end of the source."""

    @property
    def columns(self) -> list[str]:
        """Names of all columns with a cell."""
        return [*self.cells, *(name for name in self.words if name not in self.cells)]

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
        if name in self.cells:
            index_K, value_K = self.cells[name]
            label_N[index_K] = [f"{value:.0f}" if value.is_integer() else f"{value:g}" for value in value_K.tolist()]
        if name in self.words:
            column = self.words[name]
            label_N[column.index] = np.array(column.words, dtype=object)[column.codes]
        return label_N

    def select(self, keep_N: NDArray[np.bool_]) -> Table:
        """Return the table of some rows."""
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
        return replace(self, size=int(keep_N.sum()), cells=cells, words=words)

    def bounded(self) -> Table:
        """Return the table with NaN for numbers whose sums would overflow."""
        cells = {
            name: (index_K, np.where(np.abs(value_K) > HUGE, np.nan, value_K))
            for name, (index_K, value_K) in self.cells.items()
        }
        return replace(self, cells=cells)

    def without(self, names: Iterable[str]) -> Table:
        """Return the table without some columns."""
        removed = set(names)
        return replace(self, cells={name: cell for name, cell in self.cells.items() if name not in removed})

    def labeled(self, column: str, label_N: NDArray[np.object_]) -> Table:
        """Return the table with another column of words; None where a row has no cell."""
        index_K = np.flatnonzero([label is not None for label in label_N])
        code = {word: number for number, word in enumerate(dict.fromkeys(map(str, label_N[index_K])))}
        codes = np.array([code[str(word)] for word in label_N[index_K]], dtype=np.intp)
        return replace(self, words={**self.words, column: Words(index_K, codes, tuple(code))})


WRAPPERS = ("train", "training", "metrics", "metric", "log", "logs", "data", "main", "global", "trainer", "stats")
"""Prefixes that loggers and wrappers put before the names of a trainer."""


@lru_cache(maxsize=65536)
def key(name: str) -> str:
    """Return a name without the differences between loggers: `critic/score/mean` and `critic_score_mean` are equal."""
    plain = re.sub(r"[\s/._\-:]+", "_", name.strip().lower().replace("@", "_at_")).strip("_")
    return f"_{plain}" if name.startswith("_") else plain  # _step of wandb is no step of the trainer


def joined_tables(tables: Sequence[Table]) -> Table:
    """Return the rows of several tables, one after the other."""
    if len(tables) == 1:
        return tables[0]
    starts = np.cumsum([0, *(table.size for table in tables)])
    cells: dict[str, list[tuple[NDArray[np.intp], Array]]] = {}
    words: dict[str, list[tuple[NDArray[np.intp], Words]]] = {}
    for start, table in zip(starts, tables, strict=False):
        for name, (index_K, value_K) in table.cells.items():
            cells.setdefault(name, []).append((index_K + start, value_K))
        for name, column in table.words.items():
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
    form, name = (", ".join(dict.fromkeys(words)) for words in zip(*((t.form, t.name) for t in tables), strict=True))
    notes = tuple(note for table in tables for note in table.notes)
    return Table(int(starts[-1]), merged, texts, form, name, notes, tables[-1].ended)


FLUSHED = 4_096
"""Rows of one layout that are converted together."""


PLAIN = {float, int}
TEXT_CELLS = {str}


class Builder:
    """Collects rows into a table. Rows with the same columns are converted together, which is ten times as fast."""

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
                elif kinds == TEXT_CELLS:
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
        elif kind is dict and depth < DEEPEST_COLUMNS and name.rpartition("/")[2] != "_wandb":
            prefix = "" if name == "data" else f"{name.removesuffix('/data')}/"
            for inner, cell in value.items():
                self._cell(f"{prefix}{inner}", cell, place, depth + 1)
        elif kind is list and name == "bounds":  # of the metric, in rows that this package wrote
            self.add_text(name, json.dumps(value), place)
        elif kind is not bool and hasattr(kind, "__float__"):  # numpy, Decimal
            with suppress(TypeError, ValueError, OverflowError):  # pandas' missing values
                self._cell(name, float(value), place, depth)

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

    def table(self, **about: Any) -> Table:
        """Return the rows so far; `about` are fields of the table, such as its name."""
        for layout in self._layouts:
            self._flush(layout)
        cells = {}
        for name in sorted(self._numbers, key=self._first):
            index, values = self._numbers[name]
            index_K, value_K = np.array(index, dtype=np.intp), np.array(values, dtype=np.float64)
            if (np.diff(index_K) < 0).any():  # rows of several layouts
                order = np.argsort(index_K, kind="stable")
                index_K, value_K = index_K[order], value_K[order]
            cells[name] = (index_K, value_K)
        words = {}
        for name, column in self._words.items():
            if column is None:
                words[name] = Words(np.zeros(0, np.intp), np.zeros(0, np.intp), ())
            elif len(column[0]):
                places, codes, vocabulary = column
                index_K = np.array(places, dtype=np.intp)
                order = np.argsort(index_K, kind="stable")
                words[name] = Words(index_K[order], np.array(codes, dtype=np.intp)[order], tuple(vocabulary))
        return Table(self.size, cells, words, **about)

    def _first(self, name: str) -> int:
        index = self._numbers[name][0]
        return int(np.frombuffer(index, dtype=np.int64).min()) if index else 0


def table_of(rows: Iterable[Mapping[str, Any]], **about: Any) -> Table:
    """Return the table of rows (dicts), with other fields of it."""
    builder = Builder()
    for row in rows:
        builder.add(row)
    return builder.table(**about)


def table_of_columns(columns: Mapping[str, Sequence[Any]], **about: Any) -> Table:
    """Return the table of columns of equal length."""
    return table_of((dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)), **about)
