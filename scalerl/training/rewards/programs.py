"""The lab's second task: write a program for a linear function modulo 10, given some of its points.

    ,0:4,1:7,6:2,3:3<think>b=4;7-4=3;3*6=8;3*3=9;</think>x*3+4

A small interpreter runs the program on the given points and on a hidden one, from left to right as in the other task.
For a share of the prompts the hidden point is wrong, and no program that fits the given points passes. This sets the
ceiling of the pass rate near 1 - label_noise.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import permutations, product

from scalerl.core.errors import ConfigError
from scalerl.core.rng import stream_key
from scalerl.core.types import Prompt
from scalerl.training.config import WarmStart
from scalerl.training.config.data import ProgramsTask
from scalerl.training.rewards.arithmetic import APPLY, STOP, noisy_digit, noisy_result, ramble
from scalerl.training.rewards.base import END_THINK, THINK, Verdict, after_thinking, verdict

LONGEST_PROGRAM = 32
"""Largest number of characters of a program; a right one has five."""

_PROGRAM = re.compile(r"[x0-9](?:[-+*][x0-9])*")  # not \d, which matches the digits of every script
_POINT = re.compile(r",([0-9]):([0-9])")
_OTHERS = range(2, 10)
"""Possible x of the points other than x = 0 and x = 1."""
POINTS = 4
"""Points that a prompt shows: x = 0, x = 1 and two others."""

Function = tuple[int, int, tuple[int, ...]]
"""Slope a, intercept b, and x of the points other than x = 0 and x = 1, in their order."""


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return whether the text after the thinking is a program that fits every point of the answer."""
    program = after_thinking(completion)
    if program is None or len(program) > LONGEST_PROGRAM or not _PROGRAM.fullmatch(program):
        return verdict(
            False, f"got {program!r}; expected a program such as x*3+4, of at most {LONGEST_PROGRAM} characters"
        )
    points = points_of_text(prompt.answer)
    assert points, prompt.answer
    results = [(x, run(program, x), y) for x, y in points]
    missed = [f"x = {x} gives {value}, expected {y}" for x, value, y in results if value != y]
    return verdict(not missed, "; ".join(missed) or "fits every point")


def run(program: str, x: int) -> int:
    """Return the result of a well-formed program at x, modulo 10, from left to right: `x*3+4` at 6 is 2."""
    first, *operands = (x if name == "x" else int(name) for name in program[::2])
    value = first
    for sign, operand in zip(program[1::2], operands, strict=True):
        value = APPLY[sign](value, operand)
    return value % 10


def points_of_text(text: str) -> list[tuple[int, int]]:
    """Return the points (x, y) of a prompt or an answer."""
    return [(int(x), int(y)) for x, y in _POINT.findall(text)]


def rows(task: ProgramsTask, count: int) -> list[dict[str, str]]:
    """Return `count` distinct rows with prompt and answer: the given points and the hidden one.

    Raises:
        ConfigError: There are fewer than `count` distinct prompts.
    """
    functions = list(product(range(10), range(10), permutations(_OTHERS, POINTS - 2)))
    if count > len(functions):
        raise ConfigError(
            f"data.prompts: got {count:,} with evaluation.prompts; allowed: at most {len(functions):,} distinct prompts"
        )
    random.Random(task.seed).shuffle(functions)
    prompts = [_prompt(function) for function in functions[:count]]
    return [{"prompt": prompt, "answer": reference(prompt, task.label_noise)} for prompt in prompts]


def reference(prompt: str, label_noise: float) -> str:
    """Return the points of a prompt and a hidden one, which is wrong for a share of the prompts, chosen by a hash."""
    shown = points_of_text(prompt)
    free = sorted(set(range(10)) - {x for x, _ in shown})
    hidden = free[stream_key("hidden", prompt) % len(free)]
    (_, b), (_, value_at_one) = shown[:2]
    y = noisy_digit(_value(value_at_one - b, b, hidden), prompt, label_noise)
    return f"{prompt.removesuffix(THINK)},{hidden}:{y}"


def traces(task: ProgramsTask, start: WarmStart, noise: float, seed: object) -> Iterator[tuple[str, str]]:
    """Yield (prompt, completion) pairs for the warm start, endlessly.

    A trace reads off the intercept, computes the slope as the difference of the first two values, and computes the
    product of the slope with x of each further point. Noise and rambles are those of the other task. Later steps of a
    trace use a wrong result.
    """
    rng = random.Random(str(seed))
    while True:
        function = (rng.randrange(10), rng.randrange(10), tuple(rng.sample(_OTHERS, POINTS - 2)))
        steps, text, endless = _steps(function, rng, noise), "", False
        for side, result in steps:
            pause, endless = ramble(rng, start)
            text += f"{side}={result};{pause}"
            if endless:
                break
        (_, intercept), (_, slope) = steps[:2]
        yield _prompt(function), text if endless else f"{text}{END_THINK}x*{slope}+{intercept}{STOP}"


def facts() -> list[tuple[str, str]]:
    """Return 300 single steps as (text up to the result, right digit): `(",0:4,1:7,6:2,3:3<think>b=", "4")`.

    For each of the 100 functions, these are its intercept, its slope, and the product for the first further point.
    """
    places = list(permutations(_OTHERS, POINTS - 2))
    steps = []
    for a, b in product(range(10), range(10)):
        function = (a, b, places[stream_key("fact", a, b) % len(places)])
        text = _prompt(function)
        for side, digit in _steps(function, random.Random(0), 0.0)[:3]:
            steps.append((f"{text}{side}=", str(digit)))
            text += f"{side}={digit};"
    return steps


def _steps(function: Function, rng: random.Random, noise: float) -> list[tuple[str, int]]:
    """Return the left side and result of each step of a trace: intercept, slope, one product per further point."""
    a, b, others = function
    value_at_one = _value(a, b, 1)
    intercept = noisy_result(rng, b, noise)
    slope = noisy_result(rng, APPLY["-"](value_at_one, intercept), noise)
    checks = [(f"{slope}*{x}", noisy_result(rng, APPLY["*"](slope, x), noise)) for x in others]
    return [("b", intercept), (f"{value_at_one}-{intercept}", slope), *checks]


def _prompt(function: Function) -> str:
    a, b, others = function
    return "".join(f",{x}:{_value(a, b, x)}" for x in (0, 1, *others)) + THINK


def _value(a: int, b: int, x: int) -> int:
    return (a * x + b) % 10
