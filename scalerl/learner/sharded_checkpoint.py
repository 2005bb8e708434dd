"""The checkpoint of several ranks by torch.distributed.checkpoint, which any number of ranks can read.

Each rank writes its shard to the directory `learner` of a checkpoint. All files are on disk when `save_shards` returns,
before the rename that completes the checkpoint (learner/checkpoint.py).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from scalerl.core.errors import ConfigError, raising
from scalerl.core.files import sync
from scalerl.core.manifest import stamp

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


KNOWN = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "pathlib": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "collections": {"OrderedDict"},
}  # fmt: skip
"""Names that the metadata may contain, by module: records, sizes, types and paths without side effects."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return an object named in KNOWN; this excludes dotted names, which could reach anything."""
        if name not in KNOWN.get(module, ()):
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return super().find_class(module, name)


class PlainReader(FileSystemReader):
    """FileSystemReader that accepts only plain records in the metadata; torch reads tensors with weights_only.

    Example: PlainReader(Path("runs/a/checkpoints/step_000100/learner")).read_metadata()
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of the tensors.

        Raises:
            ConfigError: The metadata is damaged, or contains a name that does not belong in a checkpoint.
        """
        file = Path(self.path) / ".metadata"
        pickled = io.BytesIO(file.read_bytes())

        def problem(error: Exception) -> str:
            return (
                f"{file}: is not the metadata of a checkpoint ({error}); none of it was run. Remove the directory of "
                "this checkpoint to resume from an earlier one"
            )

        with raising(ConfigError, problem):
            found = _Unpickler(pickled).load()
            if not isinstance(found, Metadata):
                raise pickle.UnpicklingError(f"it is a {type(found).__name__}")
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found
