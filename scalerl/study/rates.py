"""The best learning rate of each loss, from a finished sweep of them. It knows no other plan, and runs nothing."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

from scalerl.parts import ConfigError
from scalerl.study.directory import StudyDirectory, rows

LAST_POINTS = 3
"""Evaluations at the end of a run whose mean a sweep goes by."""


def best_rates(path: Path) -> dict[str, float]:
    """Return for each loss the learning rate that ended highest in a `rates` study: the mean of its last evaluations.

    Raises:
        ConfigError: no such study, or a run of it is not finished.
    """
    study = StudyDirectory.open(path)
    ends: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key in study.runs():
        config = study.config(key)
        if study.step(key) < config.steps:
            raise ConfigError(f"--rates: {study.run(key)} is not finished; go on with: scalerl study resume {path}")
        points = [row["pass_rate"] for row in rows(study.run(key) / "points.jsonl")][-LAST_POINTS:]
        ends[config.recipe.loss.kind][config.recipe.optimizer.learning_rate].append(statistics.fmean(points))
    return {kind: max(by_rate, key=lambda rate: statistics.fmean(by_rate[rate])) for kind, by_rate in ends.items()}
