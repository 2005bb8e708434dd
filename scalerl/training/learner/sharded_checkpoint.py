"""The checkpoint of several ranks: torch.distributed.checkpoint, each rank its share, readable by any number of ranks.

It lies in the directory `learner` of a checkpoint. All files are on disk when `save_shards` returns, so that the rename
that makes the checkpoint count (training/checkpoint.py) can follow.
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

from scalerl.config.base import ConfigError
from scalerl.files import sync
from scalerl.training.learner.plain_reader import PlainReader
from scalerl.training.manifest import stamp

NAME = "learner"
"""Directory inside a checkpoint."""


def save_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the shares of all ranks; every rank calls it with its own.

    Consumes: the shares. Produces: one file a rank and one that describes them, on disk.
    Waits for: the other ranks. Unblocked by: them; the death of one is an error.

    Args:
        directory: of the checkpoint, on a file system that all ranks see.
        tensors: sharded ones, and plain ones that are equal on all ranks, by name.
    """
    path = directory / NAME
    path.mkdir(exist_ok=True)
    save(dict(tensors), storage_writer=FileSystemWriter(path, sync_files=True))
    for own in path.glob(f"__{dist.get_rank()}_*.distcp"):
        stamp(own)
    if dist.get_rank() == 0:  # the files are synced by their writers, their names are not
        sync(path)
        sync(directory)
    dist.barrier()


def stored_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the whole shapes of the tensors that ranks have saved, by name.

    Raises:
        ConfigError: the checkpoint is of one process.
    """
    path = directory / NAME
    if not (path / ".metadata").exists():
        raise ConfigError(
            f"{directory}: was not written by several trainer ranks, and they cannot read what one process wrote; "
            "allowed: placement.trainer_ranks = 1 to resume it; or a new run from its weights, once exported: "
            f"scalerl train --model {directory.parent.parent}/model"
        )
    entries = PlainReader(path).read_metadata().state_dict_metadata
    return {key: tuple(entry.size) for key, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}


def read_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read what ranks have saved into tensors' own memory; every rank calls it with its own shares.

    Consumes: the files. Produces: the values. Waits for: the other ranks. Unblocked by: them.
    """
    load(dict(tensors), storage_reader=PlainReader(directory / NAME))
