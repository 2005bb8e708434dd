"""Low-rank adapters: peft's layers are trained; engines get them, or merged weights as exports do.

The weights of the base model never change. Every merge creates a copy, so rounding does not accumulate over updates, as
it would if adapters were merged and unmerged in place.

Legend: R rank, I inputs and O outputs of a linear module.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.core.errors import ConfigError, nearest
from scalerl.core.files import as_umask
from scalerl.training.config.model import Lora
from scalerl.training.models.loading import save_model
from scalerl.training.models.policy import Policy
from scalerl.training.models.weights import checkpoint_weights, plain_model

ADAPTER = "default"
"""The adapter name that peft uses by default."""


class LoraPolicy(Policy):
    """A trained policy whose model has adapters; all other weights are frozen."""

    def __init__(self, policy: Policy, lora: Lora, seed: int) -> None:
        """Add adapters to a policy's model in place. B starts at 0, so the outputs do not change.

        Args:
            policy: The policy to adapt; it must not be used afterwards.
            lora: Rank, scale and targets.
            seed: Seed of the matrices A.

        Raises:
            ConfigError: peft is missing, or a target is not a linear module of the decoder layers.
        """
        peft = _peft()
        settings = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=0.0,
            target_modules=target_names(policy, lora),
            fan_in_fan_out=any(_is_conv1d(module) for _, module in linear_modules(policy)),
            task_type="CAUSAL_LM",
            base_model_name_or_path=policy.model.name_or_path or None,
        )
        super().__init__(policy.model, fp32_head=policy.rule.fp32)
        self.adapter_config = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with warnings.catch_warnings(category=UserWarning, action="ignore"):  # of modules of both kinds
                peft.inject_adapter_in_model(settings, self.model, ADAPTER)
        if self.device.type == "cpu":
            from scalerl.training.models.cpu.onednn import accelerate

            accelerate(self.model)  # the adapters' products too
        self._layers: dict[str, Any] = {
            f"{name}.base_layer.weight": module
            for name, module in self.model.named_modules()
            if isinstance(module, peft.tuners.lora.LoraLayer)
        }
        frozen, adapter_params = self.sizes.matmul_params, sum(parameter.numel() for _, parameter in self.trained())
        self.sizes = dataclasses.replace(self.sizes, matmul_params=frozen + adapter_params, frozen_params=frozen)

    def weights(self, gather: Callable[[Tensor], Tensor] = Tensor.detach) -> Iterator[tuple[str, Tensor]]:
        """Yield merged weights by the names of the model without adapters, tied ones once, in a fixed order.

        Each merged tensor is computed when the iterator reaches it: W + alpha / rank x B A, rounded once to the type
        of W.

        Args:
            gather: Function that returns a weight as a whole, if the model is sharded.
        """
        for name, parameter in self.model.named_parameters():
            if name in self._layers:
                yield name.replace(".base_layer.", "."), _merged(self._layers[name], parameter, gather)
            elif not parameter.requires_grad:
                yield name.replace(".base_layer.", "."), gather(parameter)  # the bias of an adapted module

    def adapters(self, gather: Callable[[Tensor], Tensor] = Tensor.detach) -> Iterator[tuple[str, Tensor]]:
        """Yield A and B of every adapter by peft's names in files, for an engine that has the model already.

        Args:
            gather: Function that returns a weight as a whole, if the model is sharded.
        """
        for name, parameter in self.trained():
            # peft expects the names of its wrapper around the model
            yield f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}", gather(parameter)

    def check_names(self) -> None:
        """Refuse adapters of modules whose weights have other names or shapes on disk, as engines know them.

        Raises:
            ConfigError: Only merged weights can be sent.
        """
        for name, layer in self._layers.items():
            plain, shape = name.replace(".base_layer.", "."), layer.base_layer.weight.shape
            stored = dict(checkpoint_weights(self.model, [(plain, torch.empty(shape, device="meta"))]))
            if {key: weight.shape for key, weight in stored.items()} != {plain: shape} or _is_conv1d(layer.base_layer):
                raise ConfigError(
                    f"rollouts.weights: got 'adapters' for {type(self.model).__name__}, in whose files {plain} is "
                    f"{', '.join(stored)}; allowed: 'directory' or 'nccl', which send merged weights"
                )

    def export(self, directory: Path) -> None:
        """Write the merged weights as a Hugging Face model, which is read again and compared (`save_model`)."""
        save_model(plain_model(self.model, {name: weight.cpu() for name, weight in self.weights()}), directory)

    def save_adapter(self, directory: Path, adapters: Mapping[str, Tensor] | None = None) -> None:
        """Write the adapters in peft's format, which `PeftModel.from_pretrained(model, directory)` reads.

        Args:
            directory: Directory to write.
            adapters: What `adapters` yields, if the model is sharded.
        """
        from safetensors.torch import save_file

        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in (adapters or dict(self.adapters())).items()}
        save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        dataclasses.replace(self.adapter_config, inference_mode=True).save_pretrained(str(directory))
        as_umask(directory)


def _merged(layer: Any, weight: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
    """Return W + alpha / rank x B A in the type of W, [O, I], or [I, O] for a Conv1D.

    peft would also round the product before the sum.
    """
    weight = gather(weight)
    a_RI = gather(layer.lora_A[ADAPTER].weight).float()
    b_OR = gather(layer.lora_B[ADAPTER].weight).float()
    change_OI = float(layer.scaling[ADAPTER]) * (b_OR @ a_RI)
    return (weight.float() + (change_OI.T if _is_conv1d(layer.base_layer) else change_OI)).to(weight.dtype)


def _is_conv1d(module: Any) -> bool:
    """Return whether a module is GPT-2's linear module, whose weight is [I, O]."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def linear_modules(policy: Policy) -> list[tuple[str, Any]]:
    """Return the linear modules of the decoder layers with their names."""
    head = policy.model.get_output_embeddings()  # its weight is used outside its module
    modules = [(name, module) for name, module in policy.model.named_modules() if module is not head]
    return [(name, module) for name, module in modules if isinstance(module, nn.Linear) or _is_conv1d(module)]


def target_names(policy: Policy, lora: Lora) -> list[str]:
    """Return the name suffixes of the modules that get an adapter.

    Args:
        policy: A policy whose model has no adapters yet.
        lora: The configured targets.

    Raises:
        ConfigError: A target matches no linear module of the decoder layers, or the targets are "all-linear" for a
            mixture, whose experts are not linear modules.
    """
    linear = [name for name, _ in linear_modules(policy)]
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in linear))
    if not ends:
        raise ConfigError(
            f"model.lora: {type(policy.model).__name__} has no linear modules that could have adapters; allowed: "
            "training of all weights, without model.lora"
        )
    allowed = f"allowed: 'all-linear', or a list of {', '.join(ends)}"
    if lora.targets == "all-linear":
        if policy.sizes.experts:
            raise ConfigError(
                f"model.lora.targets: got 'all-linear' for the mixture {type(policy.model).__name__}, whose experts "
                f"are not linear modules and cannot have adapters; allowed: a list of {', '.join(ends)}"
            )
        return ends
    for target in lora.targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            others = [name for name, _ in policy.model.named_modules() if f".{name}".endswith(f".{target}")]
            hint = f", which is no linear module of the decoder layers ({others[0]})" if others else ""
            raise ConfigError(f"model.lora.targets: got {target!r}{hint or nearest(target, ends)}; {allowed}")
    return list(lora.targets)


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise ConfigError(
            "model.lora: adapters need a package that is not installed: pip install 'scalerl[lora]'"
        ) from None
    return peft
