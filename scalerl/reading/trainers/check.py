"""Compares a configuration of another trainer with ScaleRL, component by component.

A quantity of a case is the name of a setting or a number, and operators between such words that apply from left to
right: "epsilon_high or epsilon" (the second if the first is no number), "batch // mini_batch * epochs" ("//" rounds
down), "prompts min mini_batch", "1 + clip". It is missing where one of its words is no number.

A condition has a quantity at its left and one of these at its right, or a list of which one must hold:

    true, false                 on or off: text such as "False", "null" and "0" is off
    16, 0.9                     the number
    "> 1", "< 1", "8 to 16"     a limit or a range of the number
    "missing"                   it is no number
    "has pool"                  its text contains "pool"
    "token-mean"                the word, in any case
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from scalerl.reading.trainers.data import COMPONENTS, Component, ConditionalSetting, Trainer
from scalerl.reading.trainers.read import UNRESOLVED


class Row(NamedTuple):
    """A line of the table.

    Example: Row("loss", "DAPO's clip, 0.2 and 0.28", "CISPO, ratio capped at 5", False, "ceiling 0.52 ...", "ceiling")
    """

    component: str
    theirs: str
    scalerl: str
    same: bool | None
    """None if the file does not say it."""
    measured: str
    moved: str
    settings: tuple[str, ...]
    """Names of the settings that decided the row, in the order of the trainer's file."""


def check(trainer: Trainer, settings: Mapping[str, Any]) -> list[Row]:
    """Return a row for each component of the recipe."""
    settings = adapted(trainer, settings)
    return [_row(trainer, component, settings) for component in COMPONENTS]


def adapted(trainer: Trainer, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by the names of a trainer, whose arguments in a script may be its fields: --loss_type."""
    if any(name.startswith("--") for name in trainer.settings):
        return dict(settings)
    return {name[2:].replace("-", "_") if name.startswith("--") else name: settings[name] for name in settings}


def _row(trainer: Trainer, component: Component, settings: Mapping[str, Any]) -> Row:
    values = Values(trainer, settings)
    case = values.first(trainer.components[component.key])
    kind = component.kinds[case["is"]] if "is" in case else {}
    outcome = {**kind, **values.first(kind.get("cases", ()), case), **case}
    words, same = values.rendered(outcome["words"], case), outcome.get("same", False)
    used = tuple(name for name in trainer.settings if name in values.used)
    computed = [name for name in used if settings.get(name) == UNRESOLVED]
    if computed:
        words, same = f"{computed[0]} is computed by the script", "unknown"
    elif used and not any(name in settings for name in used):
        words += " (default)"
    measured, moved = ("-", "-") if same else (outcome.get("measured", "not measured"), outcome.get("moved", "-"))
    return Row(component.title, words, component.ours, None if same == "unknown" else same, measured, moved, used)


class Values:
    """The settings of a file, and the trainer's defaults for the others."""

    def __init__(self, trainer: Trainer, settings: Mapping[str, Any]) -> None:
        self.trainer, self.settings = trainer, settings
        self.used = set[str]()
        """Names of the settings that were read."""

    def first(
        self, cases: Iterable[ConditionalSetting], quantities: ConditionalSetting | None = None
    ) -> ConditionalSetting:
        """Return the first case whose conditions all hold, for its own or the given quantities; else an empty one."""
        for case in cases:
            known = case if quantities is None else quantities
            if all(holds(self.quantity(text, known), wanted) for text, wanted in case.get("if", {}).items()):
                return case
        return {}

    def rendered(self, words: str, case: ConditionalSetting) -> str:
        """Return words with their quantities, in braces: {n}, or {n:,} with commas at the thousands."""

        def shown(match: re.Match[str]) -> str:
            value = self.quantity(match[1], case)
            amount = setting_number(value)
            if amount is None:
                return "?" if value is None else str(value)
            return f"{int(amount):,}" if match[2] else f"{amount:.10g}".replace("e-0", "e-")

        return re.sub(r"\{([^{}:]+)(:,)?\}", shown, words)

    def quantity(self, text: str, case: ConditionalSetting | None = None) -> Any:
        """Return a quantity, or the setting as it is where the text is one name; None if it is missing."""
        first, *rest = text.split()
        result = self._operand(first, case)
        for sign, word in zip(rest[::2], rest[1::2], strict=True):
            if sign == "or":
                result = self._operand(word, case) if setting_number(result) is None else result
                continue
            left, right = setting_number(result), setting_number(self._operand(word, case))
            known = left is not None and right is not None and not (sign == "//" and right == 0)
            result = OPERATORS[sign](left, right) if known else None
        return result

    def _operand(self, word: str, case: ConditionalSetting | None) -> Any:
        for quantities in (case or {}, self.trainer.quantities):
            if word in quantities:
                return self.quantity(quantities[word])
        literal = setting_number(word)
        if literal is not None:
            return literal
        setting = self.trainer.setting(word)
        self.used.add(setting.name)
        return self.settings.get(setting.name, setting.default)


OPERATORS: dict[str, Callable[[Any, Any], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "min": min,
    "max": max,
}


def setting_number(value: Any) -> float | None:
    """Return a finite number, also one that is written as text; None if it is none."""
    try:
        amount = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return amount if amount is None or math.isfinite(amount) else None


def holds(value: Any, wanted: bool | float | str | list[Any]) -> bool:
    """Return whether a condition holds for a value."""
    if isinstance(wanted, list):
        return any(holds(value, one) for one in wanted)
    amount, word = setting_number(value), str(value).strip().lower()
    if isinstance(wanted, bool):
        return wanted is (word not in OFF_WORDS if amount is None else amount != 0)
    if isinstance(wanted, int | float):
        return amount == wanted
    match wanted.split():
        case [">", limit]:
            return amount is not None and amount > float(limit)
        case ["<", limit]:
            return amount is not None and amount < float(limit)
        case [low, "to", high]:
            return amount is not None and float(low) <= amount <= float(high)
        case ["missing"]:
            return amount is None
        case ["has", part]:
            return part in str(value)
    return word == wanted


OFF_WORDS = ("", "false", "no", "none", "null", "off")
"""Text that stands for off in YAML, in Hydra's overrides and on command lines."""


def recognized(trainers: Iterable[Trainer], settings: Mapping[str, Any]) -> list[Trainer]:
    """Return the trainers whose settings are in a file, the most probable first.

    A trainer counts by the number of its settings in the file. Files of Hydra and of scripts have other names too.
    """
    scores = {trainer.name: _matches(trainer, settings) for trainer in trainers}
    matches = [trainer for trainer in trainers if scores[trainer.name]]
    return sorted(matches, key=lambda trainer: -scores[trainer.name])


def _matches(trainer: Trainer, settings: Mapping[str, Any]) -> int:
    settings = adapted(trainer, settings)
    if not any(name.startswith(trainer.required) for name in settings):
        return 0
    return sum(name in trainer.settings for name in settings)
