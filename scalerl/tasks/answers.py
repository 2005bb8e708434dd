"""The answer of a completion as a text that is equal for equal answers: what a majority vote counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from scalerl.tasks.amounts import plain
from scalerl.tasks.base import judged_text
from scalerl.tasks.gym import final_answer
from scalerl.tasks.lab.common import after_thinking


def math_answer(completion: str) -> str | None:
    """Return the expression that the verifier would compare, numbers as fractions: 0.5 and 1/2 are one answer."""
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
    """Return the final answer without case and outer spaces; None for an empty one."""
    return final_answer(completion).casefold() or None


ANSWERS: dict[str, Callable[[str], str | None]] = {
    "arithmetic": after_thinking,
    "math": math_answer,
    "programs": after_thinking,
    "reasoning-gym": gym_answer,
}
"""By verifier. Others have no answers that could be counted, such as programs of many lines."""
