"""A torch engine with noise in its matrices, logits or routes, to study a mismatch with the trainer (docs/mismatch.md).

    placement.engine = {kind = "custom", function = "noisy_engine:noisy", params = {sigma = 0.3}}

Evaluations use the exact weights, so curves show what the trainer learned.
"""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scalerl.core.errors import ConfigError
from scalerl.training.engines.custom import EngineParts
from scalerl.training.engines.engine import Engine
from scalerl.training.models.head import HeadRule
from scalerl.training.models.routing import GivenTopK, routers_of


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Round to a floating-point grid: 7 bits is bf16, 3 and 2 are the two kinds of fp8, without their range."""
    mantissa, exponent = torch.frexp(weight)  # 0.5 <= |mantissa| < 1, so the first bit is implicit
    return torch.ldexp((mantissa * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent)


def shifted(weight: Tensor, sigma: float, seed: int) -> Tensor:
    """Return weight + sigma * rms(weight) * z, with normal z."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(weight.shape, generator=generator).to(weight)
    return weight + sigma * weight.square().mean().sqrt() * z


@dataclass(frozen=True, slots=True)
class CoarseHead(HeadRule):
    """A head whose logits are rounded to multiples of a step."""

    step: float = 1.0
    """Distance between neighboring logits: a bf16 head has 0.125 for logits of 16 to 32, 1 for 128 to 256."""

    def logits(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
        """Return logits [N, V]."""
        exact_NV = HeadRule.logits(self, hidden_ND, weight_VD, bias_V)
        return (exact_NV / self.step).round() * self.step


class Flipped:
    """The forward of a router that chooses experts with noise in its matrix and computes their scores without.

    Only the choice differs, so a trainer that replays it has the engine's probabilities.
    """

    def __init__(self, router: Any, sigma: float, seed: int) -> None:
        """Take a router of transformers; `sigma` and `seed` as for `shifted`."""
        self.router, self.forward, self.chooser = router, router.forward, copy.deepcopy(router)
        self.sigma, self.seed = sigma, seed

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the router's logits, scores and experts."""
        self.chooser.weight.data = shifted(self.router.weight.data, self.sigma, self.seed)  # of the current version
        with GivenTopK(self.chooser(*inputs, **options)[2], replay=True):
            return self.forward(*inputs, **options)


def noisy(parts: EngineParts, bits: int = 23, sigma: float = 0.0, routes: float = 0.0, logits: float = 0.0) -> Engine:
    """Return the PyTorch engine with noise while it samples for training.

    Args:
        parts: Parts of the engine.
        bits: Bits of each weight after the leading one; 23 is FP32.
        sigma: Standard deviation of the noise, in multiples of a matrix's root mean square.
        routes: The same for noise with which the routers of a mixture choose experts, and only there.
        logits: Step to whose multiples the logits are rounded; 0: exact.

    Raises:
        ConfigError: The model has no routers to put noise in.
    """
    load: Any = parts.load_policy  # cached for both engines of a generator; this one needs a copy of its own
    if parts.evaluating or not hasattr(load, "__wrapped__"):  # the check of engines at the start would refuse noise
        return parts.torch_engine()
    policy = load.__wrapped__()
    routers = routers_of(policy.model) if routes else []
    if routes and not routers:
        raise ConfigError(
            f"routes: got {routes:g} for {type(policy.model).__name__}; allowed: 0, or a mixture of experts"
        )
    for layer, router in enumerate(routers):
        router.forward = Flipped(router, routes, parts.seed + 1000 * layer)

    if logits:
        rule = policy.rule
        policy.rule = CoarseHead(rule.fp32, rule.softcap, rule.scale, rule.compiled, step=logits)

    def changed(name: str, weight: Tensor) -> Tensor:
        if weight.ndim < 2:
            return weight
        seed = zlib.crc32(name.encode()) + parts.seed  # the same at every version, so the error lasts
        return shifted(rounded(weight, bits), sigma, seed)

    def change(weights: Any) -> dict[str, Tensor]:
        return {name: changed(name, weight) for name, weight in dict(weights).items()}

    policy.load_weights(policy.version, change(policy.weights()))
    return replace(parts, load_policy=lambda: policy, receive=lambda v: change(parts.receive(v))).torch_engine()
