"""TensorBoard's event files of any framework, read with TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.importers.documents import phase_frame, phase_of
from scalerl.importers.errors import TooEarly
from scalerl.importers.frame import Frame, frame_of, joined
from scalerl.importers.tables import labeled
from scalerl.scaling.readers import CurveError

Row = dict[str, Any]


def tensorboard_frame(
    files: Sequence[Path], directory: Path | None = None, open_files: dict[Path, Any] | None = None
) -> Frame:
    """Return the scalars of event files: one row per file and step.

    The files of one directory belong to one run, because a resumed run writes another file. Several directories below
    `directory` are several runs, unless their names say that they are phases of one (`train`, `validation`).

    Args:
        files: The event files.
        directory: The directory that was given; None for files.
        open_files: Files that were read before by this function, which are then read on from their ends.

    Raises:
        CurveError: tensorboard is not installed, or there are no scalars.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise CurveError(f"{files[0]}: reading event files needs TensorBoard: pip install tensorboard") from error
    places: dict[Path, list[Row]] = {}
    accumulators = {} if open_files is None else open_files
    for file in files:
        if file not in accumulators:
            accumulators[file] = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
        events = accumulators[file]
        events.Reload()
        places.setdefault(file.parent, []).extend(file_rows(events))
    # a directory with one row holds the settings of a run (hparams)
    frames = {place: frame_of(rows) for place, rows in places.items() if len(rows) > 1} or {
        place: frame_of(rows) for place, rows in places.items() if rows
    }
    if not frames:
        raise TooEarly(f"{', '.join(map(str, files[:3]))}: no scalars; give the event files of the run")
    if len(frames) == 1:
        return next(iter(frames.values()))
    phases = {place: phase_of(place.name) for place in frames}
    if all(phases.values()):
        return joined([phase_frame(frame, phases[place]) for place, frame in frames.items()])
    return joined([labeled(frame, run_name(place, directory)) for place, frame in frames.items()])


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


def file_rows(events: Any) -> list[Row]:
    """Return one row for each step of one file, in order of wall time; tensors with one number count as scalars."""
    cells: dict[int, Row] = {}
    tags = events.Tags()
    scalars = [(tag, event, [event.value]) for tag in tags["scalars"] for event in events.Scalars(tag)]
    # how TensorFlow 2 and JAX writers store scalars
    tensors = [(tag, event, event.tensor_proto.float_val) for tag in tags["tensors"] for event in events.Tensors(tag)]
    for tag, event, values in scalars + tensors:
        if len(values) == 1:
            row = cells.setdefault(event.step, {"step": float(event.step), "_timestamp": event.wall_time})
            row[tag] = float(values[0])
    return sorted(cells.values(), key=lambda row: row["_timestamp"])
