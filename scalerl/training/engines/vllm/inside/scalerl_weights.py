"""Weight transfer through a directory of safetensors files: the part that runs inside vLLM's worker processes.

vLLM loads this file with `--worker-extension-cls scalerl_weights.WorkerExtension`. Loading registers the backend that
`--weight-transfer-config` names. The file imports nothing from scalerl, so that a server in a separate environment
needs only this directory on PYTHONPATH. Written for vLLM 0.32 (`vllm/distributed/weight_transfer/base.py`).
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
    """Empty: the first update needs no preparation."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One version.

    Example: UpdateInfo(path="/runs/a/weights/version_00000012.safetensors")
    """

    path: str
    """File with all weights by checkpoint name; each worker reads the part that it needs."""


class DirectoryEngine(WeightTransferEngine):  # type: ignore[misc]
    """Loads a version's file into the running model, in place; running sequences keep their keys and values."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Do nothing: the path comes with each update."""

    def start_weight_update(self) -> None:
        """Prepare every layer for reloading."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)
        before_update_on_cpu(self.model, self.device)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load a version; unlike in the base class, this also works without an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load a version's file.

        Raises:
            RuntimeError: The file has no weights for a layer, which would silently keep its old weights.
        """
        from vllm.model_executor.layers.attention import is_deferred_attention_layer
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        self.model.load_weights(_tensors(update_info.path, self.device))
        missing = [
            name
            for name, layer in self.model.named_modules()
            if layer._parameters and not is_deferred_attention_layer(layer) and not _is_tied(layer, self.model_config)
            # None: the layer is complete and in use again
            if get_layerwise_info(layer).load_numel_total is not None and get_layerwise_info(layer).load_numel == 0
        ]
        if missing:
            raise RuntimeError(f"{update_info.path} has no weights for {', '.join(missing[:5])}")

    def finish_weight_update(self) -> None:
        """Finish reloading, so that the layers can be used again."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        after_update_on_cpu(self.model, self.model_config, self.device)

    def shutdown(self) -> None:
        """Do nothing: no resources are held."""


def before_update_on_cpu(model: torch.nn.Module, device: torch.device) -> None:
    """Let vLLM make the kernels of experts again: it packs experts only then, and would multiply with unpacked ones."""
    for layer in _cpu_experts(model, device):
        layer.quant_method.moe_kernel = None


def after_update_on_cpu(model: torch.nn.Module, model_config: Any, device: torch.device) -> None:
    """Pack what vLLM's reloading leaves as it was."""
    layer: Any
    for layer in _cpu_experts(model, device):
        if layer.quant_method.moe_kernel is None:  # nothing was loaded: the old, packed weights are back
            layer.quant_method._init_moe_kernel(layer)
    for layer in model.modules():
        # on CPU, vLLM multiplies with a packed copy of the head, and packs only what was loaded by name. A tied head
        # has no name; with the old copy, a replay differs by about 1 nat.
        if device.type == "cpu" and _is_tied(layer, model_config):
            layer.quant_method.process_weights_after_loading(layer)


def _cpu_experts(model: torch.nn.Module, device: torch.device) -> list[Any]:
    """Return the layers of experts whose weights vLLM packs; none on GPUs."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    layers = model.modules() if device.type == "cpu" else ()
    return [layer for layer in layers if isinstance(getattr(layer, "quant_method", None), UnquantizedFusedMoEMethod)]


def _is_tied(layer: torch.nn.Module, model_config: Any) -> bool:
    """Return whether a layer is an LM head that shares the embedding's weights."""
    tied = getattr(model_config.hf_text_config, "tie_word_embeddings", False)
    return bool(tied) and type(layer).__name__ == "ParallelLMHead"


def _tensors(path: str, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt", device=str(device)) as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            yield name, file.get_tensor(name)


class WorkerExtension:
    """Adds nothing to vLLM's worker; naming it makes every worker process load this file."""


WeightTransferEngineFactory.register_engine(BACKEND, DirectoryEngine)
