"""Reads the checkpoint of several ranks without running what its description holds, which torch writes by pickle."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from scalerl.config.base import ConfigError

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
"""What such a description may name, by module: records, sizes, types and paths, whose making has no effect."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a name of KNOWN; a dotted one, which could reach anything, is none of them."""
        if name not in KNOWN.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


class PlainReader(FileSystemReader):
    """FileSystemReader whose description may hold plain records alone; tensors are read with weights_only already.

    Example: PlainReader(Path("runs/a/checkpoints/step_000100/learner")).read_metadata()
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the description of the tensors.

        Raises:
            ConfigError: it is damaged, or names something that is no part of a checkpoint.
        """
        file = Path(self.path) / ".metadata"
        try:
            found = _Unpickler(io.BytesIO(file.read_bytes())).load()
            if not isinstance(found, Metadata):
                raise pickle.UnpicklingError(f"it is a {type(found).__name__}")
        except OSError:
            raise
        except Exception as error:  # a damaged pickle raises whatever its bytes lead to
            raise ConfigError(
                f"{file}: is no description of a checkpoint ({error}); it was not run. Resume from an earlier "
                "checkpoint: remove this one's directory"
            ) from None
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found
