"""The checkpoint of several ranks by torch.distributed.checkpoint, which any number of ranks can read.

Each rank writes its shard to the directory `learner` of a checkpoint. All files are on disk when `save_shards` returns,
before the rename that completes the checkpoint (training/checkpoint.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from scalerl.core.errors import ConfigError
from scalerl.core.files import sync
from scalerl.training.learner.plain_reader import PlainReader
from scalerl.training.manifest import stamp

NAME = "learner"
"""Directory inside a checkpoint."""


def save_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the shards of all ranks; every rank must call this with its shards.

    This writes one file per rank and a metadata file. The ranks wait for each other; the death of one raises an error.

    Args:
        directory: Directory of the checkpoint, on a file system that all ranks share.
        tensors: Tensors by name: sharded ones, and plain ones that are equal on all ranks.
    """
    path = directory / NAME
    path.mkdir(exist_ok=True)
    save(dict(tensors), storage_writer=FileSystemWriter(path, sync_files=True))
    for own in path.glob(f"__{dist.get_rank()}_*.distcp"):
        stamp(own)
    if dist.get_rank() == 0:  # the writers sync the files but not the directories
        sync(path)
        sync(directory)
    dist.barrier()


def stored_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the full shapes of the tensors that ranks have saved, by name.

    Raises:
        ConfigError: The checkpoint was written by a single process.
    """
    path = directory / NAME
    if not (path / ".metadata").exists():
        raise ConfigError(
            f"{directory}: was written by one process, and several trainer ranks cannot read it; "
            "allowed: placement.trainer_ranks = 1 to resume it, or a new run from its exported weights: "
            f"scalerl train --model {directory.parent.parent}/model"
        )
    entries = PlainReader(path).read_metadata().state_dict_metadata
    return {key: tuple(entry.size) for key, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}


def read_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read saved tensors in place; every rank must call this with its shards, and the ranks wait for each other."""
    load(dict(tensors), storage_reader=PlainReader(directory / NAME))
