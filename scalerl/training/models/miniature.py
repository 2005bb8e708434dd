"""A random model in miniature: the architecture and options of a model, with few layers and small matrices."""

from __future__ import annotations

import copy
from typing import Any

import torch

from scalerl.core.errors import outcome
from scalerl.training.config.model import HuggingFaceModel
from scalerl.training.models.loading import load_config

VOCABULARY = 512
"""Tokens of a miniature."""

LARGEST_SIZES = {
    "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "q_lora_rank": 128, "kv_lora_rank": 128,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "max_window_layers": 1, "sliding_window": 64,
}  # fmt: skip
"""Largest values of fields, by their names in transformers."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok")
"""Fields set to 4: every token uses all experts, because rounding changes a router's choice."""


def miniature(model: object, parallel: int = 1) -> tuple[Any, str]:
    """Return a random FP32 model and a name for it; a Qwen3 if there is no configuration that can be made smaller.

    The size of a head and the ratio of query heads to key-value heads are the model's, because kernels depend on them.

    Args:
        model: `model` of a configuration; a name on the hub is looked up in the cache of this machine.
        parallel: Number that divides the heads.
    """
    from transformers import Qwen3Config

    if isinstance(model, HuggingFaceModel):
        attempt = outcome(lambda: _small(load_config(model.path, model.revision, local_files_only=True)[0], parallel))
        if not attempt.exception():
            return attempt.result(), type(attempt.result()).__name__
    small = _small(Qwen3Config(num_attention_heads=16, num_key_value_heads=8, head_dim=128), parallel)
    return small, "Qwen3ForCausalLM" + (" (in place of model.path)" if isinstance(model, HuggingFaceModel) else "")


def _small(config: Any, parallel: int) -> Any:
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(config)
    heads, keys = config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    own_keys = 1 if keys == 1 else 2 * parallel
    own_heads = own_keys * min(heads // keys, 4)
    changes: dict[str, Any] = {"num_attention_heads": own_heads, "num_key_value_heads": own_keys}
    if getattr(config, "head_dim", None) is None:
        changes["hidden_size"] = own_heads * size
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    changes |= {"num_hidden_layers": max(2, len(kinds))}
    if kinds:
        changes["layer_types"] = kinds * (1 if len(kinds) > 1 else 2)
    for name, most in LARGEST_SIZES.items():
        if isinstance(value := getattr(config, name, None), int):
            changes.setdefault(name, min(value, most))
    changes |= {name: 4 for name in EXPERTS if getattr(config, name, None)}
    changes |= {
        "vocab_size": VOCABULARY,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 1,
        "initializer_range": 0.1,
    }
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model(input_ids=torch.tensor([[2, 3, 4]]))  # some architectures have more sizes that depend on each other
    return model
