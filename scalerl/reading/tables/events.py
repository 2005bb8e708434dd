"""TensorBoard's event files of any framework, read with TensorBoard."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.core.errors import raising
from scalerl.reading.tables.documents import phase_of, phase_table
from scalerl.reading.tables.errors import CurveError, TooEarly
from scalerl.reading.tables.grids import labeled
from scalerl.reading.tables.table import Table, joined_tables, table_of

EventRow = dict[str, Any]


def read_events(files: Sequence[Path], directory: Path | None = None) -> Table:
    """Return the scalars of event files: one row per file and step.

    The files of one directory belong to one run, because a resumed run writes another file. Several directories below
    `directory` are several runs, unless their names say that they are phases of one (`train`, `validation`).

    Args:
        files: The event files.
        directory: The directory that was given; None for files.

    Raises:
        CurveError: tensorboard is not installed, a record is broken, or there are no scalars.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise CurveError(f"{files[0]}: reading event files needs TensorBoard: pip install tensorboard") from error
    places: dict[Path, list[EventRow]] = {}
    notes: list[str] = []
    for file in files:
        events = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
        with raising(CurveError, partial(damaged, file)):
            events.Reload()
            rows = file_rows(events)
            last = max((row["step"] for row in rows), default=-1)
            if last < last_step(file):
                notes.append(f"{file.name} is damaged behind step {last:g}: later rows cannot be read; copy it again")
        places.setdefault(file.parent, []).extend(rows)
    # a directory with one row holds the settings of a run (hparams)
    tables = {place: table_of(rows) for place, rows in places.items() if len(rows) > 1} or {
        place: table_of(rows) for place, rows in places.items() if rows
    }
    if not tables:
        raise TooEarly(f"{', '.join(map(str, files[:3]))}: no scalars; give the event files of the run")
    phases = {place: phase_of(place.name) for place in tables}
    if len(tables) > 1:
        of_phases = all(phases.values())
        tables = {
            place: phase_table(table, phases[place]) if of_phases else labeled(table, run_name(place, directory))
            for place, table in tables.items()
        }
    name = (directory or files[0]).name
    return replace(joined_tables([*tables.values()]), form="TensorBoard", name=name, notes=tuple(notes))


def damaged(file: Path, error: Exception) -> str:
    """Return the message about a record that TensorBoard cannot read."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return f"{file}: a record is broken ({reason}); copy the file again, or export the run's scalars as CSV"


def run_name(place: Path, directory: Path | None) -> str:
    """Return the name of a run: its directory, below the one that was given."""
    return str(place.relative_to(directory)) if directory is not None and place != directory else place.name or "."


MOST_ENTRIES = 20_000
"""Largest number of files and directories in a search for event files."""


def event_files(directory: Path) -> list[Path]:
    """Return the event files below a directory, sorted by name, which begins with the time; links are not followed.

    Raises:
        CurveError: The directory contains more files than a run writes.
    """
    paths, count = [], 0
    for place, directories, files in os.walk(directory):
        count += len(directories) + len(files)
        if count > MOST_ENTRIES:
            raise CurveError(
                f"{directory} contains more than {MOST_ENTRIES} files and directories, too many to search for a log; "
                "give the directory of one run, or the file"
            )
        events = (Path(place, name) for name in files if "tfevents" in name)
        paths += [path for path in events if path.is_file()]  # a pipe of that name would block
    return sorted(paths, key=lambda file: file.name)


def last_step(file: Path) -> int:
    """Return the step of the last scalar, by the lengths of all records; -1 without one.

    TensorBoard reads up to the first record with a wrong checksum and says nothing.
    """
    from tensorboard.compat.proto.event_pb2 import Event

    size, at, records = file.stat().st_size, 0, deque[tuple[int, int]](maxlen=LOOKED_AT)
    with file.open("rb") as source:
        while at + 16 <= size:  # the length, its checksum, the record, its checksum
            source.seek(at)
            length = int.from_bytes(source.read(8), "little")
            if at + 16 + length > size:
                break
            records.append((at + 12, length))
            at += 16 + length
        for start, length in reversed(records):
            source.seek(start)
            event = Event.FromString(source.read(length))
            if any(value.HasField("simple_value") or len(value.tensor.float_val) == 1 for value in event.summary.value):
                return int(event.step)
    return -1


LOOKED_AT = 1_000
"""Records at the end of a file among which the last scalar is."""


def file_rows(events: Any) -> list[EventRow]:
    """Return one row for each step of one file, in order of wall time; tensors with one number count as scalars."""
    cells: dict[int, EventRow] = {}
    tags = events.Tags()
    scalars = [(tag, event, [event.value]) for tag in tags["scalars"] for event in events.Scalars(tag)]
    # how TensorFlow 2 and JAX writers store scalars
    tensors = [(tag, event, event.tensor_proto.float_val) for tag in tags["tensors"] for event in events.Tensors(tag)]
    for tag, event, values in scalars + tensors:
        if len(values) == 1:
            row = cells.setdefault(event.step, {"step": float(event.step), "_timestamp": event.wall_time})
            row[tag] = float(values[0])
    return sorted(cells.values(), key=lambda row: row["_timestamp"])
