"""Weights & Biases: exported histories and offline run directories of any framework, read without network.

A `.wandb` file is in LevelDB's log format, for which wandb no longer has a Python reader. The records are decoded with
wandb's protobuf messages.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalerl.core.files import parse_json
from scalerl.importers.dialect import GENERIC_EVALUATIONS, Dialect
from scalerl.importers.rows import Row, flat
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


def plain_header(header: list[str]) -> tuple[list[str], list[str]]:
    """Return the columns of a CSV, and the run of each column ("" for a column of all runs).

    In a chart's export, `Step, run - metric, run - metric__MIN, ...`, only step and metric columns keep a name.
    """
    if header[0] not in ("Step", "Relative Time (Process)", "Wall Time") or not any(" - " in n for n in header[1:]):
        return header, [""] * len(header)
    first = "_step" if header[0] == "Step" else header[0]
    names = [first, *("" if n.endswith(("__MIN", "__MAX")) else n.split(" - ", 1)[-1] for n in header[1:])]
    return names, ["", *(n.split(" - ", 1)[0] if " - " in n else "" for n in header[1:])]


DIALECT = Dialect(
    name="wandb",
    marks=(),
    steps=("train/global_step", "trainer/global_step", "global_step", "step", "_step"),
    evaluations=GENERIC_EVALUATIONS,
    about="the run's clock: it includes evaluation and checkpoints, which cannot be separated",
    clocks=("_runtime", "_timestamp"),
    tokens=("train/num_tokens", "num_tokens", "total_tokens", "tokens"),
)
