"""Fits every run of a study and compares each arm with the reference.

Axes in names: S runs (seeds), D draws.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scalerl.core.errors import ConfigError
from scalerl.core.rows import read_points, read_rows
from scalerl.scaling import Curve, CurveError, Estimate, Fit, compare, fit
from scalerl.scaling.compare import (
    common_ceiling,
    log_efficiency,
    seed_scatter,
    side_mean,
    summarize_ratio,
)
from scalerl.scaling.estimate import summarize
from scalerl.scaling.health import decline
from scalerl.scaling.law import Array
from scalerl.study.directory import StudyDirectory
from scalerl.study.execute import STOPPED
from scalerl.study.plan import Arm, RunKey, rates_by_loss, rates_note
from scalerl.study.predict import decision, outcomes
from scalerl.study.results import METRICS, ArmResult, RunResult, StudyResult, effect_of, failed, reasons, sentence_of
from scalerl.training.run_info import data_notes


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
    for key in study.plan.runs():
        runs[key.arm].append(_run(study, key, axis, task, failures.get(key, "")))
    fits = {name: [run.fit for run in results if run.fit is not None] for name, results in runs.items()}
    everything = [f for results in fits.values() for f in results]
    scatter = _scatter(everything, list(fits.values())) if everything else None
    every_run = [run for each in runs.values() for run in each]
    best, told = None, []
    if plan.vary:
        try:
            best = decision(study, every_run)
        except CurveError as error:  # too few runs so far
            told.append(f"no law over the settings yet: {error}")
    arms = [_arm(arm, plan.reference, runs[arm.name], fits, scatter) for arm in plan.arms]
    return StudyResult(
        name=plan.name,
        about=plan.about,
        reference=plan.reference,
        axis=axis,
        arms=tuple(arms),
        common_asymptote=scatter.common if scatter else None,
        seed_sd=scatter.sd if scatter else None,
        seed_source=scatter.source if scatter else "",
        notes=(*told, *notes(study, arms)),
        frontier=best,
        settings={arm.name: plan.setting(arm) for arm in plan.arms} if plan.vary else {},
        predicted=tuple(outcomes(study, every_run)) if (axis, task) == (study.axis(), study.task()) else (),
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
        siblings = [others for name, others in fits.items() if others and name not in (arm.name, reference)]
        against = compare(arm_fits, fits[reference], siblings=siblings)
    effect = "reference" if arm.name == reference else effect_of(against)
    estimates: dict[str, Estimate | None] = dict.fromkeys(("asymptote", "efficiency", "midpoint"))
    if arm_fits and scatter is not None:
        estimates = {
            "asymptote": summarize(
                side_mean([rng.permutation(f.draws.asymptote) for f in arm_fits], scatter.draws, rng)
            ),
            "efficiency": _geometric([log_efficiency(f.curve, scatter.common, scatter.sd, rng) for f in arm_fits]),
            "midpoint": _geometric([np.log(rng.permutation(f.draws.midpoint)) for f in arm_fits]),
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
    path, config = study.run(key), study.plan.run_config(key)
    curve, fitted, problem = None, None, ""
    if (path / "points.jsonl").exists():
        try:
            curve = Curve.read(path, axis=axis, task=task)
            fitted = fit(curve)
        except CurveError as error:  # too short, or no progress; the other runs are still used
            problem = str(error)
    else:
        problem = failed(failure) or "not started"
    step = study.step(key)
    return RunResult(key, step, config.steps, curve, fitted, problem, _metrics(path), failure)


def _metrics(path: Path) -> dict[str, float]:
    spent = ("device_hours", "flops", "tokens")
    rows = read_rows(path / "metrics.jsonl")
    listed = [row for row in rows if all(isinstance(row.get(name), int | float) for name in spent)]
    if not listed:
        return {}
    late = listed[-max(1, len(listed) // 10) :]
    means = {}
    for name in METRICS:
        values = [
            row[name] for row in (late if name == "entropy" else listed) if isinstance(row.get(name), int | float)
        ]
        if values:
            means[name] = statistics.fmean(values)
    return means | {name: float(listed[-1][name]) for name in spent}


# --------------------------------------------------------------------------------------------------------------- notes

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
    words = []
    for kind, by_rate in ends.items():
        best = max(by_rate, key=by_rate.__getitem__)
        edge = " (at the edge of the sweep: the best may lie beyond)" if best in (min(by_rate), max(by_rate)) else ""
        words.append(f"{kind} {best:g}{edge}, {by_rate[best]:.3f}")
    return f"learning rates that ended highest, by the mean of the last {LAST_POINTS} evaluations: {'; '.join(words)}"


def _ends(study: StudyDirectory) -> dict[str, dict[float, float]]:
    """Return the mean over seeds and the last evaluations, by loss and learning rate."""
    ends: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key in study.plan.runs():
        config = study.plan.run_config(key)
        if study.step(key) < config.steps:
            raise ConfigError(
                f"--rates: {study.run(key)} is not finished; resume it with: scalerl study resume {study.path}"
            )
        points = [point.pass_rate for point in read_points(study.run(key))][-LAST_POINTS:]
        ends[config.recipe.loss.kind][config.recipe.optimizer.learning_rate].append(statistics.fmean(points))
    return {kind: {rate: statistics.fmean(means) for rate, means in by_rate.items()} for kind, by_rate in ends.items()}


CHANCE = 0.05
"""Level of the comparisons; a plan of twenty arms without any effect has one false alarm on average."""

LIKELY_DEPARTURE = 0.5
"""Probability above which a run counts as departing from the law."""


def notes(study: StudyDirectory, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield the notes of a study, the most serious first."""
    yield from filter(None, map(_fallen, arms))
    yield from filter(None, map(_departed, arms))
    yield from filter(None, (*data_notes(study.plan.base), rates_note(study.plan), sweep_note(study)))
    seeds, comparisons = len(study.plan.seeds), len(arms) - 1
    yield (
        f"{_count(seeds, 'seed')} per arm; {_count(comparisons, 'comparison')} at the {CHANCE:.0%} level: "
        f"{comparisons * CHANCE:.1f} false alarms are expected if nothing differs"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _fallen(arm: ArmResult) -> str:
    """Note on an arm whose runs declined: the law does not describe it, and the verdicts do not show this."""
    falls = [symptom.numbers["fall"] for run in arm.runs if run.curve and (symptom := decline(run.curve))]
    if not falls:
        return ""
    return (
        f"{arm.name}: {len(falls)} of {len(arm.runs)} runs fell from their best, by up to {max(falls):.3f}; the law "
        f"only rises, so the numbers do not describe this arm; look for the cause"
    )


def _departed(arm: ArmResult) -> str:
    """Note on an arm whose runs depart from the law: its estimated ceiling tends to be too high."""
    departed = [
        kind for fit in arm.fits for kind, p in fit.departures.items() if kind != "law" and p > LIKELY_DEPARTURE
    ]
    if not departed:
        return ""
    kinds = " or ".join(dict.fromkeys(departed))
    return (
        f"{arm.name}: {len(departed)} of {len(arm.runs)} runs depart from the law ({kinds}); such a ceiling is "
        f"less certain than its interval suggests; train further before you rely on it"
    )
