"""TensorBoard event files of any framework, read with TensorBoard's reader."""

from __future__ import annotations

import os
from pathlib import Path

from scalerl.importers.dialect import GENERIC_EVALUATIONS, Dialect
from scalerl.importers.rows import Row
from scalerl.scaling import CurveError


def tensorboard_rows(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Return the scalars of an event file, or of all event files below a directory: one row per writer and step.

    Raises:
        CurveError: tensorboard is not installed, or there are no scalars.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise CurveError(f"{path}: reading event files needs TensorBoard: pip install tensorboard") from error
    rows: list[Row] = []
    # a resumed run writes another file; names start with the time, so they sort in order
    for file in [path] if path.is_file() else event_files(path):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        rows += file_rows(events)
    if not rows:
        raise CurveError(f"{path} has no scalars; give the event files of the run")
    return rows, ()


MOST_ENTRIES = 20_000
"""Largest number of files and directories in a search for event files."""


def event_files(directory: Path) -> list[Path]:
    """Return the event files below a directory, sorted by name. Links to directories are not followed.

    Raises:
        CurveError: the directory contains more files than a run writes.
    """
    found, seen = [], 0
    for place, directories, files in os.walk(directory):
        seen += len(directories) + len(files)
        if seen > MOST_ENTRIES:
            raise CurveError(
                f"{directory} contains more than {MOST_ENTRIES} files and directories, too many to search for a log; "
                "give the directory of one run, or the file"
            )
        found += [Path(place, name) for name in files if "tfevents" in name]
    return sorted(found, key=lambda file: file.name)


def file_rows(events: object) -> list[Row]:
    """Return one row for each step of one file, in order of wall time; tensors with one number count as scalars."""
    cells: dict[int, Row] = {}
    tags = events.Tags()  # type: ignore[attr-defined]
    for tag in tags["scalars"]:
        for event in events.Scalars(tag):  # type: ignore[attr-defined]
            cells.setdefault(event.step, {"step": float(event.step), "_timestamp": event.wall_time})[tag] = event.value
    for tag in tags["tensors"]:  # how TensorFlow 2 and JAX writers store scalars
        for event in events.Tensors(tag):  # type: ignore[attr-defined]
            values = event.tensor_proto.float_val
            if len(values) == 1:
                row = cells.setdefault(event.step, {"step": float(event.step), "_timestamp": event.wall_time})
                row[tag] = float(values[0])
    return sorted(cells.values(), key=lambda row: row["_timestamp"])


DIALECT = Dialect(
    name="tensorboard",
    marks=(),
    steps=("step",),
    evaluations=GENERIC_EVALUATIONS,
    about="the wall time of the events: it includes evaluation and checkpoints, which cannot be separated",
    clocks=("_timestamp",),
    tokens=("train/num_tokens", "num_tokens", "total_tokens", "tokens"),
)
