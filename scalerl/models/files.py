"""Check of a model's files before loading: missing, truncated and unsupported files. torch is not imported.

Only headers are read, so the check takes milliseconds for a model of any size.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.files import parse_json, read_json, trouble
from scalerl.models.gguf import check_gguf_file, is_gguf

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""NAME or OWNER/NAME."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Suffixes of pickled weights. Reading a pickle can run any code."""

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes per entry, by the safetensors name of the type."""

LONGEST_HEADER = 100_000_000
"""Bytes; the limit of safetensors itself."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

ALLOWED = "allowed: a model directory with config.json and safetensors, a GGUF file, or a hub name OWNER/NAME"


def check_model_files(path: str, *, weights: bool = True) -> None:
    """Refuse a model that is incomplete or whose weights are pickled.

    Args:
        path: `model.path`; a hub name is not checked further.
        weights: Whether weights are needed too; `scalerl plan` needs only the sizes.

    Raises:
        ConfigError: The message names the file, the problem and what to do.
    """
    if is_gguf(path):
        check_gguf_file(Path(path))
    elif os.path.isdir(path):
        _check_directory(Path(path), weights)
    elif os.path.exists(path):
        _refuse_file(Path(path))
    elif not HUB_NAME.fullmatch(path) or len(path) > 200:
        raise ConfigError(f"model.path: got {path[:200]!r}; there is no such directory; {ALLOWED}")


def _refuse_file(file: Path) -> None:
    if file.suffix in PICKLES:
        raise ConfigError(f"model.path: {file} is a pickle, which is not read because it can run any code; {CONVERT}")
    what = "one file of a model" if file.suffix == ".safetensors" else "a file"
    raise ConfigError(f"model.path: {file} is {what}; give the directory that holds config.json and the weights")


CONVERT = (
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
        ggufs = sorted(file.name for file in directory.glob("*.gguf"))
        hint = f"; give {directory / inside}" if inside else f"; give {directory / ggufs[0]}" if ggufs else ""
        raise ConfigError(f"model.path: {directory} has no config.json{hint or f'; {ALLOWED}'}")
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
    return values


def _json(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        reason = trouble(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"model.path: {file} cannot be read as JSON ({reason}); download it again") from None
    if not isinstance(found, dict):
        raise ConfigError(f"model.path: {file} holds {str(found)[:80]!r}; allowed: a JSON object; download it again")
    return found


def _check_weights(directory: Path) -> None:
    if (directory / SINGLE).exists():
        _header(directory / SINGLE)
        return
    if (directory / INDEX).exists():
        _check_shards(directory)
        return
    files = sorted(file.name for file in directory.iterdir() if file.is_file())
    pickles = [name for name in files if name.endswith(PICKLES) and name != "training_args.bin"]
    shards = [name for name in files if name.endswith(".safetensors")]
    if shards:
        raise ConfigError(f"model.path: {directory} has {shards[0]} and no {INDEX}; download the whole model again")
    if pickles:
        raise ConfigError(
            f"model.path: {directory} has its weights in {pickles[0]}, a pickle, which is not read because it can run "
            f"any code; {CONVERT}"
        )
    raise ConfigError(f"model.path: {directory} has no weights ({SINGLE}, or {INDEX} with its parts); {ALLOWED}")


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
    held = {name: _header(directory / name) for name in files}
    absent = [tensor for tensor, name in places.items() if tensor not in held[name]]
    if absent:
        raise ConfigError(
            f"model.path: {directory / places[absent[0]]} lacks {absent[0]}, which {INDEX} lists there; download it "
            "again"
        )


def _header(file: Path) -> Mapping[str, Any]:
    """Return the header of a safetensors file, after checking its sizes against the size of the file.

    Format: 8 bytes with the length of a JSON header, the header, then the tensors without gaps.
    """
    again = "download it again, or save the model again"
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or not 2 <= length <= min(LONGEST_HEADER, size - 8):
            raise ConfigError(f"model.path: {file} is not a complete safetensors file ({size:,} bytes); {again}")
        try:
            header = parse_json(opened.read(length))
            held = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((int(entry["data_offsets"][1]) for entry in held.values()), default=0)
            wrong = [name for name, entry in held.items() if not _fits(entry)]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise ConfigError(f"model.path: the header of {file} is damaged; {again}") from None
    if not held:
        raise ConfigError(f"model.path: {file} holds no tensors; {again}")
    if wrong:
        raise ConfigError(f"model.path: {file}: the size of {wrong[0]} does not match its shape; {again}")
    if 8 + length + end != size:
        what = "cut off" if 8 + length + end > size else "longer than its header states"
        raise ConfigError(f"model.path: {file} is {what}: {size:,} of {8 + length + end:,} bytes; {again}")
    return held


def _fits(entry: Mapping[str, Any]) -> bool:
    begin, end = entry["data_offsets"]
    item = ITEM_BYTES.get(entry["dtype"])
    return item is None or 0 <= begin <= end == begin + item * math.prod(entry["shape"])
