"""Loading of transformers models and tokenizers, without remote code or randomly initialized weights; saving of models.

Decoders are supported if keys and values are their only state from earlier tokens. There is no list of model names. A
model is checked by its configuration and by the attributes that transformers sets on its class; `check_head` and
`check_engine` then compare numbers.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scalerl.core.errors import ConfigError, RunError, raising
from scalerl.core.files import as_umask
from scalerl.training.models.files import check_model_files
from scalerl.training.models.quantized import TABLES, check_quantization, full_weights, quantization_of

IN_LAYERS = re.compile(r"\.(layers|h|blocks)\.\d+\.")
"""A weight of a decoder layer."""

ATTENTION_KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers for which the engine has a mask."""

ALLOWED_WEIGHTS = (
    "allowed: decoder-only causal language models with softmax attention in every layer (Llama, Qwen2, Qwen3, Gemma, "
    "Mistral, OLMo, Phi-3 and others, and the mixtures Mixtral, Qwen3-MoE, OLMoE, GPT-OSS; docs/models.md)"
)


def load_model(path: str, revision: str, dtype: str) -> Any:
    """Load a causal language model with transformers and check that every weight was read from its files.

    FP8 and MXFP4 weights are dequantized; the model then is as if it had never been quantized.

    Raises:
        ConfigError: The model does not exist, its files are damaged, weights are missing, unexpected, of other sizes or
            not finite, or the architecture needs custom code, is unknown to transformers or is not supported.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    check_model_files(path, weights=False)
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # else it prints a table of missing weights; `_check_loaded` reports them
    try:
        with raising(ConfigError, partial(_not_loaded, path)):
            config, quantization = load_config(path, revision)
            check_config(config)
            check_model_files(path)
            how: dict[str, Any] = {
                "dtype": getattr(torch, dtype),
                "ignore_mismatched_sizes": True,  # `_check_loaded` reports them
                "output_loading_info": True,
            }
            if quantization is None:
                how |= {"use_safetensors": True, **_revision_options(revision)}  # never a pickle
                model, info = AutoModelForCausalLM.from_pretrained(path, **how)
            else:
                model, info = _dequantized(path, revision, config, quantization, how)
    finally:
        logging.set_verbosity(level)
    _check_loaded(path, model, info)
    return model


def _revision_options(revision: str) -> dict[str, Any]:
    return {"revision": revision, "trust_remote_code": False}  # if unset, transformers prompts on the terminal


def load_config(path: str, revision: str, **options: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return a model's configuration without its quantization, and the table of its quantization, if it has one.

    Args:
        path: Directory or name on the hub.
        revision: Branch, tag or commit.
        options: Further options of transformers, such as local_files_only.

    Raises:
        ConfigError: It is quantized in a way that cannot be undone here.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, **_revision_options(revision), **options)
    quantization = quantization_of(config)
    if quantization is not None:
        check_quantization(path, quantization)
        for name in TABLES:
            if hasattr(config, name):
                delattr(config, name)
    return config, quantization


def end_tokens(path: str, revision: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end a sequence, from the model's files and its tokenizer; the weights are not read.

    Args:
        path: Directory or name on the hub.
        revision: Branch, tag or commit.
        tokenizer: The model's tokenizer.

    Raises:
        ConfigError: From `joined_ends`.
    """
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(path, revision=revision)
    except OSError:  # the model has no such file
        generation = GenerationConfig.from_model_config(load_config(path, revision)[0])
    return joined_ends(generation.eos_token_id, tokenizer)


def joined_ends(eos: Any, tokenizer: Any, vocabulary: int | None = None) -> tuple[int, ...]:
    """Return the ids that end a sequence, those of the generation settings and of the tokenizer, in order.

    Args:
        eos: `eos_token_id` of the generation settings: an id, a list of ids, or None.
        tokenizer: The model's tokenizer.
        vocabulary: Number of tokens of the model; None: not known.

    Raises:
        ConfigError: There is none, so every completion would be truncated, or one is not in the vocabulary.
    """
    joined = {*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id} - {None}
    ids = sorted(i for i in joined if isinstance(i, int) and 0 <= i < (vocabulary or i + 1))
    if len(ids) < len(joined):
        most = f", 0 to {vocabulary - 1}" if vocabulary else ""
        raise ConfigError(
            f"model.path: got eos_token_id {eos} in generation_config.json or config.json; allowed: ids of the model's "
            f"tokens{most}"
        )
    if not ids:
        among = f" among its {vocabulary} tokens" if vocabulary else ""
        raise ConfigError(
            "model.path: the model has no end token: neither generation_config.json, config.json nor the tokenizer "
            f"has an eos token{among}; set eos_token in tokenizer_config.json, or eos_token_id in "
            "generation_config.json"
        )
    return tuple(ids)


def _dequantized(
    path: str, revision: str, config: Any, quantization: dict[str, Any], how: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a model over the dequantized weights of its checkpoint, and which weights were missing or superfluous."""
    from huggingface_hub import snapshot_download
    from transformers import AutoModelForCausalLM, GenerationConfig

    directory = Path(path)
    if not directory.is_dir():
        files = {"allow_patterns": ["*.safetensors", "*.json"], "ignore_patterns": ["*/*"]}
        directory = Path(snapshot_download(path, revision=revision, **files))
    with torch.device("meta"):
        architecture = type(AutoModelForCausalLM.from_config(config))
    weights = full_weights(directory, quantization)
    model, info = architecture.from_pretrained(None, config=config, state_dict=weights, **how)
    if (directory / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    model.name_or_path = path
    return model, info


class ExportFailed(RunError):
    """A model that was written is not the one that its files hold."""


def save_model(model: Any, directory: Path) -> None:
    """Write a model as a Hugging Face directory, and read it again to compare its weights; that needs as much memory.

    Args:
        model: A transformers model without adapters, whose weights are on one device.
        directory: The directory.

    Raises:
        ExportFailed: The files cannot be loaded, or hold other weights.
    """
    model.save_pretrained(directory)
    as_umask(directory)
    problem = "the exported model cannot be loaded: {}".format
    with raising(ExportFailed, problem):
        try:
            again = load_model(str(directory), "main", str(model.dtype).removeprefix("torch."))
        except ConfigError as error:  # `raising` passes it on, but it is no error of the user
            raise ExportFailed(problem(error)) from None
    loaded = dict(again.named_parameters())
    wrong = [
        name
        for name, weight in model.named_parameters()
        if name not in loaded or not torch.equal(loaded[name].float(), weight.detach().cpu().float())
    ]
    if wrong:
        raise ExportFailed(
            f"the exported model differs from the trained one in {len(wrong)} weights, the first is {wrong[0]}"
        )


def _not_loaded(path: str, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return (
            f"model.path: {path} needs custom Python code (auto_map in its config.json), which is never run here; "
            "allowed: models whose architecture is built into transformers"
        )
    reason = str(error).strip().split("\n")[0][:300] or type(error).__name__
    return (
        f"model.path: got {path!r}; allowed: a directory with config.json and weights, or a hub name of a causal "
        f"language model that this machine can reach ({reason})"
    )


def _check_loaded(path: str, model: Any, info: dict[str, Any]) -> None:
    """Refuse a model with a recurrent state, or whose weights were not all read as expected, or are not finite."""
    if getattr(model, "_is_stateful", False):  # Mamba, RWKV and hybrids with them; the slot cache cannot hold it
        raise ConfigError(
            f"model.path: {type(model).__name__} carries a recurrent state from token to token, as state-space and "
            f"linear-attention layers do; {ALLOWED_WEIGHTS}"
        )
    missing = sorted(info["missing_keys"])  # without tied weights
    if missing:  # transformers has initialized them randomly
        raise ConfigError(
            f"model.path: {path} lacks {len(missing)} of the weights of a {type(model).__name__}: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}; download the whole model, or give a model "
            "that was saved as a causal language model"
        )
    wrong = sorted(info["mismatched_keys"], key=str)
    if wrong:
        name, shape, expected = wrong[0]
        raise ConfigError(
            f"model.path: {path}: {len(wrong)} weights have other sizes than config.json gives; {name} is "
            f"{tuple(shape)}, expected {tuple(expected)}; use the config.json that belongs to the weights"
        )
    surplus = sorted(name for name in info["unexpected_keys"] if IN_LAYERS.search(name) and "inv_freq" not in name)
    if surplus:
        raise ConfigError(
            f"model.path: {path} has {len(surplus)} weights that a {type(model).__name__} with this config.json does "
            f"not have, the first is {surplus[0]}; use the config.json that belongs to the weights"
        )
    bad = [name for name, weight in model.named_parameters() if not bool(weight.sum(dtype=torch.float32).isfinite())]
    if bad:
        raise ConfigError(
            f"model.path: {path}: {len(bad)} weights hold NaN or infinity, the first is {bad[0]}; download the model "
            "again, or give an earlier checkpoint"
        )


def load_tokenizer(path: str, revision: str = "main") -> Any:
    """Load a tokenizer.

    Raises:
        ConfigError: The directory has no tokenizer, or it cannot be read or used.
    """
    from transformers import AutoTokenizer

    place = Path(path) / "tokenizer.json" if Path(path).is_dir() else path
    advice = f"model.path: found no tokenizer at {place}; save one there with tokenizer.save_pretrained(...)"

    def problem(error: Exception) -> str:
        reason = "it needs custom Python code, which is never run here" if "trust_remote_code" in str(error) else ""
        return f"{advice} ({reason or str(error).strip().split(chr(10))[0][:300]})"

    with raising(ConfigError, problem):
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
        words = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
        longest = tokenizer.model_max_length
        if not isinstance(longest, int | float) or isinstance(longest, bool):  # transformers fails at the first text
            raise ConfigError(
                f"model.path: {Path(path) / 'tokenizer_config.json'} has model_max_length {longest!r:.80}; allowed: a "
                "number of tokens"
            )
        tokenizer("a b")
    # without tokenizer files, transformers returns an empty tokenizer of the architecture's class
    if not words:
        raise ConfigError(f"{advice} (the tokenizer loaded from there has no vocabulary)")
    return tokenizer


def check_config(config: Any) -> None:
    """Refuse an unsupported transformers configuration before weights are read.

    Raises:
        ConfigError: The model is an encoder-decoder, is multimodal (images or sound), or has another kind of layers.
    """
    name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(f"model.path: {name} has an encoder and a decoder; {ALLOWED_WEIGHTS}")
    if config.get_text_config(decoder=True) is not config:
        raise ConfigError(
            f"model.path: {name} wraps a language model together with other models (images, sound); {ALLOWED_WEIGHTS}. "
            "Save its language model alone (for example Gemma3ForCausalLM) and give that directory"
        )
    # for example "chunked_attention" in Llama 4, and "local" in GPT-Neo, whose window depends on the cache's length
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ()
    unknown = sorted(set(kinds) - {*ATTENTION_KINDS, "global"})
    if unknown:
        raise ConfigError(f"model.path: {name} has layers of kind {', '.join(unknown)}; {ALLOWED_WEIGHTS}")
