"""Reads JSON documents into frames: trainer_state.json, histories, tables by column, notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalerl.importers.consoles import Console
from scalerl.importers.errors import TooEarly
from scalerl.importers.frame import Frame, frame_of, joined
from scalerl.importers.names import EVALUATION_WORD, TRAINING_WORD
from scalerl.importers.tables import html_tables, labeled, markdown_tables
from scalerl.scaling.readers import CurveError

Document = tuple[Frame, str]
"""The rows of a document, and its form in words."""


def read_document(text: str, name: str) -> Document | None:
    """Return the rows of one JSON document, or of several without line ends between them; None if it is no JSON.

    Raises:
        CurveError: The document is cut off, or has no rows.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise CurveError(f"{name} is nested too deeply; give a log with a row for each step") from None
    except ValueError as error:
        rows = list(objects_of(text))
        if len(rows) > 1:
            return frame_of(rows), "JSON objects"
        if text.lstrip().split("\n", 1)[0].strip() in ("{", "["):
            raise TooEarly(
                f"{name} is incomplete or damaged JSON ({error}); an earlier checkpoint has a complete file"
            ) from error
        return None
    return document_frame(document, name)


def objects_of(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects at the start of a text, with or without line ends between them."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace() or text[place] == ",":
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield value


def document_frame(document: Any, name: str) -> Document | None:
    """Return the rows of a parsed document.

    Raises:
        CurveError: The document has no rows.
    """
    if isinstance(document, dict) and isinstance(document.get("cells"), list) and "nbformat" in document:
        return notebook_frame(document, name)
    if isinstance(document, list):
        return list_frame(document, name)
    if not isinstance(document, dict):
        return None
    if isinstance(history := document.get("log_history"), list):
        return frame_of(row for row in history if isinstance(row, dict)), "trainer_state.json"
    return mapping_frame(document, name)


def list_frame(rows: Sequence[Any], name: str) -> Document:
    """Return the rows of a list: of objects, or of `[wall time, step, value]` (TensorBoard's download)."""
    if rows and all(isinstance(row, list) and len(row) == 3 for row in rows):
        return frame_of({"Wall time": r[0], "Step": r[1], "Value": r[2]} for r in rows), "a scalar of TensorBoard"
    return frame_of(row for row in rows if isinstance(row, dict)), "a JSON list"


def mapping_frame(document: Mapping[str, Any], name: str) -> Document | None:
    """Return the rows of an object: lists of rows, or a table by column."""
    lists = {
        key: [row for row in value if isinstance(row, dict)]
        for key, value in document.items()
        if isinstance(value, list) and sum(isinstance(row, dict) for row in value) > 1
    }
    if lists:
        phases = {key: phase for key in lists if (phase := phase_of(key))}
        if len(phases) > 1:  # such as {"train": [...], "eval": [...]}
            return joined(
                [phase_frame(frame_of(lists[key]), phase) for key, phase in phases.items()]
            ), "a JSON document"
        best = max(lists, key=lambda key: len(lists[key]))
        like = [key for key in lists if len(lists[key]) > 0.5 * len(lists[best])]
        if len(like) > 1:
            return joined([labeled(frame_of(lists[key]), key) for key in like]), "a JSON document"
        return frame_of(lists[best]), "a JSON document"
    names, data = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(data, list):
        rows = (dict(zip(map(str, names), row, strict=False)) for row in data if isinstance(row, list))
        return frame_of(rows), "a JSON table"
    columns = {key: value for key, value in document.items() if isinstance(value, list) and len(value) > 1}
    if columns:
        length = max(map(len, columns.values()))
        full = {key: value for key, value in columns.items() if len(value) == length}
        return frame_of(dict(zip(full, row, strict=True)) for row in zip(*full.values(), strict=True)), "JSON columns"
    nested = {key: value for key, value in document.items() if isinstance(value, dict)}
    if nested and all(str(key).lstrip("-").isdecimal() for key in nested):  # rows by step
        return frame_of({"step": float(key), **row} for key, row in nested.items()), "JSON rows by step"
    by_row: dict[str, dict[str, Any]] = {}
    for column, cells in nested.items():
        if cells and all(str(place).isdecimal() for place in cells):  # pandas: {column: {row: value}}
            for place, value in cells.items():
                by_row.setdefault(place, {})[column] = value
    if by_row:
        return frame_of({"step": float(place), **row} for place, row in by_row.items()), "a table of pandas"
    return None


def phase_of(word: str) -> str:
    """Return "eval" or "train" for a word that says which rows these are, or ""."""
    if EVALUATION_WORD.fullmatch(word):
        return "eval"
    return "train" if TRAINING_WORD.fullmatch(word.lower()) else ""


def phase_frame(frame: Frame, phase: str) -> Frame:
    """Return a frame whose metrics have the name of their phase, `eval/accuracy`; steps and times keep theirs."""
    from scalerl.importers.names import is_score

    cells = {
        (f"{phase}/{name}" if is_score(name) and not phase_named(name) else name): cell
        for name, cell in frame.cells.items()
    }
    return Frame(frame.size, cells, frame.words)


def phase_named(name: str) -> bool:
    """Return whether a name has the name of a phase already."""
    return bool(EVALUATION_WORD.search(name) or TRAINING_WORD.search(name.lower()))


def notebook_frame(document: Mapping[str, Any], name: str) -> Document:
    """Return the rows in the outputs of a notebook: tables of the progress callback, and printed dictionaries.

    Raises:
        CurveError: No output has numbers.
    """
    frames: list[tuple[str, Frame]] = []
    for number, cell in enumerate(document["cells"], 1):
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        if isinstance(outputs, list):
            frames += [(f"cell {number}", frame) for frame in cell_frames(outputs)]
        elif isinstance(cell, dict) and cell.get("cell_type") == "markdown":
            frames += [(f"cell {number}", frame) for frame in markdown_tables(as_text(cell.get("source")))]
    if not frames:
        raise TooEarly(
            f"{name} is a notebook without numbers in its outputs; run its cells and save it, or give the trainer's "
            "own log (trainer_state.json)"
        )
    if len(frames) == 1:
        return frames[0][1], "notebook"
    return joined([labeled(frame, cell) for cell, frame in frames]), "notebook"


def cell_frames(outputs: Sequence[Any]) -> list[Frame]:
    """Return the tables in the outputs of a cell, or else the rows that it printed."""
    tables: list[Frame] = []
    printed = Console()
    for output in outputs:
        if not isinstance(output, dict):
            continue
        data = output.get("data")
        if isinstance(data, dict) and "text/html" in data:
            tables += html_tables(as_text(data["text/html"]))
        elif output.get("output_type") == "stream":
            for line in as_text(output.get("text")).split("\n"):
                printed.line(line + "\n")
    frame = printed.read(())
    return [table for table in tables if table.size > 1] or ([frame] if frame.size > 1 else [])


def as_text(value: Any) -> str:
    """Return the text of a notebook's field, which is a text or a list of lines."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
