"""Reads files and directories into rows of numbers: JSON, JSONL, CSV, console text, and binary logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scalerl.core.files import parse_json, read_bytes, trouble
from scalerl.importers.dialect import RUN_COLUMNS, Row, as_cell, flat
from scalerl.importers.tensorboard import event_files, tensorboard_rows
from scalerl.scaling.readers import CurveError, csv_rows, json_objects

BAD_LINES = 0.1
"""Largest share of unreadable lines; a file with more is an error."""


@dataclass(frozen=True)
class Log:
    """The content of one file, with the column names of the framework.

    Example:
        Log(rows=[{"step": 1.0, "timing_s/step": 61.2}], source="verl", notes=("1 line was left out",))
    """

    rows: list[Row]
    source: str
    """The source of this file format, if no column identifies the framework."""
    notes: tuple[str, ...] = ()


def read_log(path: Path) -> Log:
    """Read one file, or the log in a directory.

    Raises:
        CurveError: The file does not exist, is empty, or has no known format.
    """
    if path.is_dir():
        return read_directory(path)
    try:
        data = read_bytes(path)
    except OSError as error:
        raise CurveError(trouble(error)) from error
    if data[:4] == b":W&B":
        raise CurveError(
            f"{path} is in wandb's own format; run `wandb sync` on its directory, export the history "
            "(docs/importing.md), and give that file"
        )
    if "tfevents" in path.name:
        return Log(tensorboard_rows([path]), "tensorboard")
    # after a power failure, a log may end with zero bytes
    text_bytes = data.rstrip(b"\0")
    if b"\0" in text_bytes:
        raise CurveError(
            f"{path} is binary and of no known format; give a JSON, JSONL, CSV or console log, or a TensorBoard "
            "event file"
        )
    text = text_bytes.decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise CurveError(f"{path} is empty; give the log of a run")
    return read_text(path, text)


def read_directory(path: Path) -> Log:
    """Read the log in a run's directory: the first of `INSIDE` that exists, or TensorBoard's event files."""
    for pattern in INSIDE:
        if paths := list(path.glob(pattern)):
            return read_log(max(paths, key=checkpoint_number))
    if files := event_files(path):
        return Log(tensorboard_rows(files), "tensorboard")
    looked = ", ".join([*INSIDE, "**/*tfevents*"])
    raise CurveError(f"{path} is a directory without a known log; looked for {looked}; give the file")


def checkpoint_number(path: Path) -> list[int]:
    """Return the numbers in the name of a file's directory: `checkpoint-1000` comes after `checkpoint-200`."""
    return [int(number) for number in re.findall(r"\d+", path.parent.name)]


INSIDE = (
    "trainer_state.json",
    "checkpoint-*/trainer_state.json",
    "run-*.wandb",
    "latest-run/run-*.wandb",
    "points.jsonl",  # a run of scalerl, which also has a metrics.jsonl
    "metrics.jsonl",
)
"""Logs in a run's directory, in the order in which they are tried."""


def read_text(path: Path, text: str) -> Log:
    """Read JSON, JSONL, console lines or CSV; the content determines the format."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        if (document := read_json(path, text)) is not None:
            return document
        rows, notes = json_objects(path, text, BAD_LINES)
        return Log([flat(row) for row in rows], "table", notes)
    console = list(console_rows(text))
    return Log(console, "verl") if console else read_csv(path, text)


def read_json(path: Path, text: str) -> Log | None:
    """Read one JSON document, a trainer_state.json or a list of rows; return None if the text is JSONL."""
    try:
        document = parse_json(text)
    except ValueError as error:
        if text.lstrip().split("\n", 1)[0].strip() in ("{", "["):
            raise CurveError(
                f"{path} is incomplete or damaged JSON ({error}); an earlier checkpoint has a complete file"
            ) from error
        return None
    source, entries = ("table", document) if isinstance(document, list) else ("trl", document.get("log_history"))
    if not isinstance(entries, list):
        return None
    rows = [flat(row) for row in entries if isinstance(row, dict)]
    other = len(entries) - len(rows)
    return Log(rows, source, (f"{other} entries of {path.name} are not objects and were left out",) if other else ())


LINE_END = re.compile(r"\r\n|\n|\r")
"""Progress bars end lines with a carriage return. Other line ends, such as U+2028, may occur inside a text."""
CONSOLE = re.compile(r"(?:^|[\s)\]])step:(\d+) - (.+:.+)$")
"""verl's console line, `step:5 - actor/lr:1e-06 - ...`, sometimes after Ray's `(TaskRunner pid=7)`."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
NUMPY = re.compile(r"^np\.\w+\((.*)\)$")
"""numpy 2 prints numbers as `np.float64(0.5)`."""


def console_rows(text: str) -> Iterator[Row]:
    """Yield a row for each metric line of a console log; an incomplete value at the end of the file is left out."""
    ends_whole = text.endswith("\n")
    lines = LINE_END.split(text.removesuffix("\n"))
    for number, line in enumerate(lines, 1):
        if "step:" not in line:
            continue
        match = CONSOLE.search(COLOR.sub("", line).rstrip())
        if match is None:
            continue
        pairs = match[2].split(" - ")
        if number == len(lines) and not ends_whole:
            pairs = pairs[:-1]
        row: Row = {"step": float(match[1])}
        for pair in pairs:
            name, _, value = pair.rpartition(":")
            wrapped = NUMPY.match(value)
            cell = as_cell("", wrapped[1] if wrapped else value)
            if name and cell is not None:
                row[name] = cell
        yield row


def read_csv(path: Path, text: str) -> Log:
    """Read a header and one row per line; in a chart exported from wandb, run names are removed from the header."""
    first = LINE_END.split(text.lstrip(), 1)[0]
    separator = max(",;\t", key=first.count)
    if separator not in first:
        raise CurveError(
            f"{path} has no known format: it is not JSON, has no `step:N - ...` lines of verl, and its first line is "
            f"not a CSV header with two columns or more: {first[:60]!r}"
        )
    header, lines, notes = csv_rows(path, text, BAD_LINES, separator)
    header, owners = plain_header(header)
    runs = sorted(set(owners) - {""})
    rows = []
    for cells in lines:
        named = [column for column in zip(header, cells, owners, strict=True) if column[0]]
        for run in runs or [""]:  # a chart of several runs has a row for each of them at every step
            row = flat({name: cell for name, cell, owner in named if owner in ("", run)})
            rows.append({**row, RUN_COLUMNS[0]: run} if len(runs) > 1 else row)
    return Log(rows, "table", notes)


def plain_header(header: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns of a CSV, and the run of each column ("" for a column of all runs).

    In a chart's export, `Step, run - metric, run - metric__MIN, ...`, only step and metric columns keep a name.
    """
    if header[0] not in ("Step", "Relative Time (Process)", "Wall Time") or not any(" - " in n for n in header[1:]):
        return header, [""] * len(header)
    first = "_step" if header[0] == "Step" else header[0]
    names = [first, *("" if n.endswith(("__MIN", "__MAX")) else n.split(" - ", 1)[-1] for n in header[1:])]
    return names, ["", *(n.split(" - ", 1)[0] if " - " in n else "" for n in header[1:])]


def names_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of all columns, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))
