r"""Verifier of mathematical answers: Math-Verify on the text after the thinking.

Math-Verify limits its time with signal.alarm, which only works in the main thread and fails silently in others. This
limit is switched off here; the verifier runs in a process that can be killed (scoring.py).

Math-Verify reads the number in `\$6`, `6 \text{ dollars}`, `1,000` and `5 cm`. It finds no number in `€6`, and reads
`6 dollars` as a product of letters and `1\,000` as one times zero. `plain` removes the signs that it misreads.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from scalerl.config.run import Scoring
from scalerl.tasks.base import Verdict, judged_text, verdict
from scalerl.types import Prompt

CURRENCY = re.compile(r"(?:\\(?:pounds|texteuro|textsterling|textyen|euro|yen)\b(?:\{\})?|[€£¥₹])\s*(?=[-+]?[\d.])")
"""A currency sign before a number."""
BEHIND = re.compile(r"(?<=\d)\s*(?:[€£¥₹]|\\(?:texteuro|textsterling|textyen|euro)\b(?:\{\})?)")
"""A currency sign after a number."""
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,;:! ]|[\u00a0\u2009\u202f])\d{3})+(?!\d)")
"""A number with thin or non-breaking spaces between its thousands."""
SPACED = re.compile(r"\d{1,3}(?: \d{3})+(?!\d)")
"""A number with plain spaces between its thousands; in a sentence this may be two numbers."""
BOXED = re.compile(r"(?<=\\boxed\{)\d{1,3}(?: \d{3})+(?=\})")
"""A number with plain spaces alone in a box; there it is one number."""
TAG = re.compile(r"</?[A-Za-z][\w-]+>")
"""A tag such as <answer>, next to which Math-Verify does not see a number. An inequality has no such text."""
SEPARATOR = re.compile(r"\\[,;:! ]|\s")
UNIT = re.compile(
    r"(?<=\d)\s*(?:(?:dollars?|euros?|rupees?)\b|(?:km/h|mph)\b|(?:cm|mm|km|ft)(?:\^(?:\{[23]\}|[23])|[²³]))"
)
"""A unit after a number. Single letters are excluded: m may be a variable."""


def plain(text: str) -> str:
    r"""Return a text with its amounts as bare numbers: `€1\,000` and `1000 dollars` become 1000."""
    text = BOXED.sub(_joined, THOUSANDS.sub(_joined, text))
    return UNIT.sub("", BEHIND.sub("", CURRENCY.sub("", text)))


def plain_reference(answer: str) -> str:
    """Return a reference answer with its amounts as bare numbers; it may begin with `12 000`."""
    answer = answer.strip()
    spaced = SPACED.match(answer.lstrip("$-+\\"))
    return plain(answer.replace(spaced[0], _joined(spaced), 1) if spaced else answer)


def _joined(match: re.Match[str]) -> str:
    return SEPARATOR.sub("", match[0])


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
    given = _parsed(plain(TAG.sub(" ", judged_text(completion))))
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
        if readings := _parsed(way):
            return readings
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
