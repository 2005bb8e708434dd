"""An engine whose weights are rounded on arrival, to study corrections for a mismatch (docs/mismatch.md).

    # in config.toml
    preset = "quick"
    recipe.mismatch.kind = "token-mask"
    placement.engine = {kind = "custom", function = "benchmarks.mismatch:rounding", params = {bits = 1}}

Evaluations use the exact weights, so curves show what the trainer learned.
"""

from __future__ import annotations

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


def rounding(parts: EngineParts, bits: int = 2) -> Engine:
    """Return the PyTorch engine, in training with matrices rounded to a number of bits after the leading one."""
    load: Any = parts.load_policy  # cached for both engines of a generator; this one needs a copy of its own
    if parts.evaluating or not hasattr(load, "__wrapped__"):  # the check of engines at the start would refuse rounding
        return parts.torch_engine()
    policy = load.__wrapped__()

    def round_all(weights: Any) -> dict[str, Tensor]:
        return {name: rounded(w, bits) if w.ndim >= 2 else w for name, w in dict(weights).items()}

    policy.load_weights(policy.version, round_all(policy.weights()))
    return replace(parts, load_policy=lambda: policy, receive=lambda v: round_all(parts.receive(v))).torch_engine()
