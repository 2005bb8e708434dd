r"""Whether two mathematical answers are equal: rules for what is certain, then Math-Verify, then text.

Each rule is one function with two examples. It gets both answers in one spelling (notation.py) and returns True, False,
or None if it does not apply. The first verdict counts. Math-Verify decides what no rule decides.

Math-Verify limits its time with signal.alarm, which only works in the main thread and fails silently in others. This
limit is switched off here; the verifier runs in a process that can be killed (scoring.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from scalerl.tasks import values
from scalerl.tasks.notation import normal, squeezed
from scalerl.tasks.values import Number, number

REMEMBERED = 4096
"""Number of parsed answers and comparisons cached per process. Parsing takes 1 to 100 ms, and the completions of a
prompt share the reference and often the answer."""


class Judged(NamedTuple):
    """The verdict on two answers, and what decided it.

    Example: Judged(equal=True, by="numbers")
    """

    equal: bool
    by: str
    """Name of the rule, `math-verify`, or `text` for an answer that nothing could read."""


@lru_cache(REMEMBERED)
def judge(reference: str, answer: str) -> Judged:
    """Return whether an answer equals the reference; both are as they were written."""
    expected, got = normal(reference), normal(answer)
    if not expected or not got:
        return Judged(False, "empty")
    for rule in RULES:
        verdict = rule(expected, got)
        if verdict is not None:
            return Judged(verdict, rule.__name__)
    if not (is_readable(expected) and is_readable(got)):
        return Judged(False, "text")
    if words(reference) != words(answer):
        return Judged(False, "text")
    parsed = _read(expected), _read(got)
    if not all(parsed):
        return Judged(False, "text")
    return Judged(_same(*parsed), "math-verify")


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


_LETTER = re.compile(r"\(?([A-J])\)?[.:]?")
_CHOICE = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?(?:\(([A-Ja-j])\)|([A-J])(?:\)|[.:](?=\s|$)|(?=\s*$)))\s*(.*)", re.DOTALL
)


def choice(reference: str, answer: str) -> bool | None:
    """Read the letter of a choice before its text, or the text after its letter.

    Examples: `(C) 12` is the choice C; `(C) 12` is not the choice B.
    """
    letter, marked = _LETTER.fullmatch(reference), _CHOICE.fullmatch(answer)
    if letter and marked:
        return letter[1] == (marked[1] or marked[2]).upper()
    if not letter and marked and marked[3] and not _CHOICE.fullmatch(reference):
        return judge(reference, marked[3]).equal
    return None


_BASED = re.compile(r"\(?([0-9A-Za-z]+)\)?\s*_\s*\{?\s*(?:\()?\s*(\d{1,2}|[A-Za-z]+)\s*(?:\))?\s*\}?")
_BASES = {
    name: base
    for base, name in enumerate(
        (  # noqa: SIM905
            "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        ).split(),
        start=2,
    )
}  # fmt: skip


def bases(reference: str, answer: str) -> bool | None:
    """Compare numbers with a base by their values.

    Examples: `1011_{two}` is `1011_2`; `1011_3` is not `1011_2`.
    """
    expected, got = _in_base(reference), _in_base(answer)
    return None if expected is None or got is None else expected == got


def _in_base(text: str) -> int | None:
    match = _BASED.fullmatch(text)
    if match is None or len(match[1]) > 1000:
        return None
    base = int(match[2]) if match[2].isdigit() else _BASES.get(match[2].lower(), 0)
    try:
        return int(match[1], base) if 2 <= base <= 36 else None
    except ValueError:
        return None


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


_RELATIONS = re.compile(r"<|>|\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])")


def relation_and_number(reference: str, answer: str) -> bool | None:
    r"""Refuse an inequality for a number, and a number for an inequality.

    Examples: `\ge 5` is not 5; 5 is not `x > 5`.
    """
    for side, other in ((reference, answer), (answer, reference)):
        if _RELATIONS.search(side) and "=" not in side and number(other.removesuffix("%")) is not None:
            return False
    return None


EQUALS = re.compile(r"(?<![<>!:])=|\\(?:approx|simeq|sim|equiv|Rightarrow|to)(?![A-Za-z])")
"""A sign between the sides of an equation."""
_NAME = re.compile(
    r"(?:[A-Za-z](?:_\{?\w+\}?)?|\\[a-z]+|[A-Za-z](?:_\{?\w+\}?)?\([^()=]{1,20}\)"
    r"|\|?[A-Z]{2,4}\|?|\\angle\s*[A-Z]+|[A-Za-z]{2,}(?: [A-Za-z]+)*)'*"
)


def equation(reference: str, answer: str) -> bool | None:
    """Read the value of an equation where the reference is a value, or the reverse.

    Examples: `x = 5` is 5; `12 * 13 = 156` is 156.
    """
    if ("\\frac{d" in reference or "'" in reference) and "=" in reference:
        return None
    expected, got = sides(reference), sides(answer)
    if len(expected) > 1 and len(got) > 1:
        same_name = squeezed(expected[0]) == squeezed(got[0]) and len(expected) == len(got) == 2
        return judge(expected[1], got[1]).equal if same_name and _NAME.fullmatch(expected[0]) else None
    if len(got) > 1 and number(reference.removesuffix("%")) is not None and not _listed(answer):
        if "\\equiv" in answer:
            return None
        last = numbers(reference, got[-1])
        if last is not None or number(got[0]) is None:
            return bool(last) or (
                last is None and _NAME.fullmatch(got[-1]) is not None and bool(numbers(reference, got[0]))
            )
        return bool(numbers(reference, got[0]))
    for names, other in ((expected, answer), (got, reference)):
        if len(names) == 2 and _NAME.fullmatch(names[0]) and not EQUALS.search(other) and not _RELATIONS.search(other):
            if re.search(r"(?<![a-z])[xyz](?![a-z])", other) and re.search(r"[xyz]", names[0]):
                return None
            return judge(names[1], other).equal if names is expected else judge(other, names[1]).equal
    return None


def sides(text: str) -> list[str]:
    """Return the sides of an equation, or the text as its only side."""
    return [side.strip(" .,;$*") for side in EQUALS.split(text)]


def _listed(text: str) -> bool:
    return len(_items(text)[1]) > 1


_MATRIX = re.compile(r"\\begin\{([pbBvV]?matrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL)


def matrices(reference: str, answer: str) -> bool | None:
    """Compare matrices and vectors entry by entry.

    Examples: a column with 0.5 and 2 is a column with one half and 2; it is not the row of the same entries.
    """
    expected, got = _MATRIX.fullmatch(reference), _MATRIX.fullmatch(answer)
    if expected is None or got is None or "\\begin" in expected[2] + got[2]:
        return None
    tables = [
        [row.split("&") for row in match[2].strip().removesuffix("\\\\").split("\\\\")] for match in (expected, got)
    ]
    if [len(row) for row in tables[0]] != [len(row) for row in tables[1]]:
        return False
    rows = zip(*tables, strict=True)
    return all(judge(a, b).equal for row_a, row_b in rows for a, b in zip(row_a, row_b, strict=True))


_DOTS = re.compile(r"\\ldots|\.\.\.")


def dots(reference: str, answer: str) -> bool | None:
    r"""Compare a sequence with dots as text, and a sum with dots by its values.

    Examples: `1, 3, \ldots, 2n-1` is not `2, 4, \ldots, 2n`; `1 + 2 + \ldots + n` is `\frac{n(n+1)}{2}`.
    """
    dotted = [_DOTS.search(text) is not None for text in (reference, answer)]
    if not any(dotted):
        return None
    if all(dotted):
        spelled = [squeezed(_DOTS.sub("...", text)).strip(".,+") for text in (reference, answer)]
        if spelled[0] == spelled[1]:
            return True
    return _same_sums(reference, answer)


def _same_sums(reference: str, answer: str) -> bool:
    """Return whether two expressions in n, of which one or both are sums with dots, agree at n = 3, ..., 8."""
    expected, got = (_sum_with_dots(text) if _DOTS.search(text) else _in_n(text) for text in (reference, answer))
    if expected is None or got is None:
        return False
    for n in range(3, 9):
        target, value = expected(n), got(n)
        if target is None or value is None or not values.equal(value, target):
            return False
    return True


def _in_n(text: str) -> Callable[[int], Number | None] | None:
    """Return an expression with one letter as a function of it; None for other texts."""
    bare = re.sub(r"\\[A-Za-z]+", " ", text)
    letters = set(re.findall(r"[A-Za-z]", bare))
    if len(letters) != 1:
        return None
    (name,) = letters
    return lambda n: number(re.sub(rf"(?<![A-Za-z\\]){name}(?![A-Za-z])", f"({n})", text))


def _sum_with_dots(text: str) -> Callable[[int], Number | None] | None:
    terms = [term.strip() for term in text.split("+")]
    if len(terms) < 4 or not _DOTS.fullmatch(terms[-2]):
        return None
    first, last = [number(term) for term in terms[:-2]], _in_n(terms[-1])
    if last is None or None in first:
        return None
    for start in (1, 0, 2):
        shown = [last(start + at) for at in range(len(first))]
        if all(a is not None and b is not None and values.equal(a, b) for a, b in zip(shown, first, strict=True)):

            def total(n: int, start: int = start) -> Number | None:
                summands = [last(k) for k in range(start, n + 1)]
                return None if None in summands else Number(sum(term.value for term in summands if term), False)

            return total
    return None


_DERIVATIVE = re.compile(
    r"\\frac\s*\{\s*(?:d|\\partial)(?:\^\{?\d\}?)?\s*[A-Za-z]?\s*\}\s*\{\s*(?:d|\\partial)\s*[A-Za-z]|[A-Za-z]'"
)


def derivatives(reference: str, answer: str) -> bool | None:
    r"""Compare derivatives as text.

    Examples: `\frac{dy}{dx}` is not `\frac{y}{x}`; `\frac{dy}{dx} = 2x` is `\frac{dy}{dx} = x + x`.
    """
    if not any(_DERIVATIVE.search(text) for text in (reference, answer)):
        return None
    expected, got = sides(reference), sides(answer)
    if len(expected) == len(got) == 2:
        if any(_DERIVATIVE.search(text) for text in (expected[1], got[1])):
            return squeezed(reference) == squeezed(answer)
        return squeezed(expected[0]) == squeezed(got[0]) and judge(expected[1], got[1]).equal
    for pair, other in ((expected, answer), (got, reference)):
        if len(pair) == 2 and not _DERIVATIVE.search(pair[1]) and not _DERIVATIVE.search(other) and "=" not in other:
            return judge(other, pair[1]).equal
    return False


# --------------------------------------------------------------------------------------------------------- intervals

End = tuple[Fraction | float, bool]
"""An end of an interval: its value, and whether it belongs to the interval."""
_INTERVAL = re.compile(r"([(\[])([^,()\[\]]+|[^,\[\]]+),([^,\[\]]+)([)\]])")
_COMPARISON = re.compile(r"(<|>|\\le(?![a-z])|\\ge(?![a-z]))=?")


def intervals(reference: str, answer: str) -> bool | None:
    r"""Compare intervals with inequalities in one variable, as sets.

    Examples: `2 \le x \le 5` is `[2,5]`; `x > 1` is not `[1,\infty)`.
    """
    if squeezed(reference) == squeezed(answer):
        return True
    bracketed = [text.strip()[:1] in ("(", "[", "]") for text in (reference, answer)]
    related = [_RELATIONS.search(text) is not None or "\\in" in text for text in (reference, answer)]
    several = ["\\cup" in text or "\\infty" in text or _is_outward(text) for text in (reference, answer)]
    if not any(related) and not any(several):
        return None
    if any(related) and not any(bracketed) and not all(related):
        return None
    expected, got = _set_of(reference), _set_of(answer)
    return None if expected is None or got is None else expected == got


_OUTWARD = re.compile(r"([\[\]])([^\[\],;]+)[,;]([^\[\],;]+)([\[\]])")
"""An interval in the notation ]0, 1[, in which a bracket that points outward leaves out its end."""


def _is_outward(text: str) -> bool:
    return text.startswith("]") or text.endswith("[")


def _set_of(text: str) -> frozenset[tuple[End, End]] | None:
    """Return a set of real numbers as disjoint intervals; None if the text is no such set."""
    if "|" in text[:6] and "\\{" in text[:4]:
        text = re.sub(r"^\s*\\?\{?\s*([a-z])\s*(?:\||:|\\in\s*\\mathbb\{R\}\s*(?:\||:))", "", text).rstrip("} \\")
    member = re.match(r"\s*[a-z]\s*\\in(?![a-z])\s*", text)
    text = text[member.end() :] if member else text
    if text.strip() == "\\mathbb{R}":
        text = "(-\\infty,\\infty)"
    pieces: list[tuple[End, End]] = []
    for part in re.split(r"\\cup(?![a-z])|\bor\b|\\lor(?![a-z])", text):
        piece = _piece(part.strip(" ,.;"))
        if piece is None:
            return None
        pieces += piece
    return _joined(pieces)


def _piece(part: str) -> list[tuple[End, End]] | None:
    if outward := _OUTWARD.fullmatch(part):
        opening, closing = "(" if outward[1] == "]" else "[", ")" if outward[4] == "[" else "]"
        part = f"{opening}{outward[2]},{outward[3]}{closing}"
    if match := _INTERVAL.fullmatch(part):
        ends = _end(match[2]), _end(match[3])
        if ends[0] is None or ends[1] is None:
            return None
        return [((ends[0], match[1] == "["), (ends[1], match[4] == "]"))]
    if different := re.fullmatch(r"[a-z]\s*\\ne\s*(.+)", part):
        value = _end(different[1])
        return None if value is None else [((-_INFINITE, False), (value, False)), ((value, False), (_INFINITE, False))]
    if outside := re.fullmatch(r"\|\s*[a-z]\s*(?:([-+])\s*([^|]+))?\|\s*(>|\\ge(?![a-z]))\s*(.+)", part):
        size, shift = _end(outside[4]), _end(outside[2]) if outside[2] else Fraction(0)
        if size is None or shift is None or size < 0:
            return None
        middle, closed = (shift if outside[1] == "-" else -shift), outside[3] != ">"
        return [((-_INFINITE, False), (middle - size, closed)), ((middle + size, closed), (_INFINITE, False))]
    bounds = [_inequality(condition) for condition in re.split(r"\band\b|\\land(?![a-z])", part)]
    if None in bounds or len({name for name, _, _ in filter(None, bounds)}) != 1:
        return None
    lows, highs = [low for _, low, _ in filter(None, bounds)], [high for _, _, high in filter(None, bounds)]
    low = max(lows, key=lambda end: (end[0], not end[1]))
    high = min(highs, key=lambda end: (end[0], end[1]))
    return [(low, high)]


def _inequality(text: str) -> tuple[str, End, End] | None:
    r"""Return variable, low end and high end of `x < 3`, `2 \\le x < 5` or `|x| < 1`."""
    parts = _COMPARISON.split(text.replace("\\le =", "\\le").replace("<=", "\\le ").replace(">=", "\\ge "))
    terms, signs = [part.strip() for part in parts[::2]], parts[1::2]
    if (
        len(terms) == 2
        and (inside := re.fullmatch(r"\|\s*([a-z])\s*(?:([-+])\s*([^|]+))?\|", terms[0]))
        and signs[0] in ("<", "\\le")
    ):
        size, shift = _end(terms[1]), _end(inside[3]) if inside[3] else Fraction(0)
        if size is None or shift is None:
            return None
        middle = shift if inside[2] == "-" else -shift
        return inside[1], (middle - size, signs[0] == "\\le"), (middle + size, signs[0] == "\\le")
    names = [at for at, term in enumerate(terms) if re.fullmatch(r"[a-z]|\\(?:theta|alpha|lambda)", term)]
    if len(names) != 1 or len(terms) not in (2, 3) or (len(terms) == 3 and names[0] != 1):
        return None
    low: End = (-_INFINITE, False)
    high: End = (_INFINITE, False)
    for at, sign in enumerate(signs):
        upward = sign in ("<", "\\le")
        other = terms[at + 1] if names[0] == at else terms[at]
        value = _end(other)
        if value is None:
            return None
        end = (value, sign in ("\\le", "\\ge"))
        if (names[0] == at) == upward:
            high = end
        else:
            low = end
    return terms[names[0]], low, high


_INFINITE = float("inf")


def _end(text: str) -> Fraction | float | None:
    text = text.strip()
    if re.fullmatch(r"[-+]?\s*\\infty", text):
        return -_INFINITE if text.startswith("-") else _INFINITE
    read = number(text)
    if read is None:
        return None
    if isinstance(read.value, Fraction):
        return read.value
    return None if read.value.imag else round(float(read.value.real), 12)


def _joined(pieces: Sequence[tuple[End, End]]) -> frozenset[tuple[End, End]]:
    """Return disjoint intervals with the same union."""
    joined: list[tuple[End, End]] = []
    for low, high in sorted(pieces, key=lambda piece: (piece[0][0], not piece[0][1])):
        if low[0] > high[0] or (low[0] == high[0] and not (low[1] and high[1])):
            continue
        if joined and (low[0] < joined[-1][1][0] or (low[0] == joined[-1][1][0] and (low[1] or joined[-1][1][1]))):
            before = joined.pop()
            high = max(before[1], high, key=lambda end: (end[0], end[1]))
            low = before[0]
        joined.append((low, high))
    return frozenset(joined)


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
    names = [[_NAMED.match(item) for item in items] for items in (expected, got)]
    if all(all(matches) for matches in names):  # x = 1, y = 2
        labels = [[match[1] for match in matches if match] for matches in names]
        if len(set(labels[0])) > 1 or len(set(labels[1])) > 1:
            pairs = [
                sorted(zip(label, items, strict=True)) for label, items in zip(labels, (expected, got), strict=True)
            ]
            if sorted(labels[0]) != sorted(labels[1]):
                return False
            return all(judge(_value(a), _value(b)).equal for (_, a), (_, b) in zip(*pairs, strict=True))
    expected, got = [_value(item) for item in expected], [_value(item) for item in got]
    if any(number(item.removesuffix("%")) is None for item in (*expected, *got)):
        return None
    if len(expected) != len(got) and set(expected) != set(got):
        return False
    in_order = len(expected) == len(got) and all(bool(numbers(a, b)) for a, b in zip(expected, got, strict=True))
    if {opened, bracket} == {"(", "["} and len(expected) == 2:
        return None
    if opened == bracket and opened in ("(", "["):
        return in_order
    if in_order:
        return True
    if opened in ("", "{") and bracket in ("", "{"):
        return all(any(numbers(a, b) for b in got) for a in expected) and all(
            any(numbers(a, b) for a in expected) for b in got
        )
    return None


_NAMED = re.compile(r"\s*([A-Za-z](?:_\{?\w+\}?)?)\s*=\s*")


def _value(item: str) -> str:
    return _NAMED.sub("", item, count=1).strip()


def _items(text: str) -> tuple[str, list[str]]:
    """Return the opening bracket of a list, or an empty text, and its items; a plus-minus sign gives two."""
    text, opened = text.strip(), ""
    text = _NAMED.sub("", text, count=1) if re.match(r"\s*\(?[A-Za-z]\s*=\s*(?:\\?\{|\\pm)", text) else text
    for opener, closer in (("\\{", "\\}"), ("(", ")"), ("[", "]")):
        if text.startswith(opener) and text.endswith(closer):
            inside = text[len(opener) : -len(closer)]
            if _balanced(inside) and ("," in inside or ";" in inside):
                text, opened = inside, opener[-1]
                break
    items, depth, start = list[str](), 0, 0
    for match in re.finditer(r"\\?[({\[]|\\?[)}\]]|[,;]|\band\b|\bor\b", text):
        if match[0][-1] in "({[":
            depth += 1
        elif match[0][-1] in ")}]":
            depth -= 1
        elif not depth:
            items.append(text[start : match.start()])
            start = match.end()
    items.append(text[start:])
    signed = list[str]()
    for item in filter(None, (item.strip() for item in items)):
        for sign in ("\\pm", "\\mp"):
            if item.count(sign) == 1:
                signed += [item.replace(sign, "+"), item.replace(sign, "-")]
                break
        else:
            signed.append(item)
    return opened, signed


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        if depth < 0:
            return False
    return not depth


Rule = Callable[[str, str], bool | None]
RULES: tuple[Rule, ...] = (
    same_text, choice, bases, numbers, relation_and_number, dots, derivatives, matrices, intervals, lists, equation,
)  # fmt: skip
"""The rules in their order."""

# ------------------------------------------------------------------------------------------------------- Math-Verify


def prepare() -> None:
    """Load Math-Verify, which takes seconds, and enlarge its cache of 20 formulas."""
    from math_verify import parser

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at every call that its limit is off
    parser.parse_latex_cached = lru_cache(REMEMBERED)(parser.parse_latex_cached.__wrapped__)


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


@lru_cache(REMEMBERED)
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
