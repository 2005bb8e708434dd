"""The type of `stop_when`: conditions in words, checked when the configuration is read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from scalerl.config.base import short


def checked_conditions(value: Any) -> tuple[str, ...]:
    """Return the conditions as a tuple; one alone may be given without a list.

    Raises:
        ValueError: not text, or no condition; the message says what is allowed.
    """
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"got {short(value)}; allowed: a condition as text, or a list of them")
    conditions = (value,) if isinstance(value, str) else tuple(value)
    if conditions:
        # only here: reading a configuration loads no numpy otherwise
        from scalerl.scaling.stop import FORMS, stop_rule

        for condition in conditions:
            if not isinstance(condition, str):
                raise ValueError(f"got {short(condition)}; allowed: {FORMS}, with other numbers")
            stop_rule(condition)
    return conditions


StopWhen = Annotated[tuple[str, ...], BeforeValidator(checked_conditions)]
