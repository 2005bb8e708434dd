"""Verifier of mathematical answers: Math-Verify on the text after the thinking.

Math-Verify limits its time with signal.alarm, which only works in the main thread and fails silently in others. This
limit is switched off here; the verifier runs in a process that can be killed (scoring.py).
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from scalerl.config.run import Scoring
from scalerl.tasks.amounts import plain, plain_reference
from scalerl.tasks.base import Verdict, judged_text, verdict
from scalerl.types import Prompt

REMEMBERED = 4096
"""Number of parsed references, parsed formulas and comparisons cached per process. Parsing takes 1 to 100 ms, and the
completions of a prompt share the reference and often the answer."""


def prepare(settings: Scoring) -> None:
    """Load Math-Verify, which takes seconds, and enlarge its cache of 20 formulas."""
    from math_verify import parser

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at every call that its limit is off
    parser.parse_latex_cached = lru_cache(REMEMBERED)(parser.parse_latex_cached.__wrapped__)


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return whether the last expression of the text after the thinking equals the answer mathematically."""
    gold = reference(prompt.answer)
    if not gold:
        return verdict(False, f"the reference {prompt.answer!r} is not a mathematical expression")
    given = _parsed(plain(judged_text(completion)))
    if not given:
        return verdict(False, "found no mathematical expression in the answer")
    return verdict(_equal(gold, given), f"got {given[-1]}, expected {prompt.answer}")


@lru_cache(REMEMBERED)
def reference(answer: str) -> tuple[Any, ...]:
    """Return Math-Verify's reading of a reference answer: expression and text; empty if it cannot be parsed.

    Escaped dollar signs are currency. They are removed, because they would end the formula that is set in dollar signs.
    """
    answer = plain_reference(answer)
    money = answer.replace("\\$", "")
    ways = [answer] if "$" in money or "\\boxed" in answer else [f"${money}$"]
    for way in (*ways, f"\\boxed{{{answer}}}"):
        if found := _parsed(way):
            return found
    return ()


def _parsed(text: str) -> tuple[Any, ...]:
    from math_verify import parse

    return tuple(parse(text, parsing_timeout=None))


def _equal(gold: tuple[Any, ...], given: tuple[Any, ...]) -> bool:
    """Return whether any reading of one answer equals any reading of the other; cached by their representations."""
    key = tuple(map(_key, gold)), tuple(map(_key, given))
    if key not in _compared:
        from math_verify import verify as equal

        if len(_compared) >= REMEMBERED:
            _compared.clear()
        _compared[key] = bool(equal(list(gold), list(given), timeout_seconds=None))
    return _compared[key]


_compared: dict[tuple[tuple[tuple[str, str], ...], ...], bool] = {}


def _key(value: Any) -> tuple[str, str]:
    """Return a key for a reading. == is not enough: SymPy's 1/2 and 0.5 may be equal and differ in type."""
    from sympy import Basic, srepr

    return type(value).__name__, srepr(value) if isinstance(value, Basic) else str(value)
