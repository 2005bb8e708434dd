"""Check of a model's files before loading: missing, truncated and unsupported files. torch is not imported.

Only headers are read, so the check takes milliseconds for a model of any size.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.files import read_json, trouble

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""NAME or OWNER/NAME."""

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Suffixes of pickled weights. Reading a pickle can run any code."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

ALLOWED_MODELS = "allowed: a model directory with config.json and safetensors, or a hub name OWNER/NAME"


def check_model_files(path: str, *, weights: bool = True) -> None:
    """Refuse a model that is incomplete or whose weights are pickled.

    Args:
        path: `model.path`; a hub name is not checked further.
        weights: Whether weights are needed too; `scalerl plan` needs only the sizes.

    Raises:
        ConfigError: The message names the file, the problem and what to do.
    """
    if os.path.isdir(path):
        _check_directory(Path(path), weights)
    elif os.path.exists(path):
        _refuse_file(Path(path))
    elif not HUB_NAME.fullmatch(path) or len(path) > 200:
        raise ConfigError(f"model.path: got {path[:200]!r}; there is no such directory; {ALLOWED_MODELS}")


def _refuse_file(file: Path) -> None:
    if file.suffix in PICKLE_SUFFIXES:
        raise ConfigError(
            f"model.path: {file} is a pickle, which is not read because it can run any code; {CONVERT_FORMAT}"
        )
    if file.suffix.lower() == ".gguf":
        raise ConfigError(f"model.path: {file} is a GGUF file; convert it to a directory first (docs/models.md)")
    what = "one file of a model" if file.suffix == ".safetensors" else "a file"
    raise ConfigError(f"model.path: {file} is {what}; give the directory that holds config.json and the weights")


CONVERT_FORMAT = (
    'convert it to safetensors if you trust its source: python -c "from transformers import AutoModelForCausalLM as '
    "M; M.from_pretrained('OLD', use_safetensors=False).save_pretrained('NEW')\", and copy the tokenizer's files"
)


def _check_directory(directory: Path, weights: bool) -> None:
    for file in sorted(directory.iterdir()):
        if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe would block
            raise ConfigError(f"model.path: {file} is not a regular file; replace it by a file, or remove it")
    if (directory / "adapter_config.json").exists():
        raise ConfigError(
            f"model.path: {directory} holds an adapter (adapter_config.json), not a model; merge it into its base "
            "first: peft.AutoPeftModelForCausalLM.from_pretrained(DIR).merge_and_unload().save_pretrained(NEW)"
        )
    if not (directory / "config.json").exists():
        inside = next((name for name in ("model", "") if (directory / name / "config.json").exists()), None)
        hint = f"give {directory / inside}" if inside else ALLOWED_MODELS
        raise ConfigError(f"model.path: {directory} has no config.json; {hint}")
    read_model_config(directory / "config.json")
    if weights:
        _check_weights(directory)


def read_model_config(file: Path) -> dict[str, Any]:
    """Return the content of a config.json.

    Raises:
        ConfigError: The file is not a JSON object, or model_type or architectures are missing or malformed.
    """
    values = _json(file)
    named = values.get("architectures")
    if not isinstance(values.get("model_type"), str | None) or not isinstance(named, list | None):
        raise ConfigError(
            f"model.path: {file} has model_type {values.get('model_type')!r:.80} and architectures {named!r:.80}; "
            "allowed: text and a list of names"
        )
    if not values.get("model_type"):
        raise ConfigError(
            f"model.path: {file} has no model_type, so the architecture is unknown; download the "
            "model's config.json again, or add model_type (for example 'qwen3')"
        )
    inner = values.get("text_config")
    for name, value in [*values.items(), *(inner.items() if isinstance(inner, dict) else ())]:
        most = MOST_LAYERS if "layer" in name else LARGEST
        if isinstance(value, int | float) and not -LARGEST <= value <= most and name.endswith(SIZED):
            raise ConfigError(
                f"model.path: {file} has {name} = {value:.4g}; allowed: at most {most:,}; download the model's "
                "config.json again"
            )
    return values


SIZED = ("_size", "_dim", "_heads", "_layers", "_layer", "_rank", "_experts", "_embd", "_head", "_inner", "d_model")
"""Endings of the names of sizes in a config.json."""
MOST_LAYERS, LARGEST = 10_000, 10**9
"""Largest number of layers, and largest other size, that is accepted: with more, a plan would take hours."""


def _json(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        reason = trouble(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"model.path: {file} cannot be read as JSON ({reason}); download it again") from None
    if not isinstance(content, dict):
        raise ConfigError(f"model.path: {file} holds {str(content)[:80]!r}; allowed: a JSON object; download it again")
    return content


def _check_weights(directory: Path) -> None:
    if (directory / SINGLE).exists():
        _header(directory / SINGLE)
        return
    if (directory / INDEX).exists():
        _check_shards(directory)
        return
    files = sorted(file.name for file in directory.iterdir() if file.is_file())
    pickles = [name for name in files if name.endswith(PICKLE_SUFFIXES) and name != "training_args.bin"]
    shards = [name for name in files if name.endswith(".safetensors")]
    if shards:
        raise ConfigError(f"model.path: {directory} has {shards[0]} and no {INDEX}; download the whole model again")
    if pickles:
        raise ConfigError(
            f"model.path: {directory} has its weights in {pickles[0]}, a pickle, which is not read because it can run "
            f"any code; {CONVERT_FORMAT}"
        )
    raise ConfigError(f"model.path: {directory} has no weights ({SINGLE}, or {INDEX} with its parts); {ALLOWED_MODELS}")


def _check_shards(directory: Path) -> None:
    places = _json(directory / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ConfigError(f"model.path: {directory / INDEX} has no weight_map; download it again")
    files = sorted(set(places.values()))
    outside = [name for name in files if os.path.basename(name) != name or name in ("", "..")]
    if outside:
        raise ConfigError(
            f"model.path: {directory / INDEX} names the file {outside[0]!r:.100}; allowed: files of the directory"
        )
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise ConfigError(
            f"model.path: {directory} lacks {len(missing)} of {len(files)} files of weights, the first is "
            f"{missing[0]}; download them"
        )
    for name in files:
        _header(directory / name)


def weight_files(directory: Path) -> list[Path]:
    """Return the files of weights of a directory that `check_model_files` accepts, in the order of their names."""
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    return [directory / name for name in sorted(set(read_json(directory / INDEX)["weight_map"].values()))]


def _header(file: Path) -> None:
    """Refuse a file that is not whole; safetensors checks its header against the size of the file."""
    from safetensors import SafetensorError, safe_open

    again = "download it again, or save the model again"
    try:
        with safe_open(file, framework="np") as opened:
            empty = not opened.keys()
    except (SafetensorError, OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise ConfigError(
            f"model.path: {file} is not a complete safetensors file ({reason}; {file.stat().st_size:,} bytes); {again}"
        ) from None
    if empty:
        raise ConfigError(f"model.path: {file} holds no tensors; {again}")
