"""Fits every run of a study and compares each arm with the reference.

Axes in names: S runs (seeds), D draws.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scalerl.core.rows import read_rows
from scalerl.scaling import Curve, CurveError, Estimate, Fit, compare, fit
from scalerl.scaling.compare import (
    common_ceiling,
    log_efficiency,
    seed_scatter,
    shuffled,
    side_mean,
    summarize_ratio,
)
from scalerl.scaling.estimate import summarize
from scalerl.scaling.law import Array
from scalerl.study.directory import StudyDirectory
from scalerl.study.execute import STOPPED
from scalerl.study.notes import notes
from scalerl.study.plan import Arm, RunKey
from scalerl.study.results import METRICS, ArmResult, RunResult, StudyResult, failed, reasons
from scalerl.study.verdicts import effect_of, sentence_of


def study_results(study: StudyDirectory, axis: str | None = None, task: str | None = None) -> StudyResult:
    """Fit all runs with their points so far, and compare every arm with the reference.

    Args:
        study: The study, finished or not.
        axis: Compute axis; None: the default of the runs.
        task: Task whose curve is fitted, if runs have several; None: the first task of the base.

    Raises:
        ConfigError: No run of the study has this axis or task.
    """
    study.check_view(axis, task)
    plan, axis, task = study.plan, axis or study.axis(), task or study.task()
    runs: dict[str, list[RunResult]] = defaultdict(list)
    failures = _failures(study)
    for key in study.runs():
        runs[key.arm].append(_run(study, key, axis, task, failures.get(key, "")))
    fits = {name: [run.fit for run in found if run.fit is not None] for name, found in runs.items()}
    everything = [f for found in fits.values() for f in found]
    scatter = _scatter(everything, list(fits.values())) if everything else None
    arms = [_arm(arm, plan.reference, runs[arm.name], fits, scatter) for arm in plan.arms]
    return StudyResult(
        name=plan.name,
        about=plan.about,
        path=study.path,
        reference=plan.reference,
        axis=axis,
        arms=tuple(arms),
        common_asymptote=scatter.common if scatter else None,
        seed_sd=scatter.sd if scatter else None,
        seed_source=scatter.source if scatter else "",
        notes=tuple(notes(study, arms)),
    )


class _Scatter(NamedTuple):
    """Quantities that all arms share: the scatter between seeds, and the ceiling at which B is compared."""

    draws: Array
    sd: float
    source: str
    common: float


def _scatter(everything: Sequence[Fit], by_arm: Sequence[Sequence[Fit]]) -> _Scatter:
    width = float(np.ptp(everything[0].curve.bounds))
    draws, source = seed_scatter([fits for fits in by_arm if fits], width, np.random.default_rng(0))
    sd = float(np.median(draws))
    return _Scatter(draws, sd, source, common_ceiling(everything, sd))


def _arm(
    arm: Arm, reference: str, runs: Sequence[RunResult], fits: Mapping[str, Sequence[Fit]], scatter: _Scatter | None
) -> ArmResult:
    """Compare one arm with the reference."""
    arm_fits, rng = fits[arm.name], np.random.default_rng(0)
    against = None
    if arm.name != reference and arm_fits and fits[reference]:
        siblings = [found for name, found in fits.items() if found and name not in (arm.name, reference)]
        against = compare(arm_fits, fits[reference], siblings=siblings)
    effect = "reference" if arm.name == reference else effect_of(against)
    estimates: dict[str, Estimate | None] = dict.fromkeys(("asymptote", "efficiency", "midpoint"))
    if arm_fits and scatter is not None:
        estimates = {
            "asymptote": summarize(side_mean([shuffled(f.draws.asymptote, rng) for f in arm_fits], scatter.draws, rng)),
            "efficiency": _geometric([log_efficiency(f.curve, scatter.common, scatter.sd, rng) for f in arm_fits]),
            "midpoint": _geometric([np.log(shuffled(f.draws.midpoint, rng)) for f in arm_fits]),
        }
    return ArmResult(
        name=arm.name,
        about=arm.about,
        runs=tuple(runs),
        comparison=against,
        effect=effect,
        sentence=sentence_of(arm.name, reference, effect, against, "" if arm_fits else reasons(runs)),
        **estimates,
    )


def _geometric(log_SD: Sequence[Array]) -> Estimate:
    """Return the geometric mean over seeds, from draws of logarithms."""
    return summarize_ratio(np.mean(log_SD, axis=0))


def _failures(study: StudyDirectory) -> dict[RunKey, str]:
    """Return the last message of each run whose latest process failed."""
    last = {RunKey(row["arm"], row["seed"]): row for row in study.journal()}
    return {key: row["said"] for key, row in last.items() if row["code"] and row["code"] not in STOPPED}


def _run(study: StudyDirectory, key: RunKey, axis: str, task: str | None, failure: str) -> RunResult:
    path, config = study.run(key), study.config(key)
    curve, found, problem = None, None, ""
    if (path / "points.jsonl").exists():
        try:
            curve = Curve.read(path, axis=axis, task=task)
            found = fit(curve)
        except CurveError as error:  # too short, or no progress; the other runs are still used
            problem = str(error)
    else:
        problem = failed(failure) or "not started"
    step = study.step(key)
    return RunResult(key, path, step, config.steps, curve, found, problem, _metrics(path), failure)


def _metrics(path: Path) -> dict[str, float]:
    spent = ("device_hours", "flops", "tokens")
    rows = read_rows(path / "metrics.jsonl")
    listed = [row for row in rows if all(isinstance(row.get(name), int | float) for name in spent)]
    if not listed:
        return {}
    late = listed[-max(1, len(listed) // 10) :]
    found = {}
    for name in METRICS:
        values = [
            row[name] for row in (late if name == "entropy" else listed) if isinstance(row.get(name), int | float)
        ]
        if values:
            found[name] = statistics.fmean(values)
    return found | {name: float(listed[-1][name]) for name in spent}
