"""Finds the best learning rate of each loss in a finished study that sweeps learning rates."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

from scalerl.core.errors import ConfigError
from scalerl.core.rows import read_points
from scalerl.study.directory import StudyDirectory
from scalerl.study.plan import rates_by_loss

LAST_POINTS = 3
"""Number of evaluations at the end of a run whose mean a sweep compares."""


def best_rates(path: Path) -> dict[str, float]:
    """Return for each loss the learning rate with the highest mean of the last evaluations in a `rates` study.

    Raises:
        ConfigError: The study does not exist, or one of its runs is not finished.
    """
    return {kind: max(ends, key=ends.__getitem__) for kind, ends in _ends(StudyDirectory.open(path)).items()}


def sweep_note(study: StudyDirectory) -> str:
    """Return a note with the best rate of each loss; empty if the study sweeps no rates or is not finished."""
    if max(map(len, rates_by_loss(study.plan).values())) < 2:
        return ""
    try:
        ends = _ends(study)
    except ConfigError:  # not finished
        return ""
    found = []
    for kind, by_rate in ends.items():
        best = max(by_rate, key=by_rate.__getitem__)
        edge = " (at the edge of the sweep: the best may lie beyond)" if best in (min(by_rate), max(by_rate)) else ""
        found.append(f"{kind} {best:g}{edge}, {by_rate[best]:.3f}")
    return f"learning rates that ended highest, by the mean of the last {LAST_POINTS} evaluations: {'; '.join(found)}"


def _ends(study: StudyDirectory) -> dict[str, dict[float, float]]:
    """Return the mean over seeds and the last evaluations, by loss and learning rate."""
    ends: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key in study.runs():
        config = study.config(key)
        if study.step(key) < config.steps:
            raise ConfigError(
                f"--rates: {study.run(key)} is not finished; resume it with: scalerl study resume {study.path}"
            )
        points = [point.pass_rate for point in read_points(study.run(key))][-LAST_POINTS:]
        ends[config.recipe.loss.kind][config.recipe.optimizer.learning_rate].append(statistics.fmean(points))
    return {kind: {rate: statistics.fmean(found) for rate, found in by_rate.items()} for kind, by_rate in ends.items()}
