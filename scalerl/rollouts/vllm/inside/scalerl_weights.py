"""Weight transfer through a directory of safetensors files: the part that runs inside vLLM's worker processes.

vLLM loads this file by `--worker-extension-cls scalerl_weights.WorkerExtension`, which registers the backend under the
name that `--weight-transfer-config` then asks for. The file imports nothing of scalerl, so that a server in an
environment of its own needs only the directory of this file on PYTHONPATH. Written against vLLM 0.32
(`vllm/distributed/weight_transfer/base.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

BACKEND = "scalerl_directory"
"""Name of the backend in `--weight-transfer-config`."""


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on before the first update."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One version.

    Example: UpdateInfo(path="/runs/a/weights/version_00000012.safetensors")
    """

    path: str
    """File with every weight by its checkpoint name; each worker reads what it needs of it."""


class DirectoryEngine(WeightTransferEngine):  # type: ignore[misc]
    """Reads a version's file into the running model, in place; the keys and values of running sequences stay."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Do nothing: the path comes with each update."""

    def start_weight_update(self) -> None:
        """Prepare every layer to be loaded again."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load a version; the base class would wait for an accelerator, which a CPU is not."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load a version's file.

        Raises:
            RuntimeError: the file has nothing for a layer, which would silently stay old.
        """
        from vllm.model_executor.layers.attention import is_deferred_attention_layer
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        self.model.load_weights(_tensors(update_info.path, self.device))
        missing = [
            name
            for name, layer in self.model.named_modules()
            if layer._parameters and not is_deferred_attention_layer(layer) and not self._is_tied(layer)
            # None: the layer is complete and back at work
            if get_layerwise_info(layer).load_numel_total is not None and get_layerwise_info(layer).load_numel == 0
        ]
        if missing:
            raise RuntimeError(f"{update_info.path} has no weights for {', '.join(missing[:5])}")

    def finish_weight_update(self) -> None:
        """Put the layers back to work."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            self._repack_tied_head()

    def shutdown(self) -> None:
        """Nothing is held."""

    def _repack_tied_head(self) -> None:
        """Pack a tied LM head again.

        On CPU vLLM keeps a packed copy of the head for its products. A reload packs what was loaded by name, and a tied
        head has no name of its own: without this it silently multiplies with the old weights (0.32; a replay differs by
        about 1 nat).
        """
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        for module in self.model.modules():
            if self._is_tied(module):
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    def _is_tied(self, layer: torch.nn.Module) -> bool:
        """Return whether a layer is an LM head that shares the embedding's weights."""
        tied = getattr(self.model_config.hf_text_config, "tie_word_embeddings", False)
        return bool(tied) and type(layer).__name__ == "ParallelLMHead"


def _tensors(path: str, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt", device=str(device)) as file:
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            yield name, file.get_tensor(name)


class WorkerExtension:
    """Adds nothing to vLLM's worker: it is named so that this file is loaded, in every worker process."""


WeightTransferEngineFactory.register_engine(BACKEND, DirectoryEngine)
