"""The policies by which a study spends its budget: the slices, and the arms that get each slice."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalerl.scaling import Curve, CurveError
from scalerl.study.directory import StudyDirectory


class Choice(NamedTuple):
    """The arms that continue, and the reason as text."""

    arms: Sequence[str]
    reason: str


class Spending(NamedTuple):
    """The slices of the budget, and the policy that chooses the arms."""

    shares: tuple[float, ...]
    """Ascending shares of an arm's budget; the last is 1. The policy is called before each share except the first."""
    policy: Callable[[StudyDirectory], Choice]


def everyone(study: StudyDirectory) -> Choice:
    """Choose all arms."""
    return Choice([arm.name for arm in study.plan.arms], "")


def by_forecast(study: StudyDirectory) -> Choice:
    """Choose the arms that may have the highest ceiling, none when the study is over; append to allocation.jsonl."""
    from scalerl.study.allocate import allocate

    axis, task = study.axis(), study.task()
    curves: dict[str, list[Curve]] = {}
    for key in study.runs():
        try:
            curves.setdefault(key.arm, []).append(Curve.read(study.run(key), axis=axis, task=task))
        except CurveError:  # the run failed before its second evaluation; its arm may have other runs
            continue
    known = {name: runs for name, runs in curves.items() if runs}
    if len(known) < 2:
        return Choice(list(known), "fewer than two arms have a curve")
    found = allocate(known)
    with (study.path / "allocation.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(found.to_dict(), allow_nan=False) + "\n")
    return Choice([name for name, verdict in found.verdicts.items() if verdict.go_on], str(found))


ALLOCATIONS: dict[str, Spending] = {
    "equal": Spending((1.0,), everyone),
    "forecast": Spending((0.25, 0.5, 0.75, 1.0), by_forecast),
}
"""equal: every arm gets its whole budget at once. forecast: the budget is spent in quarters, and after each only the
arms that may be the best continue."""
