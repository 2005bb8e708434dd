"""Checkpoints that appear all at once or not at all: nested state to files and back.

Arrays go into one safetensors file (numpy arrays packed by type, for a generator's state holds thousands of small
ones), everything else into JSON beside it. A checkpoint is written under a temporary name, sealed by a manifest,
fsynced and renamed; the last good one is never touched.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scalerl.files import as_umask, next_directory, sync
from scalerl.training.manifest import forget_stamps, seal, stamp_later

FORMAT = 2
"""Of the trainer's part; raise it when a checkpoint of before cannot be resumed any more."""

WRITTEN = ".written"
"""An empty file that says that the run has had a checkpoint."""

_NAME = re.compile(r"step_(\d{6,})$")


def save_state(directory: Path, name: str, state: Mapping[str, Any]) -> None:
    """Write `state` as name.json and name.safetensors, and force both to disk."""
    directory.mkdir(exist_ok=True)  # no parents: a run directory that was moved is not made again
    packed: dict[str, list[np.ndarray[Any, Any]]] = {}
    sizes: dict[str, int] = {}
    tensors: dict[str, Tensor] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            kind = value.dtype.name
            start = sizes.get(kind, 0)
            packed.setdefault(kind, []).append(value.reshape(-1))
            sizes[kind] = start + value.size
            return {"__array__": kind, "start": start, "shape": list(value.shape)}
        if isinstance(value, Tensor):
            tensors[f"tensor.{len(tensors)}"] = value.detach().cpu().contiguous()
            return {"__tensor__": f"tensor.{len(tensors) - 1}"}
        if isinstance(value, Mapping):
            return {str(key): strip(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [strip(inner) for inner in value]
        return value.item() if isinstance(value, np.generic) else value

    plain = strip(state)
    arrays = {f"packed.{kind}": torch.from_numpy(np.concatenate(parts)) for kind, parts in packed.items()}
    (directory / f"{name}.json").write_text(json.dumps(plain), encoding="utf-8")
    save_file({**tensors, **arrays}, directory / f"{name}.safetensors")
    as_umask(directory / f"{name}.safetensors")
    for suffix in ("json", "safetensors"):
        sync(directory / f"{name}.{suffix}")
        stamp_later(directory / f"{name}.{suffix}")


def load_state(directory: Path, name: str) -> Any:
    """Read what `save_state` wrote; arrays come back as numpy arrays, tensors as CPU tensors."""
    tensors = load_file(directory / f"{name}.safetensors")
    packed = {key.removeprefix("packed."): t.numpy() for key, t in tensors.items() if key.startswith("packed.")}

    def revive(value: Any) -> Any:
        if isinstance(value, dict):
            if "__array__" in value:
                shape, start = tuple(value["shape"]), value["start"]
                flat = packed[value["__array__"]][start : start + int(np.prod(shape, dtype=np.int64))]
                return flat.reshape(shape).copy()
            if "__tensor__" in value:
                return tensors[value["__tensor__"]]
            return {key: revive(inner) for key, inner in value.items()}
        return [revive(inner) for inner in value] if isinstance(value, list) else value

    return revive(load_plain(directory, name))


def load_plain(directory: Path, name: str) -> Any:
    """Read the JSON part of a state, with placeholders where arrays are."""
    return json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, keep: int) -> None:
        """Look after `directory`, keeping the last `keep` checkpoints; leftovers of killed writers are removed."""
        self.directory, self._keep = directory, keep
        for replaced in directory.glob(".replaced_*"):  # a process was killed while it put another in the same place
            final = directory / replaced.name.removeprefix(".replaced_")
            shutil.rmtree(replaced) if final.exists() else replaced.rename(final)
        for leftover in directory.glob(".step_*"):
            forget_stamps(leftover)
            shutil.rmtree(leftover)

    @classmethod
    def create(cls, directory: Path, keep: int) -> CheckpointStore:
        """Make the directory, unless it is there, and look after it."""
        directory.mkdir(parents=True, exist_ok=True)
        return cls(directory, keep)

    def begin(self, step: int) -> Path:
        """Return the temporary directory in which a checkpoint's parts are to be written."""
        path = self.directory / f".step_{step:06d}.tmp"
        path.mkdir(exist_ok=True)
        return path

    def commit(self, step: int) -> Path:
        """Make a checkpoint whose parts are all written the latest good one; return its directory."""
        final, temporary = self.path(step), self.begin(step)
        seal(temporary, step)
        sync(temporary)
        replaced = self.directory / f".replaced_{final.name}"
        if final.exists():  # the same step again, after a resume: equal content
            final.rename(replaced)
        temporary.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
        (self.directory / WRITTEN).touch()
        sync(self.directory)
        for old in self.steps()[: -self._keep]:
            shutil.rmtree(self.path(old))
        return final

    def path(self, step: int) -> Path:
        """Return the directory of the checkpoint of a step."""
        return self.directory / f"step_{step:06d}"

    def set_aside(self, step: int) -> Path:
        """Rename a checkpoint that cannot be used, so that it neither counts nor is removed; return its new place."""
        place = next_directory(self.directory, f"damaged_step_{step:06d}")
        self.path(step).rename(place)
        return place

    def steps(self) -> list[int]:
        """Return the steps of all good checkpoints, oldest first."""
        matches = [_NAME.match(path.name) for path in self.directory.glob("step_*")]
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> Path | None:
        """Return the directory of the latest good checkpoint."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    @property
    def had_some(self) -> bool:
        """Whether a checkpoint was ever completed here; what was there since may have been deleted."""
        return (self.directory / WRITTEN).exists()
