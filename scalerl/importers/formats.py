"""Recognizes the form of a log from its content and reads it: one place for files, directories and trackers."""

from __future__ import annotations

import errno
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any, BinaryIO

from scalerl.core.files import check_file, lack_of_room, trouble
from scalerl.importers.consoles import BLOCK, Console, json_row
from scalerl.importers.documents import document_frame, read_document
from scalerl.importers.errors import TooEarly
from scalerl.importers.frame import Frame, joined
from scalerl.importers.names import is_score
from scalerl.importers.tables import CsvTable, html_tables, labeled, markdown_tables, peeked, separator_of
from scalerl.importers.tensorboard import event_files, tensorboard_frame
from scalerl.importers.trackers import WandbRun, mlflow_frame, mlflow_runs, sqlite_frame, wandb_path
from scalerl.scaling.readers import CurveError

BAD_LINES = 0.1
"""Largest share of unreadable lines; a file with more is an error."""

HEAD = 1 << 16
"""Bytes from which the form is recognized."""

MEMORY, UNZIPPED = 6.0, 8.0
"""Memory of a log in multiples of its text, and size of that text in multiples of the compressed file."""

LARGEST_DOCUMENT = 1 << 30
"""Bytes of the largest file that must be read as a whole: a JSON document, a notebook, Markdown, HTML."""


@dataclass(frozen=True, eq=False)
class Log:
    """The content of a log.

    Example:
        Log(frame=Frame(...), form="trainer_state.json", name="trainer_state.json", notes=())
    """

    frame: Frame
    form: str
    """What the log is, in words: "JSON lines", "CSV", "notebook", "TensorBoard"."""
    name: str
    """Name of the file or run, for messages."""
    notes: tuple[str, ...] = ()
    reader: Lines | Rows | None = None
    """What has read a text of lines, and reads lines that follow; None for any other log."""
    ended: str = ""
    """How the run ended, if the log says so: "finished", "failed", ..."""


def read_log(path: Path) -> Log:
    """Read one file, the log in a directory, or a run on wandb.

    Raises:
        CurveError: The log does not exist, is empty, or has no known form.
    """
    if (run := wandb_path(str(path))) is not None:
        return read_wandb(WandbRun(run))
    if path.is_dir():
        return read_directory(*find_log(path), path)
    return read_file(path)


def read_wandb(run: WandbRun) -> Log:
    """Read what is new of a run on wandb; return all of it."""
    frame, ended = run.read()
    return Log(frame, "wandb", f"wandb:{run.path}", ended=ended)


def read_file(path: Path, size: int | None = None) -> Log:
    """Read one file.

    Args:
        path: The file.
        size: Bytes to read of a file that is still written, in which a line without its end is no row; None: all.

    Raises:
        CurveError: The file does not exist, is empty, or has no known form.
    """
    try:
        check_file(path)
        with path.open("rb") as file:
            head = file.read(HEAD)
        if "tfevents" in path.name:
            return Log(tensorboard_frame([path]), "TensorBoard", path.name)
        if (format_error := BINARY.get(head[:4]) or BINARY.get(head[:2])) is not None:
            raise CurveError(f"{path} {format_error}")
        if head.startswith(b"SQLite format 3\0"):
            frame, tracker, ended = sqlite_frame(path)
            return Log(frame, tracker, path.name, ended=ended)
        if zipped := head[:2] == b"\x1f\x8b":
            with gzip.open(path) as unzipped:
                head = unzipped.read(HEAD)
        if trouble_ahead := lack_of_room(path, MEMORY * (UNZIPPED if zipped else 1.0)):
            raise CurveError(trouble_ahead)
        return read_text(path, head, zipped, size)
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
TEXTS = ("*.jsonl", "*.log", "*.csv", "*.txt", "*.json")
"""Other logs in a directory, if it has one of them."""


FILE, EVENTS, MLFLOW = "file", "events", "mlflow"
"""What a directory has: one file with the log, event files of TensorBoard, or runs of MLflow."""


def find_log(path: Path, before: str = "") -> tuple[str, list[Path]]:
    """Return the log in a directory: the first of `INSIDE` that exists, event files, MLflow's runs, or the only log.

    Args:
        path: The directory.
        before: What it was before. A log that is followed does not change from event files to a checkpoint's state,
            which is behind them.

    Raises:
        CurveError: There is none, or more than one file could be it.
    """
    if before == EVENTS and (files := event_files(path)):
        return EVENTS, files
    for pattern in INSIDE:
        if paths := [file for file in path.glob(pattern) if file.is_file()]:
            return FILE, [max(paths, key=checkpoint_number)]
    if files := event_files(path):
        return EVENTS, files
    if runs := mlflow_runs(path):
        return MLFLOW, runs
    logs = sorted(file for pattern in TEXTS for file in path.glob(pattern) if file.is_file())
    if len(logs) == 1:
        return FILE, logs
    if logs:
        names = ", ".join(file.name for file in logs[:8]) + (" ..." if len(logs) > 8 else "")
        raise CurveError(f"{path} has {len(logs)} files that may be the log ({names}); give one of them")
    looked = ", ".join([*INSIDE, "**/*tfevents*", "mlruns", *TEXTS])
    raise TooEarly(f"{path} is a directory without a known log; looked for {looked}; give the file")


def read_directory(kind: str, paths: list[Path], directory: Path) -> Log:
    """Read the files that `find_log` returned for a directory."""
    if kind == FILE:
        return read_file(paths[0])
    if kind == EVENTS:
        return Log(tensorboard_frame(paths, directory), "TensorBoard", directory.name)
    frame, ended = mlflow_frame(paths)
    return Log(frame, "MLflow", directory.name, ended=ended)


def checkpoint_number(path: Path) -> list[int]:
    """Return the numbers in the name of a file's directory: `checkpoint-1000` comes after `checkpoint-200`."""
    return [int(number) for number in re.findall(r"\d+", path.parent.name)]


# ----------------------------------------------------------------------------------------------------------------- text


class Span(io.RawIOBase):
    """The bytes of a file from its current position up to an end, while the file may grow."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._remaining = file, size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return the number of bytes, 0 at the end."""
        data = self._file.read(min(len(buffer), self._remaining))
        buffer[: len(data)] = data
        self._remaining -= len(data)
        return len(data)


def lines_of(path: Path, zipped: bool, encoding: str, start: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield the lines of a file, with their ends; zero bytes at the end of a log (a power failure) are left out.

    Args:
        path: The file.
        zipped: Whether it is compressed with gzip.
        encoding: utf-8 or utf-16.
        start: Position of the first line in bytes.
        end: Position in bytes up to which a file that may grow is read; None: all of it.

    Raises:
        CurveError: There are zero bytes elsewhere.
    """
    with gzip.open(path, "rb") if zipped else path.open("rb") as source:
        source.seek(start)
        file: Any = source if zipped or end is None else io.BufferedReader(Span(source, end - start), HEAD)  # type: ignore[arg-type]
        if encoding.startswith("utf-16"):
            yield from file.read().decode(encoding, errors="replace").splitlines(keepends=True)
            return
        # only \n ends a line: a carriage return separates the states of a progress bar
        text = io.TextIOWrapper(file, "utf-8-sig", "replace", newline="\n")
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


def complete(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that have their end."""
    return (line for line in lines if line.endswith("\n"))


def read_text(path: Path, head: bytes, zipped: bool, size: int | None) -> Log:
    """Read text; its first lines determine the form. The size is that of `read_file`."""
    growing = size is not None
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    content = dropwhile(lambda line: not line.strip(), lines_of(path, zipped, encoding, 0, size))
    sample, lines = peeked(content, 60)
    if not sample:
        raise TooEarly(f"{path} is empty; give the log of a run")
    text = "".join(sample).lstrip()
    name, first = path.name, next(line for line in sample if line.strip()).strip()
    start = re.sub(r"\s", "", text[:200])[:2]
    document = start[:1] == "{" and start != "{'" and json_row(first) is None
    if document or start in ("[{", "[[", "[]"):
        full_text = whole_text(path, lines)
        if (parsed := read_document(full_text, name)) is not None:
            return Log(parsed[0], parsed[1], name)
        return read_lines(path, full_text.splitlines(keepends=True), growing)
    if start[:1] == "{" and len(sample) == 1 and (parsed := document_frame(json_row(first), name)) is not None:
        return Log(parsed[0], parsed[1], name)  # a document in one line
    if start[:1] != "{":
        if (separator := separator_of([line for line in sample if not line.startswith("#")])) is not None \
                and not text.startswith("|"):  # fmt: skip
            rows = Rows(path, separator)
            rows.add(complete(lines) if growing else lines)
            return rows.log()
        if path.suffix.lower() in (".md", ".markdown", ".html", ".htm", ".rst") or text[:1] in "|<":
            full_text = whole_text(path, lines)
            tables = markdown_tables(full_text) + html_tables(full_text)
            if tables:
                form = "HTML" if "<table" in full_text.lower() else "Markdown"
                return Log(largest(tables), f"{form} table", name)
            lines = iter(full_text.splitlines(keepends=True))
    return read_lines(path, lines, growing)


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


def read_lines(path: Path, lines: Iterable[str], growing: bool) -> Log:
    """Read JSON lines, a console, or prints; errors are those of `Lines.log`."""
    reader = Lines(path)
    reader.add(complete(lines) if growing else lines)
    return reader.log()


class Lines:
    """Reads JSON lines, a console, or prints. More lines may be added after a look at the log."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, ""
        self.console = Console()
        self.frame = Frame(0, {})

    def add(self, lines: Iterable[str]) -> None:
        """Read lines, after those that were read before."""

        def noted() -> Iterator[str]:
            for line in lines:
                self.last = line
                yield line

        self.frame = self.console.read(noted())

    def log(self) -> Log:
        """Return what was read so far.

        Raises:
            CurveError: More than `BAD_LINES` of the objects cannot be read, or no line has numbers.
        """
        console, name = self.console, self.path.name
        notes = []
        incomplete = bool(self.last.strip()) and not self.last.endswith("\n")
        bad = console.bad
        if incomplete and [*bad] == [console.lines]:
            notes.append(f"the last line of {name} is incomplete (was the run killed?) and was left out")
        elif bad and len(bad) > BAD_LINES * (console.objects + len(bad)):
            raise CurveError(
                f"{self.path}: {len(bad)} of {console.objects + len(bad)} lines are not JSON objects, the first is "
                f"line {min(bad)} ({bad[min(bad)]}); correct or remove them"
            )
        elif bad:
            notes.append(f"{len(bad)} unreadable lines of {name} were left out, the first is line {min(bad)}")
        elif incomplete and console.cut:
            notes.append(f"the last line of {name} is incomplete (was the run killed?) and was left out")
        if not self.frame.names:
            raise TooEarly(
                f"{self.path} has no numbers in a known form: no JSON, no CSV, and no line with the metrics of a step, "
                "such as 'Step 5: reward=0.4'; give the trainer's own log"
            )
        form = max(console.kinds, key=lambda kind: console.kinds[kind], default=BLOCK)
        return Log(self.frame, form, name, tuple(notes), self)


class Rows:
    """Reads CSV with any delimiter. More rows may be added after a look at the log."""

    def __init__(self, path: Path, separator: str) -> None:
        self.path = path
        self.table = CsvTable(separator, path.name)

    def add(self, lines: Iterable[str]) -> None:
        """Read lines, after those that were read before; errors are those of `CsvTable.read`."""
        self.table.read(lines)

    def log(self) -> Log:
        """Return what was read so far; errors are those of `CsvTable.frame`."""
        frame, notes = self.table.frame(BAD_LINES)
        return Log(chart_of_tensorboard(frame, self.path), "CSV", self.path.name, tuple(notes), self)


def largest(tables: list[Frame]) -> Frame:
    """Return the tables with scores; several become the runs of one frame."""
    tables = [table for table in tables if any(is_score(name) for name in table.names)] or tables
    if len(tables) == 1:
        return tables[0]
    return joined([labeled(table, f"table {number}") for number, table in enumerate(tables, 1)])


def chart_of_tensorboard(frame: Frame, path: Path) -> Frame:
    """Return a download of TensorBoard, `Wall time, Step, Value`, whose metric has the tag in its file name."""
    if {name.lower() for name in frame.names} != {"wall time", "step", "value"}:
        return frame
    value = next(name for name in frame.names if name.lower() == "value")
    tag = path.stem.rpartition("-tag-")[2] or "value"
    cells = {(tag if name == value else name): cell for name, cell in frame.cells.items()}
    return Frame(frame.size, cells, frame.words)
