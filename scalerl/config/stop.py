"""The type of `stop_when`: conditions as text, checked when the configuration is read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from scalerl.core.errors import short


def checked_conditions(value: Any) -> tuple[str, ...]:
    """Return the conditions as a tuple; accept a single condition without a list.

    Raises:
        ValueError: A value is not text, or not a condition; the message lists the allowed forms.
    """
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"got {short(value)}; allowed: a condition as text, or a list of them")
    conditions = (value,) if isinstance(value, str) else tuple(value)
    if conditions:
        # imported here so that reading a configuration does not load numpy
        from scalerl.scaling.stop import FORMS, stop_rule

        for condition in conditions:
            if not isinstance(condition, str):
                raise ValueError(f"got {short(condition)}; allowed: {FORMS}, with other numbers")
            stop_rule(condition)
    return conditions


StopWhen = Annotated[tuple[str, ...], BeforeValidator(checked_conditions)]
