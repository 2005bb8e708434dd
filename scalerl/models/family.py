"""Check of the architecture. Decoders are supported if keys and values are their only state from earlier tokens.

There is no list of model names. A model is checked by its configuration and by the attributes that transformers sets on
its class; `check_head` and `check_engine` then compare numbers.
"""

from __future__ import annotations

from typing import Any

from scalerl.core.errors import ConfigError

ATTENTION_KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers for which the engine has a mask."""

ALLOWED = (
    "allowed: decoder-only causal language models with softmax attention in every layer (Llama, Qwen2, Qwen3, Gemma, "
    "Mistral, OLMo, Phi-3 and others, and the mixtures Mixtral, Qwen3-MoE, OLMoE, GPT-OSS; docs/models.md)"
)


def check_config(config: Any) -> None:
    """Refuse an unsupported transformers configuration before weights are read.

    Args:
        config: A transformers configuration.

    Raises:
        ConfigError: The model is an encoder-decoder, is multimodal (images or sound), or has another kind of layers.
    """
    name = _name(config)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(f"model.path: {name} has an encoder and a decoder; {ALLOWED}")
    if config.get_text_config(decoder=True) is not config:
        raise ConfigError(
            f"model.path: {name} wraps a language model together with other models (images, sound); {ALLOWED}. Save "
            "its language model alone (for example Gemma3ForCausalLM) and give that directory"
        )
    # for example "chunked_attention" in Llama 4, and "local" in GPT-Neo, whose window depends on the cache's length
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ()
    unknown = sorted(set(kinds) - {*ATTENTION_KINDS, "global"})
    if unknown:
        raise ConfigError(f"model.path: {name} has layers of kind {', '.join(unknown)}; {ALLOWED}")


def check_model(model: Any) -> None:
    """Refuse a model with state other than keys and values.

    Args:
        model: A transformers model.

    Raises:
        ConfigError: From `check_config`, or transformers marks the model as stateful (Mamba, RWKV and hybrids with
            them); the slot cache cannot hold such a state.
    """
    check_config(model.config)
    if getattr(model, "_is_stateful", False):
        raise ConfigError(
            f"model.path: {type(model).__name__} carries a recurrent state from token to token, as state-space and "
            f"linear-attention layers do; {ALLOWED}"
        )


def _name(config: Any) -> str:
    """Return the model class that the configuration names, or else the class of the configuration."""
    named = getattr(config, "architectures", None)
    return str(named[0]) if named else type(config).__name__
