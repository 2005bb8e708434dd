"""Binary logs of any framework: Weights & Biases' offline runs, read without network, and TensorBoard's event files.

A `.wandb` file is in LevelDB's log format, for which wandb no longer has a Python reader. The records are decoded with
wandb's protobuf messages.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalerl.core.files import parse_json
from scalerl.importers.dialect import Row, flat
from scalerl.scaling import CurveError

HEADER, BLOCK = 7, 32768
FULL, LAST = 1, 4
"""Kinds of fragment that end a record; FIRST (2) and MIDDLE (3) do not."""


def wandb_rows(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Return the history of an offline run, one row per step.

    Raises:
        CurveError: wandb is not installed, or the file has no history.
    """
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
        from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined,unused-ignore]
    except ImportError as error:
        raise CurveError(f"{path}: reading .wandb files needs wandb: pip install wandb") from error
    frames = Frames(path.read_bytes())
    rows, broken = [], 0
    for frame in frames:
        try:
            cells = history(Record(), frame)
        except (DecodeError, ValueError):
            broken += 1
            continue
        if cells is not None:
            rows.append(flat(cells))
    if not rows:
        damaged = "is damaged" if broken or frames.cut else "has no history: the run logged nothing before it ended"
        raise CurveError(f"{path} {damaged}; give the file of a run that has logged")
    notes = [f"{broken} records of {path.name} cannot be read and were left out"] if broken else []
    if frames.cut:
        notes.append(
            f"{path.name} is incomplete or damaged (was the run killed?): everything after {len(rows)} rows was "
            "left out"
        )
    return rows, tuple(notes)


def history(record: Any, frame: bytes) -> dict[str, Any] | None:
    """Return the cells of a record of the history; None for a record of another kind.

    Raises:
        ValueError, DecodeError: The record cannot be read.
    """
    record.ParseFromString(frame)
    if record.WhichOneof("record_type") != "history":
        return None
    return {item.key or "/".join(item.nested_key): parse_json(item.value_json) for item in record.history.item}


class Frames:
    """The records of a LevelDB log up to the first damaged one; afterwards `cut` is true if there was one."""

    def __init__(self, data: bytes) -> None:
        self.data, self.cut = data, False

    def __iter__(self) -> Iterator[bytes]:
        data, place, parts = self.data, HEADER, b""  # the file's own header also has seven bytes
        while place + HEADER <= len(data):
            left = BLOCK - place % BLOCK
            if left < HEADER:  # no room for a header: the rest of the block is padding
                place += left
                continue
            checksum, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
            part = data[place + HEADER : place + HEADER + length]
            place += HEADER + length
            if len(part) < length or zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
                self.cut = True
                return
            parts += part
            if kind in (FULL, LAST):
                yield parts
                parts = b""
        self.cut = bool(parts) or place < len(data)


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
        paths += [Path(place, name) for name in files if "tfevents" in name]
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
