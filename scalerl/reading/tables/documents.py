"""Reads JSON documents into tables: trainer_state.json, histories, tables by column, notebooks."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from scalerl.reading.tables.errors import CurveError, TooEarly
from scalerl.reading.tables.grids import html_tables, labeled, markdown_tables
from scalerl.reading.tables.lines import Console
from scalerl.reading.tables.names import EVALUATION_WORD, TRAINING_WORD, is_score
from scalerl.reading.tables.table import Table, joined_tables, table_of, table_of_columns


def read_document(text: str, name: str) -> Table | None:
    """Return the rows of one JSON document, or of several without line ends between them; None if it is no JSON.

    Raises:
        CurveError: The document is cut off, or has no rows.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise CurveError(f"{name} is nested too deeply; give a log with a row for each step") from None
    except ValueError as error:
        rows, whole = objects_of(text)
        if len(rows) > 1 and whole:
            return table_of(rows, form="JSON objects")
        if (table := titled_table(text)) is not None:
            return table
        if rows:  # settings before the lines of a log
            return None
        if text.lstrip().split("\n", 1)[0].strip() in ("{", "["):
            raise TooEarly(
                f"{name} is incomplete or damaged JSON ({error}); an earlier checkpoint has a complete file"
            ) from error
        return None
    table = document_table(document, name)
    if table is None and isinstance(document, dict) and "\n" in text.strip():
        has = ", ".join([*map(str, document)][:8]) or "nothing"
        raise CurveError(
            f"{name} is a JSON document without rows; it has {has}; give a list with one object for each step, or "
            "lists of values by name"
        )
    return table


def titled_table(text: str) -> Table | None:
    """Return the rows of JSON values of several lines between other lines, each with the line before as its title."""
    decoder, found, title, place = json.JSONDecoder(), dict[str, Any](), "", 0
    while place < len(text):
        end = text.find("\n", place) + 1 or len(text)
        line = text[place:end].strip()
        if line[:1] in ("[", "{"):
            with suppress(ValueError, RecursionError):
                value, end = decoder.raw_decode(text, text.index(line[0], place))
                found[title or f"part {len(found) + 1}"] = value
        elif line:
            title = line.strip("=-#*: ")
        place = end
    lists = {title: value for title, value in found.items() if isinstance(value, list | dict) and len(value) > 1}
    table = mapping_table(lists, "") if lists else None
    return table if table is not None and scores_of(table) else None


def objects_of(text: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the JSON objects at the start of a text, and whether it has nothing else."""
    decoder, place, rows = json.JSONDecoder(), 0, list[dict[str, Any]]()
    while place < len(text):
        if text[place].isspace() or text[place] == ",":
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return rows, False
        if isinstance(value, dict):
            rows.append(value)
    return rows, True


def document_table(document: Any, name: str) -> Table | None:
    """Return the rows of a parsed document.

    Raises:
        CurveError: The document has no rows.
    """
    if isinstance(document, dict) and isinstance(document.get("cells"), list) and "nbformat" in document:
        return notebook_table(document, name)
    if isinstance(document, list):
        return list_table(document, name)
    if not isinstance(document, dict):
        return None
    if isinstance(history := document.get("log_history"), list):
        return table_of((row for row in history if isinstance(row, dict)), form="trainer_state.json")
    return mapping_table(document, name)


def list_table(rows: Sequence[Any], name: str) -> Table:
    """Return the rows of a list: of objects, or of `[wall time, step, value]` (TensorBoard's download)."""
    if rows and all(isinstance(row, list) and len(row) == 3 for row in rows):
        return table_of(
            ({"Wall time": r[0], "Step": r[1], "Value": r[2]} for r in rows), form="a scalar of TensorBoard"
        )
    return table_of((row for row in rows if isinstance(row, dict)), form="a JSON list")


def mapping_table(document: Mapping[str, Any], name: str) -> Table | None:
    """Return the rows of an object: lists of rows, or a table by column."""
    lists = {
        key: [row for row in value if isinstance(row, dict)]
        for key, value in document.items()
        if isinstance(value, list) and sum(isinstance(row, dict) for row in value) > 1
    }
    if lists:
        phases = {key: phase for key in lists if (phase := phase_of(key))}
        if len(phases) > 1:  # such as {"train": [...], "eval": [...]}
            parts = [phase_table(table_of(lists[key]), phase) for key, phase in phases.items()]
        else:
            best = max(lists, key=lambda key: len(lists[key]))
            like = [key for key in lists if len(lists[key]) > 0.5 * len(lists[best])]
            tables = {key: table_of(lists[key]) for key in like}
            parts = [labeled(table, key) if len(like) > 1 else table for key, table in tables.items()]
        return replace(joined_tables(parts), form="a JSON document")
    names, data = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(data, list):
        rows = (dict(zip(map(str, names), row, strict=False)) for row in data if isinstance(row, list))
        return table_of(rows, form="a JSON table")
    columns = {key: value for key, value in document.items() if isinstance(value, list) and len(value) > 1}
    if columns:
        length = max(map(len, columns.values()))
        full = {key: value for key, value in columns.items() if len(value) == length}
        return table_of_columns(full, form="JSON columns")
    nested = {key: value for key, value in document.items() if isinstance(value, dict)}
    if nested and all(str(key).lstrip("-").isdecimal() for key in nested):  # rows by step
        return table_of(({"step": float(key), **row} for key, row in nested.items()), form="JSON rows by step")
    by_row: dict[str, dict[str, Any]] = {}
    for column, cells in nested.items():
        if cells and all(str(place).isdecimal() for place in cells):  # pandas: {column: {row: value}}
            for place, value in cells.items():
                by_row.setdefault(place, {})[column] = value
    if by_row:
        return table_of(({"step": float(place), **row} for place, row in by_row.items()), form="a table of pandas")
    if len(document) > 1 and all(str(step).isdecimal() for step in document):  # {step: value}
        column = name.partition(".")[0] or "value"
        return table_of(({"step": float(step), column: value} for step, value in document.items()), form="JSON by step")
    inner = {key: table for key, value in nested.items() if (table := mapping_table(value, name)) is not None}
    inner = {key: table for key, table in inner.items() if scores_of(table)} or inner
    if not inner:
        return None
    parts = [
        phase_table(table, phase) if (phase := phase_of(key)) else labeled(table, key) if len(inner) > 1 else table
        for key, table in inner.items()
    ]
    return replace(joined_tables(parts), form="a JSON document")


def phase_of(word: str) -> str:
    """Return "eval" or "train" for a word that says which rows these are, or ""."""
    word = re.split(r"[./]", word)[-1]  # `history.eval`
    if EVALUATION_WORD.fullmatch(word):
        return "eval"
    return "train" if TRAINING_WORD.fullmatch(word.lower()) else ""


def phase_table(table: Table, phase: str) -> Table:
    """Return a table whose metrics have the name of their phase, `eval/accuracy`; steps and times keep theirs."""
    cells = {
        (f"{phase}/{name}" if is_score(name) and not phase_named(name) else name): cell
        for name, cell in table.cells.items()
    }
    return replace(table, cells=cells)


def phase_named(name: str) -> bool:
    """Return whether a name has the name of a phase already."""
    return bool(EVALUATION_WORD.search(name) or TRAINING_WORD.search(name.lower()))


def notebook_table(document: Mapping[str, Any], name: str) -> Table:
    """Return the rows in the outputs of a notebook: tables of the progress callback, and printed dictionaries.

    Raises:
        CurveError: No output has numbers.
    """
    tables: list[tuple[str, Table]] = []
    for number, cell in enumerate(document["cells"], 1):
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        if isinstance(outputs, list):
            tables += [(f"cell {number}", table) for table in output_tables(outputs)]
        elif isinstance(cell, dict) and cell.get("cell_type") == "markdown":
            tables += [(f"cell {number}", table) for table in markdown_tables(as_text(cell.get("source")))]
    if not tables:
        raise TooEarly(
            f"{name} is a notebook without numbers in its outputs; run its cells and save it, or give the trainer's "
            "own log (trainer_state.json)"
        )
    most = max(scores_of(table) for _, table in tables)
    notes: tuple[str, ...] = ()
    if most >= LEAST_SCORES:  # other cells try a reward, or print settings
        scored = [(cell, table) for cell, table in tables if scores_of(table) >= LEAST_SCORES]
        if len(scored) < len(tables):
            notes = (f"read {', '.join(cell for cell, _ in scored[:4])}: other cells print no score for several steps",)
        tables = scored
    parts = [labeled(table, cell) if len(tables) > 1 else table for cell, table in tables]
    return replace(joined_tables(parts), form="notebook", notes=notes)


LEAST_SCORES = 3
"""Values of a score of the shortest output of a cell that is the log of a run, if any cell has as many."""


def scores_of(table: Table) -> int:
    """Return the largest number of values of a score."""
    return max((table.count(name) for name in table.names if is_score(name)), default=0)


def output_tables(outputs: Sequence[Any]) -> list[Table]:
    """Return the tables in the outputs of a cell, or else the rows that it printed."""
    tables, printed = list[Table](), list[str]()
    for output in outputs:
        if not isinstance(output, dict):
            continue
        data = output.get("data")
        if isinstance(data, dict) and "text/html" in data:
            tables += html_tables(as_text(data["text/html"]))
        elif isinstance(data, dict) and (text := as_text(data.get("text/plain")).strip())[:1] in ("[", "{"):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                value = ast.literal_eval(text)  # the value of the last line of a cell
                if isinstance(value, list | dict) and (table := document_table(value, "value")) is not None:
                    tables.append(table)
        elif output.get("output_type") == "stream":
            printed += [line + "\n" for line in as_text(output.get("text")).split("\n")]
    full = [table for table in tables if table.size > 1]
    return full or [table for table in [Console().read(printed)] if table.size > 1]


def as_text(value: Any) -> str:
    """Return the text of a notebook's field, which is a text or a list of lines."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
