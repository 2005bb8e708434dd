r"""Whether two mathematical answers are equal: rules for what is certain, then Math-Verify, then text.

Each rule is one function with two examples. It gets both answers in one spelling (notation.py) and returns True, False,
or None if it does not apply. The first verdict counts. Math-Verify decides what no rule decides.

Math-Verify limits its time with signal.alarm, which only works in the main thread and fails silently in others. This
limit is switched off here; the verifier runs in a process that can be killed (scoring.py).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from scalerl.training.rewards import values
from scalerl.training.rewards.notation import normal, one_spelling, squeezed
from scalerl.training.rewards.units import convert
from scalerl.training.rewards.values import Number, number
from scalerl.training.rewards.words import WORD_VALUES, changes_number

REMEMBERED_ANSWERS = 4096
"""Number of parsed answers and comparisons cached per process. Parsing takes 1 to 100 ms, and the completions of a
prompt share the reference and often the answer."""


class EqualityVerdict(NamedTuple):
    """The verdict on two answers, and what decided it.

    Example: Judged(equal=True, by="numbers")
    """

    equal: bool
    by: str
    """Name of the rule, `math-verify`, or `text` for an answer that nothing could read."""


@lru_cache(REMEMBERED_ANSWERS)
def judge(reference: str, answer: str) -> EqualityVerdict:
    """Return whether an answer equals the reference; both are as they were written."""
    (expected, unit), (got, other) = one_spelling(reference), one_spelling(answer)
    if not expected or not got:
        return EqualityVerdict(False, "empty")
    if (unit or _GLUED.fullmatch(expected)) and not other:
        got, other = one_spelling(_GLUED.sub(r"\1 \2", got))
    if (other or _GLUED.fullmatch(got)) and not unit:
        expected, unit = one_spelling(_GLUED.sub(r"\1 \2", expected))
    if unit and other and unit != other:
        got = convert(got, other, unit) or ""
    strange = unit and not other and re.fullmatch(r"[-+]?[\d.,]+ [A-Za-z]", got)
    if not got or strange or (unit and got.endswith("%")) or (other and expected.endswith("%")):
        return EqualityVerdict(False, "units")
    if changes_number(expected) or changes_number(got):
        return EqualityVerdict(squeezed(expected) == squeezed(got), "text")
    for rule in EQUALITY_RULES:
        verdict = rule(expected, got)
        if verdict is not None:
            return EqualityVerdict(verdict, rule.__name__)
    if not (is_readable(expected) and is_readable(got)):
        return EqualityVerdict(False, "text")
    if words(reference) != words(answer):
        return EqualityVerdict(False, "text")
    parsed = _read(expected), _read(got)
    if not all(parsed):
        return EqualityVerdict(False, "text")
    return EqualityVerdict(_same(*parsed), "math-verify")


_GLUED = re.compile(r"^([-+]?[\d.,]+)([A-Za-z])$")
"""A number and a letter, as 5m: a product, unless the other answer has a unit or such a letter, too."""


def words(text: str) -> str:
    r"""Return the words of an answer that is text, in lower case; an empty text for a formula.

    Examples: `\text{No solution}` -> `no solution`; `x + y` -> ``.
    """
    plain = normal(text)
    if not re.fullmatch(r"[A-Za-z][A-Za-z '.-]*", plain):
        return ""
    several = len([word for word in plain.split() if len(word) > 1]) > 1
    marked = re.search(r"\\(?:text|mathrm|textbf|mbox)\s*\{[^{}]*[A-Za-z]{2}", text) is not None
    long = len(plain) > 3 and re.search(r"[aeiouAEIOU]", plain) is not None and plain not in ("cosec",)
    return " ".join(plain.casefold().split()) if several or marked or long else ""


# ------------------------------------------------------------------------------------------------------------- rules


def same_text(reference: str, answer: str) -> bool | None:
    r"""Accept equal texts.

    Examples: `5:30 PM` is `5:30 pm`; `B \\cup A` is `A \\cup B`.
    """
    if squeezed(reference) == squeezed(answer):
        # x and X may be two variables, so the case counts in a formula
        letters = [re.sub(r"\s", "", text) for text in (reference, answer)]
        if (
            letters[0] == letters[1]
            or re.search(r"[A-Za-z]{2}", re.sub(r"\\[A-Za-z]+", "", reference))
            or len(reference) < 2
        ):
            return True
    for sign in ("\\cup", "\\cap"):
        parts = [sorted(squeezed(part) for part in text.split(sign)) for text in (reference, answer)]
        if (
            len(parts[0]) > 1
            and parts[0] == parts[1]
            and not (sign == "\\cap" and re.search(r"[()]", reference.replace("(-", "")))
        ):
            return True
    return None


_CHOICE = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?(?:\(([A-Ja-j])\)|([A-J])(?:\)|[.:](?=\s|$)|(?=\s*$)))\s*(.*)", re.DOTALL
)
_BETWEEN = re.compile(r"\b(?:and|options?|choices?|answers?|both|only)\b|[\s,;/&(){}\[\].\\]", re.IGNORECASE)


def choice(reference: str, answer: str) -> bool | None:
    """Compare the letters of choices; behind one letter may stand its text, which is read if the reference is a text.

    Examples: `(C) 12` is the choice C; `(A) and (C)` is `AC`, but not the choice A.
    """
    expected, got = letters(reference), letters(answer)
    if expected and got:
        return expected == got
    marked = _CHOICE.fullmatch(answer)
    if marked and len(expected) == 1:
        return expected == (marked[1] or marked[2]).upper()
    if not expected and marked and marked[3] and not _CHOICE.fullmatch(reference):
        return judge(reference, marked[3]).equal
    return None


def letters(text: str) -> str:
    """Return the letters of one or several choices in order; empty for other texts, such as `BA`, a product."""
    found = _BETWEEN.sub("", text)
    if not re.fullmatch(r"[A-J]{1,10}", found) or len(set(found)) < len(found):
        return ""
    ordered = "".join(sorted(found))
    return ordered if found == ordered or found not in text else ""


_TIME = re.compile(r"(\d{1,2})(?::([0-5]\d))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)


def times(reference: str, answer: str) -> bool | None:
    """Compare times of day; where the answer lacks a.m. or p.m., either is meant.

    Examples: `15:45` is `3:45 PM`; `3:45 AM` is not `3:45 PM`.
    """
    expected, got = _TIME.fullmatch(reference), _TIME.fullmatch(answer)
    if not expected or not got or not (":" in reference or expected[3]) or not (":" in answer or got[3]):
        return None
    (hour, known), (other, told) = _hour(expected), _hour(got)
    same = hour == other or (not (known and told) and (known or int(got[1]) < 13) and (hour - other) % 12 == 0)
    return same and int(expected[2] or 0) == int(got[2] or 0)


def _hour(match: re.Match[str]) -> tuple[int, bool]:
    """Return the hour of a time, and whether its half of the day is known."""
    hour = int(match[1])
    return (hour % 12 + 12 * (match[3].lower() == "p"), True) if match[3] else (hour, not 1 <= hour <= 12)


_BASED = re.compile(r"\(?(\w+)\)?\s*_\s*[{(\s]*(\w+)[)}\s]*")


def bases(reference: str, answer: str) -> bool | None:
    """Compare numbers with a base.

    Examples: `1011_{two}` is `1011_2`; `1011_3` is not `1011_2`.
    """
    expected, got = _BASED.fullmatch(reference.lower()), _BASED.fullmatch(answer.lower())
    if not expected or not got or not expected[1][0].isdigit():
        return None
    return expected[1] == got[1] and str(WORD_VALUES.get(expected[2], expected[2])) == str(
        WORD_VALUES.get(got[2], got[2])
    )


def numbers(reference: str, answer: str) -> bool | None:
    r"""Compare two numbers by their values; a percentage stands for its number of percent, too.

    Examples: `\frac{4}{11}` is `0.\overline{36}`; `\frac{1}{2029!}` is not `\frac{1}{2031!}`.
    """
    expected, got = number(reference.removesuffix("%")), number(answer.removesuffix("%"))
    if expected is None or got is None:
        return None
    percents = reference.endswith("%"), answer.endswith("%")
    if percents[0] == percents[1]:
        return values.equal(got, expected)
    hundredth = _hundredth(got) if percents[1] else got
    share = _hundredth(expected) if percents[0] else expected
    if values.equal(hundredth, share):
        return True
    small = isinstance(got.value, Fraction) and abs(got.value) < 1  # \frac{1}{2}\% is not one half
    return values.equal(got, expected) and not (percents[1] and small)


def _hundredth(value: Number) -> Number:
    return value._replace(value=value.value / 100)


EQUATION_SIGN = re.compile(r"(?<![<>!:])=|\\(?:approx|simeq|sim|equiv|Rightarrow|to)(?![A-Za-z])")
"""A sign between the sides of an equation."""


def sides(text: str) -> list[str]:
    """Return the sides of an equation, or the text as its only side."""
    return [side.strip(" .,;$*") for side in EQUATION_SIGN.split(text)]


_DOTS = re.compile(r"\\ldots|\.\.\.")


def dots(reference: str, answer: str) -> bool | None:
    r"""Compare a sequence with dots as text, and a sum with dots by its values.

    Examples: `1, 3, \ldots, 2n-1` is not `2, 4, \ldots, 2n`; `1 + 2 + \ldots + n` is `\frac{n(n+1)}{2}`.
    """
    if not _DOTS.search(reference + answer):
        return None
    values_of = [[_at(text, n) for n in range(3, 9)] for text in (reference, answer)]
    return all(
        expected is not None and got is not None and values.equal(got, expected)
        for expected, got in zip(*values_of, strict=True)
    )


def _at(text: str, n: int) -> Number | None:
    """Return the value at n of an expression with one letter, in which a sum with dots is written out."""
    names = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", text)))
    *shown, last = (term.strip() for term in text.split("+"))
    if len(names) != 1:
        return None

    def put(expression: str, value: int) -> str:
        return re.sub(rf"(?<![A-Za-z\\]){min(names)}(?![A-Za-z])", f"({value})", expression)

    if not shown or not _DOTS.fullmatch(shown.pop()):
        return number(put(text, n))
    for start in (1, 0, 2):
        if len(shown) > 1 and [number(put(last, start + at)) for at in range(len(shown))] == [*map(number, shown)]:
            return number("+".join(put(last, value) for value in range(start, n + 1)))
    return None


# --------------------------------------------------------------------------------------------------------- intervals

_INTERVAL = re.compile(r"([(\[\]])([^,;()\[\]]+|[^,;\[\]]+)[,;]([^,;\[\]]+)([)\[\]])")
_OF_SETS = re.compile(r"\\(?:cup|infty|in)(?![a-z])|\[\s*$|^\s*\]")
_RELATION = re.compile(r"(<|>|\\le(?![a-z])|\\ge(?![a-z]))\s*=?|\\ne(?![a-z])")
_DISTANCE = re.compile(r"\|\s*([a-z])\s*(?:([-+])\s*([^|]+))?\|\s*(<|>|\\[lg]e)\s*(.+)")
IntervalEnd = tuple[Any, int]
"""An end of an interval: its value, and +1 or -1 for what is just above or below it, which an open end starts from."""


def intervals(reference: str, answer: str) -> bool | None:
    r"""Compare intervals with inequalities in one variable, as sets; an inequality is no number.

    Examples: `2 \le x \le 5` is `[2,5]`; `x > 1` is not `[1,\infty)`.
    """
    both = (reference, answer)
    related = [_RELATION.search(text) is not None for text in both]
    if related[0] != related[1] and any(number(text.removesuffix("%")) for text in both):
        return False
    if all(related) or not (any(related) or any(map(_OF_SETS.search, both))):
        return None
    expected, got = map(_set_of, both)
    return None if expected is None or got is None else expected == got


def _set_of(text: str) -> list[tuple[IntervalEnd, IntervalEnd]] | None:
    """Return a set of real numbers as disjoint intervals in order; None if the text is no such set."""
    text = re.sub(r"^\s*\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\{R\}\s*)?[|:]|\\\}\s*$|^\s*[a-z]\s*\\in(?![a-z])", "", text)
    pieces = []
    for part in re.split(r"\\cup(?![a-z])|\bor\b|\\lor(?![a-z])", re.sub(r"[^|]*\|[^|]*\|.*|.*\\ne.*", _halves, text)):
        piece = _piece(part.strip(" ,.;"))
        if piece is None:
            return None
        pieces.append(piece)
    joined: list[tuple[IntervalEnd, IntervalEnd]] = []
    for low, high in sorted(pieces):
        if joined and low <= (joined[-1][1][0], joined[-1][1][1] + 1):
            low, high = joined[-1][0], max(joined.pop()[1], high)
        if low <= high:
            joined.append((low, high))
    return joined


def _halves(match: re.Match[str]) -> str:
    """Return a distance, as |x - 1| < 2, and an inequation as inequalities in x alone."""
    if away := _DISTANCE.fullmatch(match[0].strip()):
        name, sign, shift, relation, size = away.groups()
        middle = f"({'-' if sign == '+' else ''}({shift or 0}))"
        if relation in ("<", "\\le"):
            return f"{middle}-({size}) {relation} {name} {relation} {middle}+({size})"
        return f"{name} {relation.translate(_TURNED)} {middle}-({size}) or {name} {relation} {middle}+({size})"
    name, _, value = match[0].partition("\\ne")
    return f"{name} < {value} or {name} > {value}" if value else match[0]


_TURNED = {ord(">"): "<", ord("g"): "l"}


def _piece(part: str) -> tuple[IntervalEnd, IntervalEnd] | None:
    """Return the ends of an interval, or of the numbers that meet inequalities joined by "and"."""
    low, high = (-math.inf, 1), (math.inf, -1)
    if match := _INTERVAL.fullmatch(part):
        ends = [(match[2], 0 if match[1] == "[" else 1, True), (match[3], 0 if match[4] == "]" else -1, False)]
    elif part == "\\mathbb{R}":
        ends = []
    else:
        ends, names = [], set()
        for condition in re.split(r"\band\b|\\land(?![a-z])", part):
            terms, signs = [term.strip() for term in _RELATION.split(condition)[::2]], _RELATION.findall(condition)
            for sign, left, right in zip(signs, terms, terms[1:], strict=False):
                up, loose = sign in ("<", "\\le"), sign in ("\\le", "\\ge")
                is_left = re.fullmatch(r"[a-z]|\\(?:theta|alpha|lambda)", left) is not None
                ends.append((right if is_left else left, 0 if loose else 1 if is_left != up else -1, is_left != up))
                names.add(left if is_left else right)
        if len(names) != 1 or number(min(names)) is not None or not re.fullmatch(r"[a-z]|\\[a-z]+", min(names)):
            return None
    for text, side, is_low in ends:
        end = _end(text)
        if end is None:
            return None
        low, high = (max(low, (end, side)), high) if is_low else (low, min(high, (end, side)))
    return low, high


def _end(text: str) -> Any:
    text = text.strip()
    if re.fullmatch(r"[-+]?\s*\\infty", text):
        return -math.inf if text.startswith("-") else math.inf
    read = number(text)
    if read is None or isinstance(read.value, Fraction):
        return read and read.value
    return None if read.value.imag else round(float(read.value.real), 12)


# ------------------------------------------------------------------------------------------------------ sets and lists


def lists(reference: str, answer: str) -> bool | None:
    r"""Compare lists of numbers: in any order without brackets or as sets, in order as tuples.

    Examples: `\pm 3` is `3, -3`; `(3,8)` is not `\{3,8\}`.
    """
    (opened, expected), (bracket, got) = _items(reference), _items(answer)
    if len(expected) < 2 and len(got) < 2:
        return None
    if {opened, bracket} == {"{", "("} and min(len(expected), len(got)) > 1:
        return False
    if any(number(normal(item).removesuffix("%")) is None for item in (*expected, *got)):
        return None
    if {opened, bracket} == {"(", "["}:
        return None
    if "(" in (opened, bracket) or "[" in (opened, bracket):
        return len(expected) == len(got) and all(judge(a, b).equal for a, b in zip(expected, got, strict=True))
    equal = [[judge(a, b).equal for b in got] for a in expected]
    return all(map(any, equal)) and all(map(any, zip(*equal, strict=True)))


_NAMED = re.compile(r"\(?[A-Za-z](?:_\{?\w+\}?)?\s*=\s*(?=\S)")


def _items(text: str) -> tuple[str, list[str]]:
    """Return the opening bracket of a list, or an empty text, and its items; a plus-minus sign gives two."""
    text = text.strip()
    if len(names := _NAMED.findall(text)) > 0 and len(set(names)) == 1:  # x = 1 or x = -1
        text = _NAMED.sub("", text)
    items, depth, outermost, opened = [""], 0, True, ""
    for part in re.split(r"(\\?[({\[]|\\?[)}\]]|[,;]|\band\b|\bor\b)", text):
        if part in (",", ";", "and", "or") and not depth:
            items.append("")
            outermost = False
        else:
            depth += (part[-1:] in ("(", "{", "[")) - (part[-1:] in (")", "}", "]"))
            items[-1] += part
    if outermost and (match := re.fullmatch(r"(\\\{)(.*[,;].*)\\\}|(\()(.*[,;].*)\)|(\[)(.*[,;].*)\]", text)):
        bracket, inside = filter(None, match.groups())
        opened, (_, items) = bracket[-1], _items(inside)
    signed = ([item.replace(sign, "+"), item.replace(sign, "-")] if sign in item else [item]
              for item in items for sign in ["\\mp" if "\\mp" in item else "\\pm"])  # fmt: skip
    return opened, [item.strip() for pair in signed for item in pair if item.strip()]


EqualityRule = Callable[[str, str], bool | None]
EQUALITY_RULES: tuple[EqualityRule, ...] = (
    same_text, choice, times, bases, numbers, dots, intervals, lists,
)  # fmt: skip
"""The rules in their order."""

# ------------------------------------------------------------------------------------------------------- Math-Verify


def prepare() -> None:
    """Load Math-Verify, which takes seconds, and enlarge its cache of 20 formulas."""
    from math_verify import parser

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at every call that its limit is off
    parser.parse_latex_cached = lru_cache(REMEMBERED_ANSWERS)(parser.parse_latex_cached.__wrapped__)


def read(text: str) -> tuple[Any, ...]:
    """Return Math-Verify's reading of a text: expression and its text; empty if there is none."""
    from math_verify import parse

    return tuple(parse(text, parsing_timeout=None))


MOST_CHARACTERS, MOST_BRACKETS = 2000, 30
"""Size and nesting of the largest text for Math-Verify, whose time grows faster than both."""


def is_readable(text: str) -> bool:
    """Return whether Math-Verify can read a text in about a second."""
    if len(text) > MOST_CHARACTERS or re.search(r"\d{400}", text) or values.is_too_large(text):
        return False
    depth = deepest = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return deepest <= MOST_BRACKETS


@lru_cache(REMEMBERED_ANSWERS)
def _read(answer: str) -> tuple[Any, ...]:
    """Return the reading of a whole answer; empty if Math-Verify reads only a part of it, such as its last number."""
    readings = read(f"\\boxed{{{answer}}}")
    if not readings or not isinstance(readings[-1], str) or len(readings) < 2:
        return ()
    digits = [len(re.sub(r"\D", "", text)) for text in (answer, readings[-1])]
    return readings if digits[0] <= digits[1] else ()


def _same(gold: tuple[Any, ...], answer: tuple[Any, ...]) -> bool:
    """Return whether any reading of one answer equals any reading of the other."""
    from math_verify import verify

    return bool(verify(list(gold), list(answer), timeout_seconds=None))
