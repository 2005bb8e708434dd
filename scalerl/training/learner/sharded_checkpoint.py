"""The checkpoint of several ranks by torch.distributed.checkpoint. Ranks and one process read each other's checkpoints.

Each rank writes its shard to the directory `learner` of a checkpoint. All files are on disk when `save_shards` returns,
before the rename that completes the checkpoint (training/learner/checkpoint.py). One process writes learner.safetensors
instead, which is faster (docs/decisions.md). `WholeReader` gives that file to torch's loader, which reads of it what a
rank holds.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.futures import Future

from scalerl.core.errors import ConfigError, raising
from scalerl.core.files import sync
from scalerl.core.manifest import stamp
from scalerl.training.learner.checkpoint import load_plain

LEARNER_NAME = "learner"
"""Directory inside a checkpoint, or the name of the files of one process."""


def save_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the shards of all ranks; every rank must call this with its shards.

    This writes one file per rank and a metadata file. The ranks wait for each other; the death of one raises an error.

    Args:
        directory: Directory of the checkpoint, on a file system that all ranks share.
        tensors: Tensors by name: sharded ones, and plain ones that are equal on all ranks.
    """
    path = directory / LEARNER_NAME
    path.mkdir(exist_ok=True)
    save(dict(tensors), storage_writer=FileSystemWriter(path, sync_files=True))
    for file in path.glob(f"__{dist.get_rank()}_*.distcp"):
        stamp(file)
    if dist.get_rank() == 0:  # the writers sync the files but not the directories
        sync(path)
        sync(directory)
    dist.barrier()


def reader_of(directory: Path) -> FileSystemReader:
    """Return the reader for the learner's part of a checkpoint, which ranks or one process have written."""
    path = directory / LEARNER_NAME
    return PlainReader(path) if path.is_dir() else WholeReader(directory)


def stored_tensors(directory: Path) -> dict[str, TensorStorageMetadata]:
    """Return the full sizes and types of the tensors of a checkpoint by name.

    Raises:
        ConfigError: The metadata is damaged.
    """
    entries = reader_of(directory).read_metadata().state_dict_metadata
    return {key: entry for key, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}


def read_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read saved tensors in place; every rank must call this with its shards, and the ranks wait for each other."""
    load(dict(tensors), storage_reader=reader_of(directory))


def read_whole(directory: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint of ranks on CPU; one process calls this, without a process group."""
    stored = stored_tensors(directory)
    tensors = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in stored.items()}
    with warnings.catch_warnings(action="ignore"):  # torch warns that it loads in one process
        load(tensors, storage_reader=reader_of(directory), no_dist=True)
    return tensors


class WholeReader(FileSystemReader):
    """Reads the files of one process (`save_state`) for torch's loader: each tensor is one chunk.

    Example: WholeReader(Path("runs/a/checkpoints/step_000100")).read_metadata()
    """

    def __init__(self, directory: Path) -> None:
        """Use a checkpoint's directory."""
        super().__init__(directory)
        self._directory = directory
        entries: dict[str, dict[str, str]] = load_plain(directory, LEARNER_NAME)
        self._places = {key: entry["__tensor__"] for key, entry in entries.items()}

    def _opened(self) -> Any:
        return safe_open(self._directory / f"{LEARNER_NAME}.safetensors", framework="pt")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return sizes and types, which are at the beginning of the file."""
        entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        with self._opened() as file:
            for key, place in self._places.items():
                part = file.get_slice(place)
                size = torch.Size(part.get_shape())
                chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
                entries[key] = TensorStorageMetadata(TensorProperties(DTYPES[part.get_dtype()]), size, [chunk])
        return Metadata(entries, storage_data={})

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the parts that a plan asks for."""
        with self._opened() as file:
            for item in plan.items:
                part = file.get_slice(self._places[item.storage_index.fqn])
                area = tuple(slice(a, a + n) for a, n in zip(item.storage_offsets, item.lengths, strict=True))
                target = planner.resolve_tensor(item).detach()
                target.copy_(part[area] if area else part[...])
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
"""Types of tensors by their names in safetensors."""

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
            metadata = _Unpickler(pickled).load()
            if not isinstance(metadata, Metadata):
                raise pickle.UnpicklingError(f"it is a {type(metadata).__name__}")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
