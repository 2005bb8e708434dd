"""An engine whose tokens follow a script: deterministic, without a model, for tests of everything around an engine.

Each token is the version it was sampled with, so that staleness can be read off the rollouts; a sequence's length is
a function of its key. Legend as in slot_engine.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.rollouts.interrupt import NEVER, Ints, LengthRule
from scalerl.rollouts.local.slot_engine import Receive, SlotEngine

STOP = 1 << 20
"""The token that ends a scripted sequence."""


class ScriptedDecoder:
    """Returns the version as token, and STOP with the probability that gives the wanted mean length."""

    def __init__(self, mean_tokens: float, delay_s: float = 0.0) -> None:
        self._stop_probability = 1.0 / mean_tokens
        self._delay_s = delay_s
        self.version = 0
        self.log: list[tuple[str, int]] = []
        """What was asked of it: ("decode", rows), ("prefill", prompts), ("swap", version)."""

    def decode(self, rows: int, tokens_R: Ints, lengths_R: Ints) -> float:
        """Count as 1 FLOP a row."""
        self.log.append(("decode", rows))
        return float(rows)

    def prefill(self, slots_N: Ints, prompts: Sequence[tuple[int, ...]]) -> float:
        """Count as 1 FLOP a token."""
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
        """Take the version from the weights themselves, to show that the right ones arrived."""
        self.version = int(weights["version"])
        self.log.append(("swap", self.version))

    def state(self, lengths_S: Ints) -> dict[str, Any]:
        """Return nothing: the version comes back with the weights."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""


def scripted_engine(
    slots: int, mean_tokens: float, max_tokens: int, delay_s: float = 0.0, receive: Receive | None = None
) -> SlotEngine:
    """Make a scripted engine.

    Args:
        slots: sequences decoded together.
        mean_tokens: mean length before the limit.
        max_tokens: limit of the length.
        delay_s: seconds each tick sleeps, to make one side late.
        receive: returns weights, {"version": number}; None counts a swap as its version.
    """
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=max_tokens)
    decoder = ScriptedDecoder(mean_tokens, delay_s)
    return SlotEngine(decoder, slots, rule, (STOP,), refill=1, receive=receive or (lambda v: {"version": v}))
