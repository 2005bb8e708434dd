"""Recognizes the form of a log from its content and reads it: one place for files, directories and trackers."""

from __future__ import annotations

import errno
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import IO, cast

from scalerl.core.files import check_file, lack_of_room, trouble
from scalerl.reading.tables.documents import LEAST_SCORES, document_table, read_document, scores_of, titled_table
from scalerl.reading.tables.errors import CurveError, TooEarly, with_command
from scalerl.reading.tables.grids import html_tables, labeled, markdown_tables, read_csv, separator_of
from scalerl.reading.tables.lines import json_row, read_lines
from scalerl.reading.tables.names import are_points
from scalerl.reading.tables.point_rows import read_point_rows
from scalerl.reading.tables.table import Table, joined_tables

WANDB_ADDRESS = re.compile(r"(?:wandb:/{0,2}|https?:/{1,2}(?:www\.)?wandb\.ai/)(?P<path>.+)")
"""`wandb:entity/project/run`, or the address of its page."""

HEAD = 1 << 16
"""Bytes from which the form is recognized."""

MEMORY, UNZIPPED = 8.0, 8.0
"""Memory of a log in multiples of its text, and size of that text in multiples of the compressed file."""

LARGEST_TEXT = 1 << 26
"""Bytes of the largest text in which lists of JSON are searched between other lines."""
LARGEST_DOCUMENT = 1 << 30
"""Bytes of the largest file that must be read as a whole: a JSON document, a notebook, Markdown, HTML."""


def wandb_path(text: str) -> str | None:
    """Return entity/project/run of a run on wandb, or None for any other path."""
    match = WANDB_ADDRESS.fullmatch(text)
    return None if match is None else re.sub(r"/runs/", "/", match["path"].split("?")[0].strip("/"))


def read_table(path: str | Path, *, growing: bool = False, points: bool = False) -> Table:
    """Read one file, the log in a directory, or a run on wandb.

    Args:
        path: A file, a directory, `wandb:entity/project/run`.
        growing: Whether the file is still written, so that a last line without its end is no row yet.
        points: Whether a directory's points.jsonl comes before the log of a trainer.

    Raises:
        CurveError: The log does not exist, is empty, or has no known form.
    """
    try:
        if (run := wandb_path(str(path))) is not None:
            from scalerl.reading.tables.trackers import WandbRun

            return WandbRun(run).read()
        path = Path(path)
        if not path.is_dir():
            return read_file(path, growing)
        kind, paths = find_log(path, points=points)
        return read_directory(kind, paths, path, growing)
    except CurveError as error:
        if (better := with_command(error)) is error:
            raise
        raise better from error


def read_file(path: Path, growing: bool = False) -> Table:
    """Read one file; arguments and errors are those of `read_table`."""
    try:
        check_file(path)
        with path.open("rb") as file:
            head = file.read(HEAD)
        if "tfevents" in path.name:
            from scalerl.reading.tables.events import read_events

            return read_events([path])
        if (format_error := BINARY.get(head[:4]) or BINARY.get(head[:2])) is not None:
            raise CurveError(f"{path} {format_error}")
        if head.startswith(b"SQLite format 3\0"):
            from scalerl.reading.tables.trackers import read_sqlite

            return read_sqlite(path)
        if zipped := head[:2] == b"\x1f\x8b":
            with gzip.open(path) as unzipped:
                head = unzipped.read(HEAD)
        if trouble_ahead := lack_of_room(path, MEMORY * (UNZIPPED if zipped else 1.0)):
            raise CurveError(trouble_ahead)
        return read_text(path, head, zipped, growing)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            early = error.errno in (errno.ENOENT, errno.ENODATA)
            raise (TooEarly if early else CurveError)(trouble(error)) from error
        text = f"{path} is a damaged gz file ({error}); copy it again, or give the unpacked log"
        raise (TooEarly if isinstance(error, EOFError) else CurveError)(text) from error


BINARY = {
    b":W&B": "is in wandb's own format; run `wandb sync` on its directory, export the history (docs/importing.md), "
    "and give that file",
    b"PK\x03\x04": "is a zip archive; unpack it and give the log inside",
    b"PAR1": "is a Parquet file; export its rows as CSV or JSON lines",
    b"BZh9": "is compressed with bzip2; unpack it with `bunzip2` and give the log",
    b"\xfd7zX": "is compressed with xz; unpack it with `unxz` and give the log",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it with `unzstd` and give the log",
    b"\x80\x04": "is a Python pickle; write its rows as JSON lines and give that file",
    b"%PDF": "is a PDF; give the log from which it was made",
    b"\x89PNG": "is a picture; give the log from which it was made",
}
"""Beginnings of files that are no text, with what to give instead."""


# ---------------------------------------------------------------------------------------------------------- directories

INSIDE = (
    "trainer_state.json",
    "checkpoint-*/trainer_state.json",
    "points.jsonl",  # a run of scalerl, which also has a metrics.jsonl
    "metrics.jsonl",
    "trainer_log.jsonl",  # LLaMA-Factory
    "logging.jsonl",  # ms-swift
    "files/output.log",  # wandb's directory of a run
    "latest-run/files/output.log",
    "wandb/latest-run/files/output.log",
    "run-*.wandb",
    "latest-run/run-*.wandb",
)
"""Logs in a run's directory, in the order in which they are tried."""
LOG_PATTERNS = ("*.jsonl", "*.log", "*.csv", "*.txt", "*.json")
"""Other logs in a directory, if it has one of them."""


FILE, EVENTS, MLFLOW = "file", "events", "mlflow"
"""What a directory has: one file with the log, event files of TensorBoard, or runs of MLflow."""


def find_log(path: Path, before: str = "", *, points: bool = False) -> tuple[str, list[Path]]:
    """Return the log in a directory: the first of `INSIDE` that exists, event files, MLflow's runs, or the only log.

    Args:
        path: The directory.
        before: What it was before. A log that is followed does not change from event files to a checkpoint's state,
            which is behind them.
        points: Whether its points.jsonl comes first.

    Raises:
        CurveError: There is none, or more than one file could be it.
    """
    if points and (path / "points.jsonl").is_file():
        return FILE, [path / "points.jsonl"]
    from scalerl.reading.tables.events import event_files
    from scalerl.reading.tables.trackers import mlflow_runs

    if before == EVENTS and (files := event_files(path)):
        return EVENTS, files
    for pattern in INSIDE:
        if paths := [file for file in path.glob(pattern) if file.is_file()]:
            return FILE, [max(paths, key=checkpoint_number)]
    if files := event_files(path):
        return EVENTS, files
    if runs := mlflow_runs(path):
        return MLFLOW, runs
    logs = sorted(file for pattern in LOG_PATTERNS for file in path.glob(pattern) if file.is_file())
    if len(logs) == 1:
        return FILE, logs
    if logs:
        names = ", ".join(file.name for file in logs[:8]) + (" ..." if len(logs) > 8 else "")
        raise CurveError(f"{path} has {len(logs)} files that may be the log ({names}); give one of them")
    looked = ", ".join([*INSIDE, "**/*tfevents*", "mlruns", *LOG_PATTERNS])
    raise TooEarly(f"{path} is a directory without a known log; looked for {looked}; give the file")


def read_directory(kind: str, paths: list[Path], directory: Path, growing: bool = False) -> Table:
    """Read the files that `find_log` returned for a directory."""
    if kind == EVENTS:
        from scalerl.reading.tables.events import read_events

        return read_events(paths, directory)
    if kind == MLFLOW:
        from scalerl.reading.tables.trackers import read_mlflow

        return read_mlflow(paths, directory)
    return read_file(paths[0], growing)


def checkpoint_number(path: Path) -> list[int]:
    """Return the numbers in the name of a file's directory: `checkpoint-1000` comes after `checkpoint-200`."""
    return [int(number) for number in re.findall(r"\d+", path.parent.name)]


# ----------------------------------------------------------------------------------------------------------------- text


def lines_of(path: Path, zipped: bool, encoding: str) -> Iterator[str]:
    """Yield the lines of a file, with their ends; zero bytes at the end of a log (a power failure) are left out.

    Raises:
        CurveError: There are zero bytes elsewhere.
    """
    with gzip.open(path, "rb") if zipped else path.open("rb") as source:
        # only \n ends a line: a carriage return separates the states of a progress bar
        text = io.TextIOWrapper(cast(IO[bytes], source), encoding, "replace", newline="\n")
        for line in text:
            if "\0" in line:
                line = line.rstrip("\0\n")
                if "\0" in line:
                    raise CurveError(
                        f"{path} is binary and of no known format; give a JSON, JSONL, CSV or console log, or a "
                        "TensorBoard event file"
                    )
                if not line:
                    continue
            yield line


def read_text(path: Path, head: bytes, zipped: bool, growing: bool) -> Table:
    """Read text; its first lines determine the form."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    content = dropwhile(lambda line: not line.strip(), lines_of(path, zipped, encoding))
    sample, lines = peeked(content, 60)
    if not sample:
        raise TooEarly(f"{path} is empty; give the log of a run")
    text = "".join(sample).lstrip()
    first = sample[0].strip()
    start, row = re.sub(r"\s", "", text[:200])[:2], json_row(first)
    document: Table | None = None

    def rows() -> Iterator[str]:
        return (line for line in lines if line.endswith("\n") or not growing)

    if row is not None and are_points(name for name, value in row.items() if not isinstance(value, list | dict)):
        return read_point_rows(path, rows())
    if (start[:1] == "{" and start != "{'" and row is None) or start in ("[{", "[[", "[]"):
        full_text = whole_text(path, lines)
        document = read_document(full_text, path.name)
        lines = iter(full_text.splitlines(keepends=True))
    elif row is not None and len(sample) == 1:
        document = document_table(row, path.name)
    elif row is None and start[:1] != "{":
        separator = separator_of([line for line in sample if not line.startswith("#")])
        if separator is not None and not text.startswith("|"):
            return read_csv(path, separator, rows())
        if path.suffix.lower() in (".md", ".markdown", ".html", ".htm", ".rst") or text[:1] in "|<":
            full_text = whole_text(path, lines)
            document = largest(markdown_tables(full_text) + html_tables(full_text), full_text)
            lines = iter(full_text.splitlines(keepends=True))
    if document is not None:
        return replace(document, name=path.name)
    try:
        table = read_lines(path, rows())
    except TooEarly:
        if (document := between_titles(path, zipped, encoding)) is None:
            raise
        return replace(document, name=path.name)
    if (count := scores_of(table)) < LEAST_SCORES and (document := between_titles(path, zipped, encoding)) is not None:
        table = replace(document, name=path.name) if scores_of(document) > count else table
    return table


def between_titles(path: Path, zipped: bool, encoding: str) -> Table | None:
    """Return the JSON lists between other lines of a text without scores elsewhere; None without any."""
    lines = whole_text(path, lines_of(path, zipped, encoding)) if path.stat().st_size < LARGEST_TEXT else ""
    return titled_table(lines)


def peeked(lines: Iterable[str], count: int) -> tuple[list[str], Iterator[str]]:
    """Return the first lines, and all lines."""
    iterator = iter(lines)
    first = list(islice(iterator, count))
    return first, chain(first, iterator)


def whole_text(path: Path, lines: Iterator[str]) -> str:
    """Return all lines as one text.

    Raises:
        CurveError: The text is too long to be read as a whole.
    """
    parts, size = [], 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size > LARGEST_DOCUMENT:
            raise CurveError(f"{path} is larger than 1 GiB; give a log with one row per line (JSON lines or CSV)")
    return "".join(parts)


def largest(tables: list[Table], text: str) -> Table | None:
    """Return the tables with scores of a text; several become the runs of one; None without a table."""
    tables = [table for table in tables if scores_of(table)] or tables
    if not tables:
        return None
    parts = [labeled(table, f"table {number}") if len(tables) > 1 else table for number, table in enumerate(tables, 1)]
    return replace(joined_tables(parts), form=f"{'HTML' if '<table' in text.lower() else 'Markdown'} table")
