"""Tiny random models of several architectures, for tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
import transformers

COMMON = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.3,
    "eos_token_id": 1, "bos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
"""The range is large enough that a wrong mask or a stale weight shows in every log-probability."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_EXPERTS = {**EXPERTS, "moe_intermediate_size": 24}
SLIDING = {"sliding_window": 5, "query_pre_attn_scalar": 8}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}  # fmt: skip
"""Attention with queries and keys of 12 + 8 and values of 10, over latents of 16."""
SHARED_EXPERT = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
GEMMA4 = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
    "sliding_window": 5, "global_head_dim": 16, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 48,
}  # fmt: skip
TWO_ROPES = {
    **SLIDING, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "num_hidden_layers": 3,
    "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0}},
}  # fmt: skip
AFMOE = {
    **QWEN3_EXPERTS, "num_dense_layers": 1, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
CAPPED = {**SLIDING, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
"""Low enough that leaving the caps out shows."""

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-sliding": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3-untied": ("Qwen3", {"tie_word_embeddings": False}),
    "qwen3-eager": ("Qwen3", {"attn_implementation": "eager", "tie_word_embeddings": True}),
    "qwen3-many-heads": ("Qwen3", {"num_attention_heads": 6, "num_key_value_heads": 6, "tie_word_embeddings": True}),
    "qwen3-moe": ("Qwen3Moe", {**QWEN3_EXPERTS, "tie_word_embeddings": True}),
    "qwen3-moe-untied": ("Qwen3Moe", {**QWEN3_EXPERTS, "tie_word_embeddings": False}),
    "qwen2-moe": ("Qwen2Moe", {**QWEN3_EXPERTS, "shared_expert_intermediate_size": 40, "tie_word_embeddings": True}),
    "qwen3-wide-heads": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),  # 4 heads of 16 in a width of 32
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-sliding": ("Mistral", {"sliding_window": 5}),
    "gemma3-mixed": ("Gemma3Text", {**SLIDING, "sliding_window_pattern": 2}),
    "gemma2-softcap": ("Gemma2", CAPPED),
    "gemma3-two-ropes": ("Gemma3Text", TWO_ROPES),
    "granite-scaled": ("Granite", {"logits_scaling": 4.0}),
    "olmo2": ("Olmo2", {}),
    "phi3": ("Phi3", {}),
    "phi3-sliding": ("Phi3", {"sliding_window": 5}),
    "opt": ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "biogpt": ("BioGpt", {"scale_embedding": False}),
    "seed-oss": ("SeedOss", {}),
    "gpt-bigcode": ("GPTBigCode", {}),
    "gpt2": ("GPT2", {"n_inner": 48}),
    "phimoe": ("Phimoe", LOCAL_EXPERTS),
    "mixtral": ("Mixtral", LOCAL_EXPERTS),
    "olmoe": ("Olmoe", EXPERTS),
    "olmo-clipped": ("Olmo", {"clip_qkv": 0.5}),  # in place
    "olmoe-clipped": ("Olmoe", {**EXPERTS, "clip_qkv": 0.5}),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}}),
    "gemma4": ("Gemma4Text", GEMMA4),
    "diffllama": ("DiffLlama", {}),
    "afmoe": ("Afmoe", AFMOE),
    "doge": ("Doge", {}),
    "falcon": ("Falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon-alibi": ("Falcon", {"alibi": True, "multi_query": False}),
    "bloom": ("Bloom", {}),
    "xglm": ("XGLM", {"ffn_dim": 48, "init_std": 0.3}),
    "deepseek-v2": ("DeepseekV2", {**LATENT, **SHARED_EXPERT, "q_lora_rank": None}),
    "deepseek-v3": ("DeepseekV3", {**LATENT, **SHARED_EXPERT}),
    "mistral4": ("Mistral4", {**LATENT, **SHARED_EXPERT}),
    "youtu": ("Youtu", {**LATENT, "pad_token_id": None}),  # transformers zeroes the row of a padding token
    "gpt-oss": (
        "GptOss",
        {**LOCAL_EXPERTS, "sliding_window": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    ),
}


def realistic_model() -> Any:
    """Return a bf16 Llama that rounds as a real model does: 8 layers, and a head as sharp as one that was trained.

    Its samples have -1.8 nats each, other tokens -19. Two kernels differ by 0.07 nats on average at the former, and by
    0.37 at one of the latter; SmolLM2-135M: -3.1, -12, 0.03 and 0.25.
    """
    torch.manual_seed(0)
    sizes = {"vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
             "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}  # fmt: skip
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=False)).eval()
    with torch.no_grad():
        model.lm_head.weight *= 3
    return model.bfloat16()


def tiny_model(name: str, seed: int = 0, **changes: Any) -> Any:
    """Return a random model of one architecture."""
    family, special = ARCHITECTURES[name]
    make = getattr(transformers, f"{family}Config")
    known = {field.name for field in fields(make)} | set(make.attribute_map)
    settings = {**{name: value for name, value in COMMON.items() if name in known}, **special, **changes}
    if "kv_lora_rank" in special:
        settings.pop("head_dim", None)
    attention = settings.pop("attn_implementation", None)
    config = make(**settings)
    if attention:
        config._attn_implementation = attention
    torch.manual_seed(seed)
    name_of_class = f"{family.removesuffix('Text')}{'LMHeadModel' if family == 'GPT2' else 'ForCausalLM'}"
    model = getattr(transformers, name_of_class)(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("sinks", "self_attn.A")):  # transformers does not initialize the first and zeroes the second
            torch.nn.init.normal_(parameter)
    return model
