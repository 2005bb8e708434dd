r"""Verifier of mathematical answers: Math-Verify on the text after the thinking.

Math-Verify limits its time with signal.alarm, which only works in the main thread and fails silently in others. This
limit is switched off here; the verifier runs in a process that can be killed (scoring.py).

Math-Verify reads the number in `\$6`, `6 \text{ dollars}`, `1,000` and `5 cm`. It finds no number in `€6`, and reads
`6 dollars` as a product of letters and `1\,000` as one times zero. `plain` removes the signs that it misreads.

Math-Verify accepts `12 * 13` for 156, so it would reward a repetition of "What is 12 * 13?". If the reference is a
number, the answer must be one too (`number_stated`).
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from scalerl.config.run import Scoring
from scalerl.tasks.base import Verdict, judged_text, verdict
from scalerl.tasks.repetition import repeats_expression, spelled, stands_in
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


_settings = Scoring()
"""The settings of this process (`prepare`)."""


def prepare(settings: Scoring) -> None:
    """Store the settings, load Math-Verify, which takes seconds, and enlarge its cache of 20 formulas."""
    global _settings
    from math_verify import parser

    _settings = settings
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at every call that its limit is off
    parser.parse_latex_cached = lru_cache(REMEMBERED)(parser.parse_latex_cached.__wrapped__)


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return whether the last expression of the text after the thinking equals the answer mathematically.

    If the reference is a number, the expression must state a number, or be an equation with a side that does.
    """
    gold = reference(prompt.answer)
    if not gold:
        return verdict(False, f"the reference {prompt.answer!r} is not a mathematical expression")
    text = plain(TAG.sub(" ", judged_text(completion)))
    given = _parsed(text)
    if not given:
        return verdict(False, "found no mathematical expression in the answer")
    reason, answer, passed = f"got {given[-1]}, expected {prompt.answer}", str(given[-1]), _equal(gold, given)
    expected = numeral(gold, prompt.answer) if passed else None
    if expected is not None:
        number = number_stated(gold, given, text)
        if number is not None:
            answer = number
            passed = _notation(number) == _notation(expected) or not stands_in(number, prompt)
        else:
            passed = _settings.closed_forms and not repeats_expression(answer, prompt)
        if not passed:
            reason = f"got {answer}, which repeats the prompt or is not worked out; expected the number {prompt.answer}"
    return verdict(passed, reason)._replace(answer=answer)


DECIMAL = r"[-+]?(?:\d+\.?\d*|\.\d+)"
FRACTION = r"[-+]?(?:\d+ +)?[-+]?\d+ ?/ ?[-+]?\d+"
SCIENTIFIC = rf"{DECIMAL} ?\* ?10 ?\^ ?[-+]?\d+"
NUMERAL = re.compile(rf"(?:{FRACTION}|{SCIENTIFIC}|{DECIMAL}) ?%?")
"""A number in digits, in the spelling of `spelled`; a fraction may be mixed."""
HALF = re.compile(r"(?<![\d.])0?\.5(?!\d)")
DEGREE = re.compile(r"\^ ?\\circ\b|\\degree\b|°")
OPERATION = re.compile(
    r"[*^] ?[\w\\]|[/!_|]|binom|frac|\\(?:choose|bmod|pmod|mod|det|begin)\b|\d ?[-+] ?\d|[-+] ?[-+]|\d +\d"
)
"""An operation in a text that Math-Verify reads as a number: it carries out some operations, and overlooks others."""
RELATION = re.compile(r"=|\\(?:approx|simeq|sim|equiv|Rightarrow|rightarrow|implies|to)\b|[≈→⇒]")
BEFORE, AFTER = re.compile(r"(\S+)\s*=\s*(?:\$|\\boxed\{)*\s*$"), re.compile(r"[}$\s]*=\s*(\S+)")
"""The sides of an equation of which Math-Verify reads one side: `156 = 12 * 13`, `\\boxed{12 * 13} = 156`."""


def numeral(readings: tuple[Any, ...], source: str) -> str | None:
    r"""Return the number that an expression is, in digits; None if it is another expression, or an operation.

    Numbers are 12, -1,250.5, 50%, 3/4, 2 1/2, 1.5 \times 10^3, 60^\circ and \text{7}. A fraction that is an integer,
    such as 24/4, is an operation.

    Args:
        readings: Math-Verify's reading of a text: the expression, and its text, in which 0.5 is \frac{1}{2}.
        source: The text that was read.
    """
    from sympy import FiniteSet, Mul, Number, Symbol, UnevaluatedExpr

    value, text = readings[0], DEGREE.sub("", spelled(str(readings[-1]))).strip()
    if isinstance(value, FiniteSet) and len(value.args) == 1:
        (value,) = value.args
    if isinstance(value, Symbol):  # \text{7}
        text = spelled(value.name)
    elif isinstance(value, Number):
        rest, fractions = re.subn(FRACTION, "7", text, count=1)
        found = NUMERAL.search(text)
        if found is None or OPERATION.search(rest) or (fractions and value.is_Integer):
            return None
        return "0.5" if found[0] == "1/2" and HALF.search(source) else found[0]
    elif not isinstance(value, Mul) or ("/" in text and value.doit().is_Integer):
        return None  # percents, powers of ten and some fractions are products
    percent = "%" if value.has(UnevaluatedExpr) and "%" not in text else ""  # left out of the text without a box
    return text + percent if NUMERAL.fullmatch(text) else None


def number_stated(gold: tuple[Any, ...], given: tuple[Any, ...], text: str) -> str | None:
    """Return the number that an accepted answer states: itself, or a side of its equation that equals the reference.

    Args:
        gold: Reading of the reference.
        given: Reading of the answer, which equals the reference.
        text: The text in which the answer stands.

    Returns:
        The number in digits; None if there is only an expression with its value.
    """
    number, read = numeral(given, text), str(given[-1])
    if number is not None:
        return number
    start = text.rfind(read)
    before, after = BEFORE.search(text[:start]), AFTER.match(text[start + len(read) :])
    outside = [match[1] for match in (before, after) if match and start >= 0]
    for side in (*reversed(RELATION.split(read)), *outside):
        readings = _parsed(f"\\boxed{{{side.strip(' .,;$*')}}}")
        number = numeral(readings, side) if readings and _equal(gold, readings) else None
        if number is not None:
            return number
    return None


def _notation(number: str) -> str:
    """Return digits without plus, percent sign, leading and trailing zeros: 7.0, +7 and 7% are the same notation."""
    text = number.replace(" ", "").strip("+%")
    return f"{float(text):.15g}" if re.fullmatch(DECIMAL, text) else text


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
