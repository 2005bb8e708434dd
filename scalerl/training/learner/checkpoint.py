"""Atomic checkpoints of nested state.

Arrays are saved in one safetensors file, everything else in a JSON file next to it. Prompts are not saved: a row may
hold what JSON cannot, and JSON turns integer keys into text and tuples into lists. A checkpoint refers to them, and a
resume reads their rows again (inputs.py). A checkpoint is written under a temporary name, sealed by a manifest, fsynced
and renamed; the last good checkpoint is never modified.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scalerl.core.files import as_umask, next_directory, read_json, sync, write_whole
from scalerl.core.manifest import seal, stamp
from scalerl.core.run_files import best_step, saved_steps
from scalerl.core.types import Prompt

TRAINER_FORMAT = 5
"""Format of the trainer's part; increase it when older checkpoints can no longer be resumed."""

WRITTEN_NAME = ".written"
"""File that marks a run which has had a checkpoint; it contains the step of the last one."""


def save_state(directory: Path, name: str, state: Mapping[str, Any]) -> None:
    """Write `state` to name.json and name.safetensors, and force both to disk."""
    directory.mkdir(exist_ok=True)  # without parents, so that a moved run directory is not created again
    # one packed tensor per type, because a generator's state has thousands of small arrays
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
        if isinstance(value, Prompt):
            return {"__prompt__": value.reference}
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
        stamp(directory / f"{name}.{suffix}")


def load_state(directory: Path, name: str, prompts: Mapping[tuple[str, str], Prompt] | None = None) -> Any:
    """Read a state written by `save_state`; arrays become numpy arrays, tensors become CPU tensors.

    Args:
        directory: Directory of the checkpoint.
        name: Name of the part.
        prompts: The prompts of `references`, by their reference.
    """
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
            if "__prompt__" in value:
                return (prompts or {})[tuple(value["__prompt__"])]
            return {key: revive(inner) for key, inner in value.items()}
        return [revive(inner) for inner in value] if isinstance(value, list) else value

    return revive(load_plain(directory, name))


def load_plain(directory: Path, name: str) -> Any:
    """Read the JSON part of a state, with placeholders for arrays and prompts."""
    return read_json(directory / f"{name}.json", most=None)


def references(plain: Any) -> Iterator[tuple[str, str]]:
    """Yield the references to prompts in a result of `load_plain`."""
    if isinstance(plain, dict) and "__prompt__" in plain:
        task, id = plain["__prompt__"]
        yield task, id
    elif isinstance(plain, dict | list):
        for inner in plain.values() if isinstance(plain, dict) else plain:
            yield from references(inner)


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, keep: int, keep_every: int | None = None) -> None:
        """Manage a directory of checkpoints; remove parts that a killed run left.

        Args:
            directory: The directory.
            keep: Number of newest checkpoints that are kept. The best one is kept too.
            keep_every: Steps between checkpoints that are kept for good; None: none are.
        """
        self.directory, self._keep, self._keep_every = directory, keep, keep_every
        for replaced in directory.glob(".replaced_*"):  # a process was killed while it replaced this checkpoint
            final = directory / replaced.name.removeprefix(".replaced_")
            shutil.rmtree(replaced) if final.exists() else replaced.rename(final)
        for leftover in directory.glob(".step_*"):
            shutil.rmtree(leftover)

    def begin(self, step: int) -> Path:
        """Return the temporary directory for the parts of a checkpoint."""
        path = self.directory / f".step_{step:06d}.tmp"
        path.mkdir(exist_ok=True)
        return path

    def commit(self, step: int, rates: Mapping[int, float] | None = None, evaluating: int | None = None) -> Path:
        """Complete a checkpoint whose parts are all written, and return its directory; then remove old ones.

        Args:
            step: Step of the checkpoint.
            rates: Held-out pass rates by step. The checkpoint with the highest one is kept too; None: none is known.
            evaluating: Step whose pass rate is not known yet, and may be the highest; None: there is none.
        """
        final, temporary = self.path(step), self.begin(step)
        seal(temporary, step)
        sync(temporary)
        replaced = self.directory / f".replaced_{final.name}"
        if final.exists():  # the same step was written before a resume, with equal content
            final.rename(replaced)
        temporary.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
        write_whole(self.directory / WRITTEN_NAME, f"{step}\n")  # a new file: a study may share the old one
        sync(self.directory)
        best = best_step(self.steps(), rates or {})
        for old in self.steps()[: -self._keep]:
            if old not in (best, evaluating) and not (self._keep_every and old % self._keep_every == 0):
                self.remove(old)
        return final

    def remove(self, step: int) -> None:
        """Remove a checkpoint under another name, so that a kill leaves no half of it in the list."""
        half = self.directory / f".{self.path(step).name}.removed"  # cleared at the next start if this is killed
        self.path(step).rename(half)
        shutil.rmtree(half)

    def path(self, step: int) -> Path:
        """Return the directory of the checkpoint of a step."""
        return self.directory / f"step_{step:06d}"

    def set_aside(self, step: int) -> Path:
        """Rename an unusable checkpoint, so that it is neither used nor removed, and return its new path."""
        place = next_directory(self.directory, f"damaged_step_{step:06d}")
        self.path(step).rename(place)
        return place

    def remove_after(self, step: int) -> bool:
        """Remove the checkpoints of later steps, newest first, so that a kill leaves those that its rows agree with.

        Returns:
            Whether a later checkpoint had been written, even if it was damaged or removed since: the run goes back.
        """
        written = max([self._last_written(), *self.steps()])
        for later in reversed([saved for saved in self.steps() if saved > step]):
            self.remove(later)
        write_whole(self.directory / WRITTEN_NAME, f"{step}\n")  # a new file: a study may share the old one
        sync(self.directory)
        return written > step

    def _last_written(self) -> int:
        with suppress(OSError, ValueError):  # a kill may leave it empty
            return int((self.directory / WRITTEN_NAME).read_text(encoding="utf-8"))
        return 0

    def steps(self) -> list[int]:
        """Return the steps of all good checkpoints, oldest first."""
        return saved_steps(self.directory)

    def latest(self) -> Path | None:
        """Return the directory of the latest good checkpoint."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None
