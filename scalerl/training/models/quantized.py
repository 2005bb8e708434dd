"""Quantized checkpoints: FP8 and MXFP4 weights in full precision, read one at a time; other methods are an error.

transformers dequantizes some checkpoints too. But it saves such a model quantized again, under a configuration that
does not say so, and it stretches the blocks of a matrix whose size is no multiple of the block (5.23). So the weights
are dequantized here, and transformers loads an ordinary model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.core.errors import ConfigError
from scalerl.training.models.files import INDEX, SINGLE

FLOAT8 = ("F8_E4M3", "F8_E5M2")
INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
UNUSED_SCALES = re.compile(r"[._](?:input|output|activation|q|k|v)_scale(?:_inv)?$")
"""Scales of activations, which full precision does not need."""

ORIGINAL = "Use the model that it was made from (its model card gives it as the base model)"
CONVERT_QUANTIZED = (
    'convert it where its package is installed: python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('OLD').dequantize().save_pretrained('NEW')\", and copy the tokenizer's files"
)
DEQUANTIZE = (
    "Make one: python -c \"from scalerl.training.models.loading import load_model as L; L('OLD', 'main', 'bfloat16')"
    ".save_pretrained('NEW')\", and copy the tokenizer's files"
)
CONVERSIONS = {"bitsandbytes": f"{ORIGINAL}, or {CONVERT_QUANTIZED}"}
"""What helps with a method, if it is more than the original model."""


TABLES = ("quantization_config", "compression_config")
"""Names of the table of a model's quantization in its config.json."""


def quantization_of(config: Any) -> dict[str, Any] | None:
    """Return the table of a model's quantization in its config.json, or None."""
    for name in TABLES:
        table = getattr(config, name, None)
        if table is not None:
            return dict(table) if isinstance(table, Mapping) else dict(table.to_dict())
    return None


def method_of(quantization: Mapping[str, Any]) -> str:
    """Return the name of a quantization method."""
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        return "bitsandbytes"
    return str(quantization.get("quant_method") or "an unknown method")


def check_quantization(path: str, quantization: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that cannot be dequantized.

    Raises:
        ConfigError: The method is not FP8 or MXFP4.
    """
    method = method_of(quantization)
    if method in ("fp8", "mxfp4") or (method == "compressed-tensors" and quantization.get("format") in FLOAT_FORMATS):
        return
    form = f" ({quantization['format']})" if quantization.get("format") else ""
    raise ConfigError(
        f"model.path: {path} is quantized with {method}{form}, and training needs weights in full precision; allowed: "
        f"weights that are not quantized, or FP8 and MXFP4, which are dequantized. {CONVERSIONS.get(method, ORIGINAL)}"
    )


FLOAT_FORMATS = ("float-quantized", "naive-quantized")
"""Formats of compressed-tensors that hold FP8 weights with scales."""


class ComputedWeight:
    """A weight that is computed when it is indexed, as transformers does with the slices of a file."""

    def __init__(self, read: Callable[[], Tensor], shape: list[int]) -> None:
        self._read, self.shape = read, shape

    def __getitem__(self, index: Any) -> Tensor:
        return self._read()[index]

    def get_shape(self) -> list[int]:
        """Return the sizes of the weight."""
        return self.shape

    def get_dtype(self) -> str:
        """Return the type of the weight, in the spelling of safetensors."""
        return "F32"


def full_weights(directory: Path, quantization: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of a quantized checkpoint by their names without quantization, to be read one at a time.

    Returns:
        Slices of safetensors, and `ComputedWeight`s in float32.

    Raises:
        ConfigError: A weight has no scale, or is quantized in another way.
    """
    from safetensors import safe_open

    index = directory / INDEX
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [SINGLE]
    slices: dict[str, Any] = {}
    for file in names:
        opened: Any = safe_open(directory / file, framework="pt")
        slices |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
    block = _block_of(quantization)
    weights: dict[str, Any] = {}
    for name, part in slices.items():
        place, kind = f"model.path: {directory}: {name}", part.get_dtype()
        stem = name.removesuffix("_blocks")
        if stem != name and f"{stem}_scales" in slices:
            experts, rows, groups = slices[f"{stem}_scales"].get_shape()
            weights[stem] = ComputedWeight(_mxfp4(part, slices[f"{stem}_scales"]), [experts, 32 * groups, rows])
        elif kind in FLOAT8:
            scale = next((slices[s] for s in (f"{name}_scale_inv", f"{name}_scale") if s in slices), None)
            if scale is None:
                raise ConfigError(f"{place} is {kind} without a scale. {ORIGINAL}")
            weights[name] = ComputedWeight(_float8(part, scale, block, place), part.get_shape())
        elif kind in INTEGERS and len(part.get_shape()) > 1 and not name.endswith("_scales"):
            raise ConfigError(f"{place} is packed in {kind}, which cannot be dequantized here. {ORIGINAL}")
        elif not (_is_scale(name, slices) or UNUSED_SCALES.search(name)):
            weights[name] = part
    return weights


def _is_scale(name: str, slices: Mapping[str, Any]) -> bool:
    stem = re.sub(r"_scale(?:_inv)?$|_scales$", "", name)
    return stem != name and (stem in slices or f"{stem}_blocks" in slices)


def _block_of(quantization: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return rows and columns of a block with one scale, if the configuration gives them."""
    sizes = quantization.get("weight_block_size")
    for group in (quantization.get("config_groups") or {}).values():
        sizes = sizes or ((group or {}).get("weights") or {}).get("block_structure")
    return (int(sizes[0]), int(sizes[1])) if sizes else None


def _float8(weight: Any, scale: Any, block: tuple[int, int] | None, place: str) -> Callable[[], Tensor]:
    return lambda: scaled_weight(weight[...], scale[...], block, place)


def scaled_weight(weight: Tensor, scale: Tensor, block: tuple[int, int] | None, place: str = "") -> Tensor:
    """Return an FP8 weight times its scale, in float32.

    Args:
        weight: [..., O, I] values.
        scale: One number, one for each row ([O] or [O, 1]), or a grid with one for each block, of which the last in a
            row or column may be cut off.
        block: Rows and columns of a block.
        place: Start of an error message.

    Raises:
        ConfigError: The scale has other sizes.
    """
    scale = scale.float()
    if scale.ndim < 2:
        scale = scale.reshape(-1, 1)
    for axis, size in zip((-2, -1), block or (0, 0), strict=True):
        length, parts = weight.shape[axis], scale.shape[axis]
        if parts not in (1, length):
            if not size or -(-length // size) != parts:
                raise ConfigError(
                    f"{place} has sizes {tuple(weight.shape)} and scales of {tuple(scale.shape)}; allowed: one scale, "
                    f"one for each row, or one for each block of {block or 'weight_block_size in config.json'}"
                )
            scale = scale.repeat_interleave(size, axis).narrow(axis, 0, length)
    return weight.float() * scale


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the 4 bits of MXFP4 (Open Compute Project, Microscaling Formats 1.0)."""


def _mxfp4(blocks: Any, scales: Any) -> Callable[[], Tensor]:
    return lambda: unpacked_weights(blocks[...], scales[...])


def unpacked_weights(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return MXFP4 weights of experts in float32.

    Args:
        blocks: [E, O, G, 16] or [E, O, 16 G] bytes, each with two values, the lower bits first.
        scales: [E, O, G] exponents of two plus 127.

    Returns:
        [E, I, O] with I = 32 G, as transformers keeps experts.
    """
    table, (experts, rows, groups) = torch.tensor(E2M1), scales.shape
    weights_EIO = torch.empty(experts, 32 * groups, rows)
    for weights_IO, bytes_OGB, exponents_OG in zip(
        weights_EIO, blocks.view(experts, rows, groups, 16), scales.int() - 127, strict=True
    ):  # one expert at a time, because the indices need four bytes for each value
        values_OGV = torch.stack([table[(bytes_OGB & 15).int()], table[(bytes_OGB >> 4).int()]], dim=-1).flatten(-2)
        weights_IO.copy_(torch.ldexp(values_OGV, exponents_OG[..., None]).flatten(-2).T)
    return weights_EIO
