"""Extraction of answers for a majority vote: equal answers give equal texts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from scalerl.tasks.amounts import plain
from scalerl.tasks.base import judged_text
from scalerl.tasks.gym import final_answer
from scalerl.tasks.lab.common import after_thinking


def math_answer(completion: str) -> str | None:
    """Return the expression that the verifier would compare, with numbers as fractions: 0.5 and 1/2 are equal."""
    import sympy
    from math_verify import parse

    found = parse(plain(judged_text(completion)), parsing_timeout=None)
    if not found:
        return None
    expression = found[0]
    if isinstance(expression, sympy.Expr) and expression.is_number and expression.is_rational is not False:
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):
            expression = sympy.nsimplify(expression, rational=True)
    return str(expression)


def gym_answer(completion: str) -> str | None:
    """Return the final answer in lower case without outer spaces; None if it is empty."""
    return final_answer(completion).casefold() or None


ANSWERS: dict[str, Callable[[str], str | None]] = {
    "arithmetic": after_thinking,
    "math": math_answer,
    "programs": after_thinking,
    "reasoning-gym": gym_answer,
}
"""Functions by verifier. The answers of other verifiers, such as whole programs, cannot be counted."""
