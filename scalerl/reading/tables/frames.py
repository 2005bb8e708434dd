"""Reads rows that are in Python already: data frames, columns by name, and lists of dicts."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.reading.tables.errors import CurveError
from scalerl.reading.tables.grids import read_csv
from scalerl.reading.tables.names import are_points
from scalerl.reading.tables.table import Table, table_of, table_of_columns

ALLOWED = (
    "the path of a file, a log or a run, a data frame, rows (a list of dicts), columns by name, or a Curve; of two "
    "arrays write scalerl.fit(compute, metric) or Curve(compute, metric)"
)


def table_from(data: Any, name: str) -> Table:
    """Return the table of rows in Python, as if they were read from a file.

    Args:
        data: A data frame or series of pandas, a frame of polars, whatever has `to_pandas`, columns, or dicts.
        name: Its name for messages.

    Raises:
        CurveError: It is none of these; the message states what to do.
    """
    if hasattr(data, "read"):
        raise CurveError("got an open file; give its path, or a data frame of it")
    if hasattr(data, "to_csv") and hasattr(data, "index"):
        return csv_table(pandas_csv(data), name)
    if hasattr(data, "collect") and hasattr(data, "lazy"):  # a query of polars that has not run yet
        data = data.collect()
    if hasattr(data, "write_csv") and hasattr(data, "columns"):
        return csv_table(data.write_csv(), name)
    if hasattr(data, "to_pandas"):
        return table_from(data.to_pandas(), name)
    if (names := getattr(getattr(data, "dtype", None), "names", None)) is not None:  # a structured array of numpy
        data = {column: data[column] for column in names}
    elif hasattr(data, "columns") and hasattr(data, "__getitem__"):
        data = {column: data[column] for column in data.columns}
    if isinstance(data, Mapping):
        return with_points(table_of_columns(columns_of(data, name), form="columns", name=name))
    if isinstance(data, list | tuple | Iterator) and not hasattr(data, "__array__"):
        rows = list(data)
        if rows and all(isinstance(row, Mapping) for row in rows):
            return with_points(table_of(({str(key): row[key] for key in row} for row in rows), form="rows", name=name))
        data = rows
    raise CurveError(f"got {given_text(data)}; allowed: {ALLOWED}")


def pandas_csv(data: Any) -> str:
    """Return a frame or series of pandas as CSV, with an index that has a name and is no column."""
    if not hasattr(data, "columns"):
        data = data.to_frame("metric" if data.name is None else data.name)
    flat = ["/".join(map(str, column)) if isinstance(column, tuple) else str(column) for column in data.columns]
    indexed = all(level is not None and str(level) not in flat for level in data.index.names)
    return str(data.to_csv(index=indexed, header=flat))


def csv_table(text: str, name: str) -> Table:
    """Return the table of CSV."""
    return read_csv(Path(name), ",", io.StringIO(text, newline="\n"))


def with_points(table: Table) -> Table:
    """Return a table that says whether its columns are those of a curve."""
    return replace(table, points=are_points(table.columns))


def columns_of(data: Mapping[Any, Any], name: str) -> dict[str, Sequence[Any]]:
    """Return columns by name, also of `to_dict` of pandas; one number for each is a single row.

    Raises:
        CurveError: They differ in length.
    """
    data = {name: [*cells.values()] if isinstance(cells, Mapping) else cells for name, cells in data.items()}
    columns: dict[str, Sequence[Any]] = {
        str(column): list(cells) if isinstance(cells, Iterable) and not isinstance(cells, str | bytes) else [cells]
        for column, cells in data.items()
    }
    lengths = {column: len(cells) for column, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        raise CurveError(f"{name} must have the same length; got {lengths}")
    return columns


def given_text(data: Any) -> str:
    """Return what was given instead of rows, with the call for objects that have them."""
    kind = f"a {type(data).__name__}"
    if hasattr(data, "scan_history"):
        path = getattr(data, "path", None)
        run = "/".join(path) if isinstance(path, list) else "entity/project/run"
        return f"{kind} of wandb; write 'wandb:{run}' or run.history() in its place"
    if hasattr(getattr(data, "state", None), "log_history"):
        return f"{kind}; write trainer.state.log_history in its place"
    if hasattr(data, "__array__") or (isinstance(data, list | tuple) and data and isinstance(data[0], int | float)):
        return f"{kind} of numbers alone, without their compute"
    return f"an empty {type(data).__name__}" if isinstance(data, list | tuple) and not data else kind
