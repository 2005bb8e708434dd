"""The embedded task: chains of arithmetic modulo 10, left to right, with reasoning traces.

    7+4*3-8+1+2=<think>7+4=1;1*3=3;3-8=5;5+1=6;6+2=8;</think>8

As in real data sets, a share of the reference answers is wrong, in training and held-out prompts. This share sets the
ceiling of the pass rate near 1 - label_noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.rng import stream_key
from scalerl.core.types import Prompt
from scalerl.training.config import WarmStart
from scalerl.training.config.data import ArithmeticTask
from scalerl.training.rewards.base import END_THINK, THINK, Verdict, after_thinking, verdict

ALPHABET = "0123456789+-*=;:?>,x~abcdefg\n"
"""Characters of the lab's vocabulary; with the tags of thinking and PAD, its 32 tokens."""
PAD, STOP = "<pad>", "\n"

APPLY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: (a + b) % 10,
    "-": lambda a, b: (a - b) % 10,
    "*": lambda a, b: (a * b) % 10,
}
"""The operations, modulo 10."""

ENDLESS = 64
"""Length of a ramble that never ends. It exceeds every thinking limit of the lab."""


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


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return whether the text after the thinking equals the reference answer."""
    answer = after_thinking(completion)
    got = "no answer after the thinking" if answer is None else f"got {answer!r}"
    return verdict(answer == prompt.answer, f"{got}, expected {prompt.answer!r}")


def rows(task: ArithmeticTask, count: int) -> list[dict[str, str]]:
    """Return `count` distinct rows with prompt and reference answer (wrong for a share of them).

    Raises:
        ConfigError: The lengths allow fewer than `count` distinct chains.
    """
    rng = random.Random(task.seed)
    prompts: dict[str, None] = {}
    for _ in range(100 * count):
        prompts[_expression(rng, OPERATIONS[task.lengths](rng, *task.operations)) + "=" + THINK] = None
        if len(prompts) == count:
            return [{"prompt": prompt, "answer": reference(prompt, task.label_noise)} for prompt in prompts]
    raise ConfigError(
        f"data.operations: got {task.operations}, which makes only about {len(prompts)} distinct prompts; allowed: "
        f"ranges with at least {count} (data.prompts and evaluation.prompts together)"
    )


def reference(prompt: str, label_noise: float) -> str:
    """Return the right answer, or a wrong one for a share of the prompts, chosen by a hash of the prompt."""
    return str(noisy_digit(solve(prompt)[-1], prompt, label_noise))


def solve(prompt: str) -> list[int]:
    """Return the result after each operation."""
    expression = prompt.partition("=")[0]
    value, results = int(expression[0]), []
    for sign, digit in zip(expression[1::2], expression[2::2], strict=True):
        value = APPLY[sign](value, int(digit))
        results.append(value)
    return results


def traces(task: ArithmeticTask, start: WarmStart, noise: float, seed: object) -> Iterator[tuple[str, str]]:
    """Yield (prompt, completion) pairs for the warm start, endlessly.

    With probability `noise`, the result of an operation is replaced by a uniform digit, and the following operations
    use it. The answer repeats the last result. After an operation, a ramble of `~` may follow; in some traces it never
    ends.
    """
    rng = random.Random(str(seed))
    while True:
        expression = _expression(rng, OPERATIONS[task.lengths](rng, *task.operations))
        value, text, endless = int(expression[0]), "", False
        for sign, digit in zip(expression[1::2], expression[2::2], strict=True):
            result = noisy_result(rng, APPLY[sign](value, int(digit)), noise)
            text += f"{value}{sign}{digit}={result};"
            value = result
            pause, endless = ramble(rng, start)
            text += pause
            if endless:
                break
        yield expression + "=" + THINK, text if endless else f"{text}{END_THINK}{value}{STOP}"


def facts() -> list[tuple[str, str]]:
    """Return all 300 single operations as (text up to the result, right digit): `("3*4+1=<think>3*4=", "2")`.

    Each is the first of a trace with two operations. The second operation depends only on the first.
    """
    sides = [(f"{a}{sign}{b}", str(apply(a, b))) for sign, apply in APPLY.items() for a in range(10) for b in range(10)]
    return [(f"{side}{_follow(side)}={THINK}{side}=", digit) for side, digit in sides]


def taught(task: ArithmeticTask) -> list[Any]:
    """Return the settings that determine the traces, for the name of a cached warm start."""
    return [*task.operations, *([task.lengths] if task.lengths != "uniform" else [])]


def _lognormal(rng: random.Random, low: int, high: int) -> int:
    """Draw from a lognormal distribution with median low + 1 and sigma 1, clipped to [low, high]."""
    return min(high, max(low, round((low + 1) * math.exp(rng.gauss(0.0, 1.0)))))


OPERATIONS: dict[str, Callable[[random.Random, int, int], int]] = {
    "uniform": lambda rng, low, high: rng.randint(low, high),
    "long-tailed": _lognormal,
}
"""Distributions of the number of operations of a chain."""


def _follow(side: str) -> str:
    return "+-*"[stream_key("fact", f"{side}={THINK}{side}=") % 3] + "1"


def _expression(rng: random.Random, operations: int) -> str:
    text = str(rng.randrange(10))
    for _ in range(operations):
        text += rng.choice("+-*") + str(rng.randrange(10))
    return text
