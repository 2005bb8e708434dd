"""Shared parts of the lab's tasks: characters, digits modulo 10, rambles, wrong references."""

from __future__ import annotations

import random
from collections.abc import Callable

from scalerl.config import WarmStart
from scalerl.core.rng import stream_key

ALPHABET = "0123456789+-*=;:?>,x~abcdefg\n"
"""Characters of the lab's vocabulary; the three tags below complete its 32 tokens."""
THINK, END_THINK, PAD = "<think>", "</think>", "<pad>"
STOP = "\n"

APPLY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: (a + b) % 10,
    "-": lambda a, b: (a - b) % 10,
    "*": lambda a, b: (a * b) % 10,
}
"""The operations, modulo 10."""

ENDLESS = 64
"""Length of a ramble that never ends. It exceeds every thinking limit of the lab."""


def after_thinking(completion: str) -> str | None:
    """Return the text after the last `</think>`, stripped; None if the thinking does not end."""
    _, tag, rest = completion.rpartition(END_THINK)
    return rest.strip() if tag else None


def noisy_digit(right: int, prompt: str, noise: float) -> int:
    """Return the right digit, or a wrong one for a share of the prompts, chosen by a hash of the prompt."""
    draw = stream_key("label", prompt)
    wrong = (draw >> 11) * 2.0**-53 < noise
    return (right + 1 + draw % 9) % 10 if wrong else right


def noisy_result(rng: random.Random, right: int, noise: float) -> int:
    """Return the result of an operation in a trace: a uniform digit with probability `noise`, else the right one."""
    return rng.randrange(10) if rng.random() < noise else right


def ramble(rng: random.Random, start: WarmStart) -> tuple[str, bool]:
    """Return the ramble after an operation, which is mostly empty, and whether it never ends."""
    if rng.random() >= start.ramble:
        return "", False
    endless = rng.random() < start.endless
    return "~" * (ENDLESS if endless else 1 + int(rng.expovariate(1 / 8))), endless
