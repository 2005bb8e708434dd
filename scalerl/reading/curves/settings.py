"""Settings of runs: the columns of the law over them, combinations to choose from, and settings without an answer.

Axes in names: N runs, S settings, P columns, J directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from scalerl.core.errors import nearest
from scalerl.reading.curves.law import Array
from scalerl.reading.tables.errors import CurveError

Setting = Mapping[str, float | str]
"""Values of the settings of a run by name; text is a category."""

MOST_SETTINGS = 128
"""Largest number of settings that are compared: those nearest to a run."""


def setting_of(row: Mapping[str, Any], names: Sequence[str], of: str) -> dict[str, float | str]:
    """Return the settings of a run from its fields by name; numbers as floats, a range as its upper end.

    Args:
        row: All fields of the run.
        names: Fields that are settings.
        of: The run, for the error.

    Raises:
        CurveError: A field is not known, or has no value that can be a setting.
    """
    for name in names:
        if name not in row:
            raise CurveError(f"{of} has no setting {name!r}{nearest(name, row)}; give a field of config.toml")
    setting = {name: as_value(row[name]) for name in names}
    check_setting(setting, of)
    return setting


def as_value(value: Any) -> float | str:
    """Return a number as a float, a range as its upper end, and anything else as text; None is empty text."""
    value = value[-1] if isinstance(value, list | tuple) and value else value
    try:
        return str(value) if isinstance(value, bool) else float(value)
    except OverflowError:  # an integer
        return math.copysign(math.inf, value)
    except (TypeError, ValueError):
        return "" if value is None else str(value).strip()


MISSING = ("", "None", "null", "NULL", "NA", "N/A", "n/a", "#N/A", "<NA>")
"""Texts with which programs write a missing value. "none" is a value of some fields of config.toml."""


def check_setting(setting: Setting, of: str) -> None:
    """Raise if a value is missing, or is a number that is not finite; neither is a category."""
    for name, value in setting.items():
        missing = value in MISSING if isinstance(value, str) else not math.isfinite(value)
        if missing:
            raise CurveError(
                f"{of}: the setting {name!r} is {value!r}; allowed: a finite number, or text as a category. Give it a "
                "value, leave the run out, or leave the setting out of --vary"
            )


@dataclass(frozen=True)
class Design:
    """The columns of the law: one, the centered logs of numbers, and one column per category."""

    numbers: dict[str, tuple[float, float]]
    """Center of the log by name, and 1 to take log(1 + x) because a value is 0, else 0."""
    categories: dict[str, list[str]]

    @classmethod
    def of(cls, settings: Sequence[Setting]) -> Design:
        """Return the design of these settings."""
        names = list(settings[0])
        numbers, categories = {}, {}
        for name in names:
            values = [setting[name] for setting in settings]
            if all(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 for value in values):
                shift = float(min(values) == 0)
                numbers[name] = (float(np.log(np.array(values, dtype=float) + shift).mean()), shift)
            else:
                categories[name] = sorted({str(value) for value in values})
        return cls(numbers, categories)

    def columns(self, settings: Sequence[Setting]) -> tuple[Array, list[str]]:
        """Return the columns, shape (N, P), and the name of the setting of each; the first, "", is one."""
        columns, names = [np.ones(len(settings))], [""]
        for name, (center, shift) in self.numbers.items():
            columns.append(np.log(np.array([float(s[name]) for s in settings]) + shift) - center)
            names.append(name)
        for name, levels in self.categories.items():
            columns += [np.array([float(str(s[name]) == level) for s in settings]) for level in levels]
            names += [name] * len(levels)
        return np.stack(columns, axis=1), names

    def distances(self, settings: Sequence[Setting], others: Sequence[Setting]) -> Array:
        """Return the distance of each setting from each other one, the sum over columns, shape (S, N)."""
        columns_SP, columns_NP = self.columns(settings)[0], self.columns(others)[0]
        # one column at a time: together they would need P times the memory
        return np.asarray(sum(np.abs(columns_SP[:, p, None] - columns_NP[:, p]) for p in range(columns_SP.shape[1])))


def setting_text(setting: Setting) -> str:
    """Return a setting as text: width 128, prompts_per_step 16."""
    values = ((name, f"{value:g}" if isinstance(value, int | float) else value) for name, value in setting.items())
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in values)


def distinct(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return the different settings, in a fixed order."""
    return [dict(items) for items in sorted({tuple(s.items()) for s in settings}, key=str)]


def setting_combinations(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return all combinations of the values that were run, at most `MOST_SETTINGS`; only those of runs if too many."""
    values = {name: sorted({setting[name] for setting in settings}, key=lambda v: (str(type(v)), v)) for name in
              settings[0]}  # fmt: skip
    if np.prod([float(len(options)) for options in values.values()]) > MOST_SETTINGS**2:
        return distinct(settings)[:MOST_SETTINGS]
    combinations = [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]
    apart_S = Design.of(settings).distances(combinations, settings).min(axis=1)
    return [combinations[i] for i in np.sort(np.argsort(apart_S, kind="stable")[:MOST_SETTINGS])]


def check_settings(settings: Sequence[Setting]) -> None:
    """Raise if a setting has no usable value, does not vary, or varies only together with others."""
    if len(settings) < 2:
        raise CurveError(f"a law over settings needs at least two runs that rise; got {len(settings)}")
    if len({tuple(setting) for setting in settings}) > 1 or not settings[0]:
        raise CurveError(f"every run needs the same settings by name; got {sorted({tuple(s) for s in settings})}")
    for setting in settings:
        check_setting(setting, "one of the runs")
    constant = [name for name in settings[0] if len({s[name] for s in settings}) < 2]
    if constant:
        raise CurveError(f"{', '.join(constant)} does not vary: it is {settings[0][constant[0]]} in all runs. Leave it "
                         "out, or add a run with another value")  # fmt: skip
    columns_NP, names = independent(settings, settings)
    rank = np.linalg.matrix_rank(columns_NP)
    if rank == len(names):
        return
    # the combinations of columns that are zero in all runs
    null_JP = np.linalg.svd(columns_NP)[2][rank:]
    mixed = dict.fromkeys(name for name, column in zip(names, null_JP.T, strict=True) if name and np.ptp([0, *column]) >
                          1e-6)  # fmt: skip
    combinations = setting_combinations(settings)
    rows_SP, _ = independent(combinations, settings)
    helpful = [
        combination
        for combination, row in zip(combinations, rows_SP, strict=True)
        if np.linalg.matrix_rank([*columns_NP, row]) > rank
    ]
    add = f"Add a run with {setting_text(helpful[0])}" if helpful else "Add runs in which only one of them changes"
    raise CurveError(
        f"{' and '.join(mixed)} vary together in these runs, so their effects cannot be told apart. {add}, or leave "
        "one out"
    )


def check_added(also: Sequence[Setting], settings: Sequence[Setting]) -> None:
    """Raise if an added setting has other names, a category that was not run, or a number without a logarithm."""
    design = Design.of(settings)
    for setting in also:
        if set(setting) != set(settings[0]):
            raise CurveError(f"an added setting needs {', '.join(settings[0])}; got {', '.join(setting) or 'nothing'}")
        for name, levels_of in design.categories.items():
            if str(setting[name]) not in levels_of:
                raise CurveError(f"{name} {setting[name]!r} was not run; allowed: {', '.join(levels_of)}")
        for name, (_, shift) in design.numbers.items():
            value = setting[name]
            if isinstance(value, str) or not (np.isfinite(value) and value + shift > 0):
                raise CurveError(f"{name} must be a positive number; got {value!r}")


def independent(settings: Sequence[Setting], like: Sequence[Setting]) -> tuple[Array, list[str]]:
    """Return the columns of the design and their names, without the first category of each setting."""
    design = Design.of(like)
    columns_NP, names = design.columns(settings)
    columns = [p for p, name in enumerate(names) if name not in design.categories or name == names[p - 1]]
    return columns_NP[:, columns], [names[p] for p in columns]
