"""TensorBoard's event files of any framework, read with TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from scalerl.importers.dialect import Row
from scalerl.scaling import CurveError


def tensorboard_rows(files: list[Path]) -> list[Row]:
    """Return the scalars of event files: one row per file and step. A resumed run writes another file.

    Raises:
        CurveError: tensorboard is not installed, or there are no scalars.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise CurveError(f"{files[0]}: reading event files needs TensorBoard: pip install tensorboard") from error
    rows: list[Row] = []
    for file in files:
        events = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        rows += file_rows(events)
    if not rows:
        raise CurveError(f"{', '.join(map(str, files[:3]))}: no scalars; give the event files of the run")
    return rows


MOST_ENTRIES = 20_000
"""Largest number of files and directories in a search for event files."""


def event_files(directory: Path) -> list[Path]:
    """Return the event files below a directory, sorted by name, which begins with the time; links are not followed.

    Raises:
        CurveError: The directory contains more files than a run writes.
    """
    paths, seen = [], 0
    for place, directories, files in os.walk(directory):
        seen += len(directories) + len(files)
        if seen > MOST_ENTRIES:
            raise CurveError(
                f"{directory} contains more than {MOST_ENTRIES} files and directories, too many to search for a log; "
                "give the directory of one run, or the file"
            )
        found = (Path(place, name) for name in files if "tfevents" in name)
        paths += [path for path in found if path.is_file()]  # a pipe of that name would block
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
