r"""The exact value of a text of numbers and operations, in LaTeX or plain: 1/2 of `\frac{1}{2}`, 0.5 and `2^{-1}`.

Math-Verify compares numbers with an absolute tolerance, in which 1/2031! is 1/2029!. Here rational numbers are
fractions, and others have 60 digits. A text with a variable, or with a sign that is not known here, has no value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple

LONGEST_EXPRESSION = 2000
"""Characters of the longest text that is evaluated."""
DEEPEST_NESTING = 40
"""Deepest nesting of a text that is evaluated."""
COMPUTED_BITS = 200_000
"""Bits of the largest whole number that is computed."""
MOST_FACTORIAL = 10_000
MOST_DIGITS = 60
"""Digits of a number that is no fraction."""
TOLERANCE, RELATIVE = Fraction(5, 10**7), Fraction(2, 10**5)
"""Distance within which a decimal stands for another number: that of six decimals, and for small numbers this share of
the reference."""
VALUE_TOKEN = re.compile(r"\d+(?:\.\d*)?|\.\d+|\\[A-Za-z]+|\*\*|\S")
CLOSED = {"(": ")", "{": "}", "[": "]"}


class NoValue(Exception):
    """The text has no value that is known here."""


class TooLarge(NoValue):
    """The value is a number that takes too long to compute."""


UNREADABLE = (NoValue, ValueError, ArithmeticError, RecursionError, TypeError, AttributeError)
"""What reading a text without a value raises."""


class Number(NamedTuple):
    """The value of a text."""

    value: Any
    """A Fraction, or a complex number of mpmath."""
    decimal: bool
    """Whether the text has a decimal, which may be rounded."""


@cache
def _digits() -> Any:
    """Return mpmath's functions with `MOST_DIGITS` digits; the precision that SymPy uses stays as it is."""
    import mpmath  # type: ignore[import-untyped]

    context = mpmath.mp.clone()
    context.dps = MOST_DIGITS
    return context


@lru_cache(8192)
def number(text: str) -> Number | None:
    r"""Return the value of a text: `\frac{1}{2}` and `2\sqrt{3}` have one, `x + 1` has none."""
    if len(text) > LONGEST_EXPRESSION:
        return None
    reader = _Reader(VALUE_TOKEN.findall(text))
    with suppress(*UNREADABLE):
        value = reader.sum()
        if not reader.peek() and (isinstance(value, Fraction) or _digits().isfinite(value)):
            return Number(value, reader.decimal)
    return None


def is_too_large(text: str) -> bool:
    """Return whether a text has a value that takes too long to compute, as 9^{9^{9^9}} or 9!!!!!."""
    if re.search(r"!\s*!\s*!", text):
        return True
    try:
        _Reader(VALUE_TOKEN.findall(text[:LONGEST_EXPRESSION])).sum()
    except UNREADABLE as error:
        return isinstance(error, TooLarge)
    return False


def equal(value: Number, reference: Number) -> bool:
    """Return whether two values are equal; a decimal may be rounded, by at most `TOLERANCE` of the reference."""
    rounded = value.decimal or reference.decimal
    if isinstance(value.value, Fraction) and isinstance(reference.value, Fraction):
        distance, size = abs(value.value - reference.value), abs(reference.value)
        return distance == 0 or (rounded and distance <= min(TOLERANCE, RELATIVE * size))
    context = _digits()
    a, b = context.convert(value.value), context.convert(reference.value)
    tolerance = (
        min(context.convert(TOLERANCE), RELATIVE * abs(b)) if rounded else context.mpf(10) ** -45 * (abs(b) or 1)
    )
    return bool(abs(a - b) <= tolerance)


class _Reader:
    """Reads tokens from left to right; each method returns the value of what it read."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.depth, self.decimal = tokens, 0, 0, False

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.next() != token:
            raise NoValue

    def sum(self) -> Any:
        value = self.product()
        while self.peek() in ("+", "-"):
            value = value + self.product() if self.next() == "+" else value - self.product()
        return value

    def product(self) -> Any:
        value, divided = self.signed(), False
        while token := self.peek():
            if token in ("*", "\\cdot", "\\times", "\\ast"):
                self.next()
                value, divided = value * self.signed(), False
            elif token in ("/", "\\div"):
                self.next()
                value, divided = value / self.signed(), token == "/"
            elif token in ("\\bmod", "\\mod"):
                self.next()
                value = value % self.signed()
            elif token in ("(", "{", "[") or token in LETTERS or token in LATEX_COMMANDS:
                if divided:  # 1/2\pi has two readings
                    raise NoValue
                value = value * self.power()
            else:
                break
        return value

    def signed(self) -> Any:
        if self.peek() in ("+", "-"):
            return self.signed() if self.next() == "+" else -self.signed()
        return self.power()

    def power(self) -> Any:
        value = self.atom()
        while token := self.peek():
            if token == "!":
                self.next()
                step = 1 + (self.peek() == "!")  # 5!! is 5 * 3 * 1
                self.at += step - 1
                value = _factorial(value, step)
            elif token in ("^", "**"):
                self.next()
                if self.peek() == "\\circ":
                    raise NoValue
                value = _power(value, self.group() if self.peek() == "{" else self.signed())
            else:
                break
        return value

    def group(self) -> Any:
        opened = self.next()
        self.depth += 1
        if opened not in CLOSED or self.depth > DEEPEST_NESTING:
            raise NoValue
        value = self.sum()
        self.expect(CLOSED[opened])
        self.depth -= 1
        return value

    def argument(self) -> Any:
        """Read the argument of a command: a group, or one digit or letter."""
        if self.peek() == "{":
            return self.group()
        token = self.next()
        if token.isdigit() and len(token) == 1:
            return Fraction(int(token))
        raise NoValue

    def atom(self) -> Any:
        token = self.peek()
        if token in CLOSED:
            return self.group()
        self.next()
        if token[:1].isdigit() or (token[:1] == "." and len(token) > 1):
            if "." in token:
                self.decimal = True
                return Fraction(token.rstrip(".") if len(token) < 1000 else token[:1000])
            if self.peek() == "\\frac":
                return self.mixed(int(token))
            if self.peek()[:1].isdigit():
                raise NoValue
            return Fraction(int(token))
        if token in LETTERS:
            return _digits().mpc(getattr(_digits(), LETTERS[token]))
        if token in LATEX_COMMANDS:
            return LATEX_COMMANDS[token](self, token)
        raise NoValue

    def mixed(self, integer: int) -> Any:
        r"""Read a mixed number such as `2\\frac{1}{3}`; a product such as `2\\frac{\\pi}{3}` has letters."""
        start = self.at
        self.next()
        above, below = self.argument(), self.argument()
        digits = all(token.isdigit() or token in "{}" for token in self.tokens[start + 1 : self.at])
        if digits and not 0 < above < below:
            raise NoValue
        return integer + above / below if digits else integer * above / below

    def fraction(self, _: str) -> Any:
        above = self.argument()
        return above / self.argument()

    def root(self, _: str) -> Any:
        degree = self.group() if self.peek() == "[" else Fraction(2)
        return _root(self.argument(), degree)

    def choose(self, _: str) -> Any:
        above, below = self.argument(), self.argument()
        if above.denominator == below.denominator == 1 and 0 <= below <= above <= MOST_FACTORIAL:
            return Fraction(math.comb(int(above), int(below)))
        raise NoValue

    def function(self, token: str) -> Any:
        name, base, exponent = token[1:], None, None
        if name == "log" and self.peek() == "_":
            self.next()
            base = self.argument()
        if self.peek() == "^":
            self.next()
            exponent = self.argument()
        value = self.operand(name)
        context = _digits()
        if name == "log" and base is not None:
            result = _complex(context.log(value)) / context.log(base)
        elif name in ("log", "lg"):  # natural or common: the text does not say
            raise NoValue
        else:
            result = _complex(getattr(context, FUNCTIONS[name])(value))
        return result if exponent is None else _power(result, exponent)

    def operand(self, name: str) -> Any:
        """Read the argument of a function: a group, or factors up to the next sign; degrees become radians."""
        grouped = self.peek() in ("(", "{")
        value = self.degrees(self.atom(), name)
        while not grouped and (token := self.peek()) and (token == "\\pi" or token == "^"):
            if token == "^":
                self.next()
                value = _power(value, self.argument())
            else:
                value = self.degrees(value * self.atom(), name)
        if self.peek() in ("/", "^", "!"):
            raise NoValue
        return value

    def degrees(self, value: Any, name: str) -> Any:
        if self.tokens[self.at : self.at + 2] == ["^", "\\circ"]:
            self.at += 2
            if FUNCTIONS.get(name) not in ("sin", "cos", "tan", "cot", "sec", "csc"):
                raise NoValue
            return value * _complex(_digits().pi) / 180
        return value


LETTERS = {"e": "e", "\\pi": "pi", "i": "j"}
FUNCTIONS = {"exp": "exp", "ln": "log"} | {
    name: name.replace("arc", "a") for name in ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan")
}
LATEX_COMMANDS: dict[str, Callable[[_Reader, str], Any]] = {
    "\\frac": _Reader.fraction,
    "\\sqrt": _Reader.root,
    "\\binom": _Reader.choose,
    **{f"\\{name}": _Reader.function for name in (*FUNCTIONS, "log", "lg")},
}


def _complex(value: Any) -> Any:
    return _digits().mpc(_digits().convert(value))


def _factorial(value: Any, step: int) -> Fraction:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise NoValue
    if value > MOST_FACTORIAL:
        raise TooLarge
    return Fraction(math.factorial(int(value)) if step == 1 else math.prod(range(int(value), 0, -step)))


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, Fraction) and isinstance(base, Fraction):
        if exponent.denominator == 1:
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if bits * abs(exponent) > COMPUTED_BITS:
                raise TooLarge
            return base ** int(exponent)
        return _root(_power(base, Fraction(exponent.numerator)), Fraction(exponent.denominator))
    return _digits().power(_complex(base), _complex(exponent))


def _root(value: Any, degree: Any) -> Any:
    """Return the principal root; that of a perfect power is exact, and an odd root of a negative number is real."""
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 1 <= degree <= 100:
        raise NoValue
    order = int(degree)
    if not isinstance(value, Fraction):
        return _digits().root(_complex(value), order)
    sign = -1 if value < 0 and order % 2 else 1
    if value * sign >= 0:
        exact = [_whole_root(abs(part), order) for part in (value.numerator, value.denominator)]
        if None not in exact:
            return sign * Fraction(exact[0] or 0, exact[1] or 1)
    return sign * _digits().root(_complex(value * sign), order)


def _whole_root(value: int, order: int) -> int | None:
    root = math.isqrt(value) if order == 2 else int(_digits().nint(_digits().root(value, order)))
    return root if root**order == value else None
