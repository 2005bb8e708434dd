"""Safe reading of the checkpoint of several ranks, whose metadata torch writes as a pickle."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from scalerl.core.errors import ConfigError, raising

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
        text = io.BytesIO(file.read_bytes())

        def problem(error: Exception) -> str:
            return (
                f"{file}: is not the metadata of a checkpoint ({error}); none of it was run. Remove the directory of "
                "this checkpoint to resume from an earlier one"
            )

        with raising(ConfigError, problem):
            found = _Unpickler(text).load()
            if not isinstance(found, Metadata):
                raise pickle.UnpicklingError(f"it is a {type(found).__name__}")
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found
