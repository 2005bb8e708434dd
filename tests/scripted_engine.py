"""A deterministic engine without a model, for tests of the code around an engine.

Each token is the version it was sampled with, so that tests can read staleness from the rollouts. The length of a
sequence is a function of its key. The legend is that of slot_engine.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.training.engines.interrupt import NEVER, Ints, LengthRule
from scalerl.training.engines.local.slot_engine import Receive, SlotEngine

STOP = 1 << 20
"""The token that ends a scripted sequence."""


class ScriptedDecoder:
    """Returns the version as each token, or STOP with the probability that gives the configured mean length."""

    routing_shape, nuclei = None, ()

    def __init__(self, mean_tokens: float, delay_s: float = 0.0) -> None:
        self._stop_probability = 1.0 / mean_tokens
        self._delay_s = delay_s
        self.version = 0
        self.log: list[tuple[str, int]] = []
        """Calls so far: ("decode", rows), ("prefill", prompts), ("swap", version)."""

    def decode(self, rows: int, tokens_R: Ints, lengths_R: Ints) -> float:
        """Count 1 FLOP per row."""
        self.log.append(("decode", rows))
        return float(rows)

    def prefill(self, slots_N: Ints, prompts: Sequence[tuple[int, ...]]) -> float:
        """Count 1 FLOP per token."""
        self.log.append(("prefill", len(prompts)))
        return float(sum(len(p) for p in prompts))

    def sample(self, slots_B: Ints, uniforms_B: Any) -> tuple[Ints, Any]:
        """Return the version, or STOP."""
        time.sleep(self._delay_s)
        tokens_B = np.where(uniforms_B < self._stop_probability, STOP, self.version)
        return tokens_B, np.log1p(-uniforms_B)

    def move(self, source: int, target: int) -> None:
        """Do nothing."""

    def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Read the version from the weights, to show that the right ones arrived."""
        self.version = int(weights["version"])
        self.log.append(("swap", self.version))

    def state(self, lengths_S: Ints) -> dict[str, Any]:
        """Return an empty state: the version is restored with the weights."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""


def scripted_engine(
    slots: int, mean_tokens: float, max_tokens: int, delay_s: float = 0.0, receive: Receive | None = None
) -> SlotEngine:
    """Make a scripted engine.

    Args:
        slots: Sequences decoded together.
        mean_tokens: Mean length before the limit.
        max_tokens: Maximum length.
        delay_s: Seconds of sleep per tick, to make one side late.
        receive: Function that returns the weights, {"version": number}; with None a swap receives its own version.
    """
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=max_tokens)
    decoder = ScriptedDecoder(mean_tokens, delay_s)
    return SlotEngine(decoder, slots, rule, (STOP,), refill=1, receive=receive or (lambda v: {"version": v}))
