"""Tiny random models of several architectures, for tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers

COMMON = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # large enough that a wrong mask or stale weight shows in every log-probability
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 0,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3-untied": ("Qwen3", {"tie_word_embeddings": False}),
    "qwen3-eager": ("Qwen3", {"attn_implementation": "eager", "tie_word_embeddings": True}),
    "qwen3-many-heads": ("Qwen3", {"num_attention_heads": 6, "num_key_value_heads": 6, "tie_word_embeddings": True}),
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "tie_word_embeddings": True},
    ),
    "qwen3-moe-untied": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "tie_word_embeddings": False},
    ),
    "mistral-sliding": ("Mistral", {"sliding_window": 5}),
    "gemma3-mixed": ("Gemma3Text", {"sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}),
    "gemma2-softcap": ("Gemma2", {"sliding_window": 5, "query_pre_attn_scalar": 8, "attn_implementation": "eager"}),
    "granite-scaled": ("Granite", {"logits_scaling": 4.0}),
}


def tiny_model(name: str, seed: int = 0, **changes: Any) -> Any:
    """Return a random model of one architecture."""
    family, special = ARCHITECTURES[name]
    settings = {**COMMON, **special, **changes}
    attention = settings.pop("attn_implementation", None)
    config = getattr(transformers, f"{family}Config")(**settings)
    if attention:
        config._attn_implementation = attention
    torch.manual_seed(seed)
    name = "Gemma3ForCausalLM" if family == "Gemma3Text" else f"{family}ForCausalLM"
    return getattr(transformers, name)(config).eval()
