"""Conversion of a GGUF file to a Hugging Face model directory in the cache.

transformers reads GGUF files but refuses to save the result. Without the conversion every process of a run would read
the file again, which takes half a minute for 0.1 billion weights.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError, raising
from scalerl.core.files import as_umask, cache_root

MAGIC = b"GGUF"
ENDING = ".gguf"


def is_gguf(path: str) -> bool:
    """Return whether a model's path is a GGUF file, by its suffix or its first bytes."""
    if path.lower().endswith(ENDING):
        return True
    if not os.path.isfile(path):  # not Path.is_file, which raises for a name that is too long
        return False
    with open(path, "rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def gguf_directory(file: Path, dtype: str) -> Path:
    """Return the cache directory of a file's conversion; it changes when the file is rewritten."""
    found = file.stat()
    key = f"{file.resolve()}|{found.st_size}|{found.st_mtime_ns}|{dtype}"
    return cache_root() / f"gguf-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"


def converted(path: str, dtype: str) -> Path:
    """Return the directory with the model and tokenizer of a GGUF file, converting the file if it is not cached.

    The weights are the dequantized blocks of the file. The conversion needs memory for two copies of the model in
    `dtype`.

    Args:
        path: A GGUF file.
        dtype: Type of the weights on disk, float32 or bfloat16.

    Raises:
        ConfigError: The file does not exist or is not GGUF, a package is missing, or transformers cannot read the
            architecture.
    """
    file = Path(path)
    check_gguf_file(file)
    directory = gguf_directory(file, dtype)
    if (directory / "config.json").exists():
        return directory
    _check_packages(file)
    temporary = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        model, tokenizer = _read(file, dtype)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        as_umask(temporary)
        if not (directory / "config.json").exists():  # otherwise another process has already converted it
            shutil.rmtree(directory, ignore_errors=True)
            temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def check_gguf_file(file: Path) -> None:
    """Refuse a path that is not a file or does not start with the GGUF magic bytes.

    Raises:
        ConfigError: The path is a directory, does not exist, or is another kind of file.
    """
    if not file.is_file():
        what = "a directory" if file.is_dir() else "no such file"
        raise ConfigError(f"model.path: {file} is {what}; allowed: a GGUF file, a model directory or a hub name")
    with file.open("rb") as opened:
        begins = opened.read(len(MAGIC))
    if begins != MAGIC:
        raise ConfigError(f"model.path: {file} is not a GGUF file (it begins with {begins!r}); download it again")


def _check_packages(file: Path) -> None:
    from transformers.utils.import_utils import is_accelerate_available, is_gguf_available

    missing = [name for name, found in (("gguf", is_gguf_available()), ("accelerate", is_accelerate_available()))
               if not found]  # fmt: skip
    if missing:
        raise ConfigError(f"model.path: reading {file} needs {' and '.join(missing)}: pip install 'scalerl[gguf]'")


def _read(file: Path, dtype: str) -> tuple[Any, Any]:
    """Return a model that can be saved and trained, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "trust_remote_code": False}

    def problem(error: Exception) -> str:
        reason = str(error).strip().split("\n")[0]
        return (
            f"model.path: transformers cannot read {file}: {type(error).__name__}: {reason}; allowed: a complete GGUF "
            "file of an architecture that transformers knows (Llama, Qwen, Mistral, Gemma and others), or the model's "
            "own directory with config.json and safetensors"
        )

    with raising(ConfigError, problem):
        read, info = AutoModelForCausalLM.from_pretrained(
            **where, dtype=getattr(torch, dtype), output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(**where)
    if info["missing_keys"]:  # transformers would fill them with random numbers
        missing = sorted(info["missing_keys"])
        raise ConfigError(
            f"model.path: {file} lacks {len(missing)} of the model's weights, the first is {missing[0]}; a model that "
            "was split into several files must be joined first (llama-gguf-split --merge)"
        )
    # `read` is marked as quantized and cannot be saved; a new model from its configuration can
    config = read.config
    del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    fresh.load_state_dict(read.state_dict())
    fresh.generation_config = read.generation_config
    return fresh, tokenizer


SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
"""Names of a decoder's sizes: in config.json, and in GGUF after the name of the architecture."""


def sizes(path: str) -> dict[str, Any]:
    """Return a decoder's sizes by their names in config.json. Only the header is read, and torch is not imported.

    Raises:
        ConfigError: The file does not exist or is not a complete GGUF file, or the package gguf is missing.
    """
    check_gguf_file(Path(path))
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(f"model.path: reading {path} needs gguf: pip install 'scalerl[gguf]'") from None

    def problem(error: Exception) -> str:
        return f"model.path: {path} cannot be read ({type(error).__name__}: {error}); give a complete GGUF file"

    with raising(ConfigError, problem):
        reader = GGUFReader(path)
        fields = reader.fields
        family = str(fields["general.architecture"].contents())
        found = {name: fields[f"{family}.{gguf_name}"].contents() for name, gguf_name in SIZES.items()
                 if f"{family}.{gguf_name}" in fields}  # fmt: skip
        found["vocab_size"] = len(fields["tokenizer.ggml.tokens"].data)
        found["tie_word_embeddings"] = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    return found
