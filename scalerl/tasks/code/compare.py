"""Comparison of a program's output with the expected output. It runs outside the sandbox, on plain data."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from scalerl.core.errors import short

NUMBER = re.compile(r"[+-]?(\d{1,800}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)


def difference(got: str, wanted: str) -> str | None:
    """Return the first difference of two outputs; None if they are equal.

    The rule is LiveCodeBench's. White space around the output and around each line is ignored. The numbers of lines
    must be equal, and each pair of lines must have the same text or the same tokens. Two tokens are the same if their
    texts are equal or both are numbers of exactly the same value: 1.0 equals 1.00 and 1e0, but 0.33 is not 0.333.
    """
    got_lines, wanted_lines = ([line.strip() for line in text.strip().split("\n")] for text in (got, wanted))
    for number, (line, expected) in enumerate(zip(got_lines, wanted_lines, strict=False), start=1):
        if line != expected and not _same_tokens(line.split(), expected.split()):
            return f"line {number}: expected {short(expected)}, got {short(line)}"
    if len(got_lines) != len(wanted_lines):
        return f"expected {len(wanted_lines)} lines, got {len(got_lines)}"
    return None


def _same_tokens(got: list[str], wanted: list[str]) -> bool:
    return len(got) == len(wanted) and all(map(_same_token, got, wanted))


def _same_token(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    return bool(NUMBER.fullmatch(got) and NUMBER.fullmatch(wanted)) and Decimal(got) == Decimal(wanted)


def value_difference(got: Any, wanted: Any, wrapped: bool = False) -> str | None:
    """Return how a returned value differs from the expected value; None if they are equal.

    1 equals 1.0 and True; NaN equals nothing.

    Args:
        got: Returned value in JSON's types (`as_json` of guest/plain.py).
        wanted: Expected value, from JSON.
        wrapped: Whether an expected [x] also matches x.
    """
    if got == wanted or (wrapped and isinstance(wanted, list) and len(wanted) == 1 and got == wanted[0]):
        return None
    return f"expected {short(wanted)}, got {short(got)}"
