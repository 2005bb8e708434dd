"""A torch engine with noise in its matrices, to study a mismatch of trainer and engine (`scalerl study mismatch`).

    placement.engine = {kind = "custom", function = "scalerl.rollouts.local.noise:noisy", params = {sigma = 0.3}}

Evaluations use the exact weights, so curves show what the trainer learned.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scalerl.rollouts.custom import EngineParts
from scalerl.rollouts.engine import Engine


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Round to a floating-point grid: 7 bits is bf16, 3 and 2 are the two kinds of fp8, without their range."""
    mantissa, exponent = torch.frexp(weight)  # 0.5 <= |mantissa| < 1, so the first bit is implicit
    return torch.ldexp((mantissa * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent)


def shifted(weight: Tensor, sigma: float, seed: int) -> Tensor:
    """Return weight + sigma * rms(weight) * z, with normal z."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(weight.shape, generator=generator).to(weight)
    return weight + sigma * weight.square().mean().sqrt() * z


def noisy(parts: EngineParts, bits: int = 23, sigma: float = 0.0) -> Engine:
    """Return the PyTorch engine with noise in its matrices while it samples for training.

    Args:
        parts: Parts of the engine.
        bits: Bits of each weight after the leading one; 23 is FP32.
        sigma: Standard deviation of the noise, in multiples of a matrix's root mean square.
    """
    load: Any = parts.load_policy  # cached for both engines of a generator; this one needs a copy of its own
    if parts.evaluating or not hasattr(load, "__wrapped__"):  # the check of engines at the start would refuse noise
        return parts.torch_engine()
    policy = load.__wrapped__()

    def changed(name: str, weight: Tensor) -> Tensor:
        if weight.ndim < 2:
            return weight
        seed = zlib.crc32(name.encode()) + parts.seed  # the same at every version, so the error lasts
        return shifted(rounded(weight, bits), sigma, seed)

    def change(weights: Any) -> dict[str, Tensor]:
        return {name: changed(name, weight) for name, weight in dict(weights).items()}

    policy.load_weights(policy.version, change(policy.weights()))
    return replace(parts, load_policy=lambda: policy, receive=lambda v: change(parts.receive(v))).torch_engine()
