"""The steps of the checkpoints of a run, and which of them was evaluated best. Does not import torch."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from scalerl.core.types import EvalPoint

_NAME = re.compile(r"step_(\d{6,})$")


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of all complete checkpoints in a directory `checkpoints`, in order."""
    matches = [_NAME.match(path.name) for path in directory.glob("step_*")]
    return sorted(int(match[1]) for match in matches if match)


def held_out_rates(points: Iterable[EvalPoint], tasks: Collection[str]) -> dict[int, float]:
    """Return the mean held-out pass rate of a run's tasks by step.

    Args:
        points: Evaluations of the run.
        tasks: Its tasks, without suites; a step at which one of them was not evaluated is left out.
    """
    rates: dict[int, dict[str, float]] = defaultdict(dict)
    for point in points:
        if point.task in tasks:
            rates[point.step][point.task] = point.pass_rate
    means = {
        step: math.fsum(task_rates.values()) / len(task_rates)
        for step, task_rates in rates.items()
        if len(task_rates) == len(tasks)
    }
    return {step: mean for step, mean in means.items() if math.isfinite(mean)}


def best_step(steps: Iterable[int], rates: Mapping[int, float]) -> int | None:
    """Return the checkpoint with the highest pass rate, the last of equal ones; None if none was evaluated.

    Example: best_step([20, 40, 60], {20: 0.5, 40: 0.7, 50: 0.9}) == 40
    """
    return max((step for step in steps if step in rates), key=lambda step: (rates[step], step), default=None)
