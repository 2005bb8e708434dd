"""Mathematical answers, judged by Math-Verify on the text after the thinking.

Math-Verify stops itself with signal.alarm, which works in no thread but the main one and fails silently elsewhere; its
own limit is therefore switched off here, and the whole judgement runs in a process that can be killed (scoring.py).
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
"""Parsed references, parsed formulas and comparisons that a process keeps. Parsing takes 1 to 100 ms, and the
completions of a prompt share its reference and often their answer."""


def prepare(settings: Scoring) -> None:
    """Load Math-Verify, which takes seconds, and let it remember more formulas than its default of 20."""
    from math_verify import parser

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns, at every call, that its own limit is off
    parser.parse_latex_cached = lru_cache(REMEMBERED)(parser.parse_latex_cached.__wrapped__)


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return whether the last expression of the text after the thinking equals the answer mathematically."""
    gold = reference(prompt.answer)
    if not gold:
        return verdict(False, f"the reference {prompt.answer!r} is no mathematical expression")
    given = _parsed(plain(judged_text(completion)))
    if not given:
        return verdict(False, "found no mathematical expression in the answer")
    return verdict(_equal(gold, given), f"got {given[-1]}, expected {prompt.answer}")


@lru_cache(REMEMBERED)
def reference(answer: str) -> tuple[Any, ...]:
    """Return what Math-Verify reads in a reference answer: its expression and its text; empty where it reads nothing.

    An escaped dollar sign is money and no delimiter: within dollar signs it would end the formula, and the answer would
    be empty.
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
    """Return whether any reading of the one equals any of the other; remembered by what both consist of."""
    key = tuple(map(_key, gold)), tuple(map(_key, given))
    if key not in _compared:
        from math_verify import verify as equal

        if len(_compared) >= REMEMBERED:
            _compared.clear()
        _compared[key] = bool(equal(list(gold), list(given), timeout_seconds=None))
    return _compared[key]


_compared: dict[tuple[tuple[tuple[str, str], ...], ...], bool] = {}


def _key(value: Any) -> tuple[str, str]:
    """Return what tells two readings apart: == will not do, for SymPy's 1/2 and 0.5 may be equal and differ in type."""
    from sympy import Basic, srepr

    return type(value).__name__, srepr(value) if isinstance(value, Basic) else str(value)
