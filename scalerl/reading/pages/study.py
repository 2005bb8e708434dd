"""Fits every run of a study and compares each arm with the reference.

Axes in names: S runs (seeds), D draws.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalerl.core.errors import ConfigError
from scalerl.core.rows import number, read_points, read_rows
from scalerl.core.run_files import METRICS as METRICS_FILE
from scalerl.core.run_files import ArmInfo, RunKey, StudyInfo
from scalerl.reading.curves import CurveError, Estimate, Fit, compare, fit
from scalerl.reading.curves.comparison import (
    common_ceiling,
    log_efficiency,
    seed_scatter,
    side_mean,
    summarize_ratio,
)
from scalerl.reading.curves.estimate import summarize
from scalerl.reading.curves.health import decline
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.price import checked_price, next_gain, shared_price, with_hours_of
from scalerl.reading.pages.study_files import StudyFiles, read_files
from scalerl.reading.pages.study_law import decision, outcomes
from scalerl.reading.pages.study_results import (
    METRICS,
    ArmResult,
    RunResult,
    StudyResult,
    arm_sentence,
    effect_of,
    failed,
    reasons,
)

STOPPED = {129, 130, 143, -1, -2, -15}
"""Exit codes of a run that was stopped by a signal."""


def study_results(
    study: StudyFiles, axis: str | None = None, task: str | None = None, price: float | None = None
) -> StudyResult:
    """Fit all runs with their points so far, and compare every arm with the reference.

    Args:
        study: The study, finished or not.
        axis: Compute axis; None: the default of the runs.
        task: Task whose curve is fitted, if runs have several; None: the first task of the base.
        price: Price of a device-hour; None: that of the runs, if they have one.

    Raises:
        ConfigError: No run of the study has this axis or task.
        CurveError: The price cannot be used.
    """
    study.check_view(axis, task)
    price = shared_price(price, [study.info.settings_of(arm).get("price") for arm in study.info.arms])
    info, default = study.info, study.axis()
    axis, task = axis or default, task or study.info.task
    runs: dict[str, list[RunResult]] = defaultdict(list)
    failures = _failures(study)
    for key in info.runs():
        runs[key.arm].append(_run(study, key, axis, task, failures.get(key, "")))
    fits = {name: [run.fit for run in results if run.fit is not None] for name, results in runs.items()}
    all_fits = [f for results in fits.values() for f in results]
    if all_fits:
        checked_price(price, with_hours_of([f.curve for f in all_fits]))
    scatter = _scatter(all_fits, list(fits.values())) if all_fits else None
    every_run = [run for of_arm in runs.values() for run in of_arm]
    best, problems = None, []
    if info.vary:
        try:
            best = decision(study, every_run, price)
        except CurveError as error:  # too few runs so far
            problems.append(f"no law over the settings yet: {error}")
    arms = [_arm(name, arm, info.reference, runs[name], fits, scatter, price) for name, arm in info.arms.items()]
    predicted: list[dict[str, Any]] = []
    if (axis, task) == (default, info.task):
        try:
            predicted = list(outcomes(study, every_run))
        except CurveError as error:  # predicted.json is damaged
            problems.append(str(error))
    return StudyResult(
        name=info.name,
        about=info.about,
        reference=info.reference,
        axis=axis,
        arms=tuple(arms),
        common_asymptote=scatter.common if scatter else None,
        seed_sd=scatter.sd if scatter else None,
        seed_source=scatter.source if scatter else "",
        notes=(*problems, *study_notes(study, arms)),
        frontier=best,
        settings={name: study.setting(name) for name in info.arms} if info.vary else {},
        predicted=tuple(predicted),
    )


class _Scatter(NamedTuple):
    """Quantities that all arms share: the scatter between seeds, and the ceiling at which B is compared."""

    draws: Array
    sd: float
    source: str
    common: float


def _scatter(fits: Sequence[Fit], by_arm: Sequence[Sequence[Fit]]) -> _Scatter:
    width = float(np.ptp(fits[0].curve.bounds))
    draws, source = seed_scatter([of_arm for of_arm in by_arm if of_arm], width, np.random.default_rng(0))
    sd = float(np.median(draws))
    return _Scatter(draws, sd, source, common_ceiling(fits, sd))


def _arm(
    name: str,
    arm: ArmInfo,
    reference: str,
    runs: Sequence[RunResult],
    fits: Mapping[str, Sequence[Fit]],
    scatter: _Scatter | None,
    price: float | None,
) -> ArmResult:
    arm_fits, rng = fits.get(name, ()), np.random.default_rng(0)
    against = None
    if name != reference and arm_fits and fits.get(reference):
        siblings = [others for other, others in fits.items() if others and other not in (name, reference)]
        against = compare(arm_fits, fits[reference], siblings=siblings)
    effect = "reference" if name == reference else effect_of(against)
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
        name=name,
        about=arm.about,
        runs=tuple(runs),
        comparison=against,
        effect=effect,
        sentence=arm_sentence(name, reference, effect, against, "" if arm_fits else reasons(runs)),
        next_gain=next_gain(arm_fits, price) if arm_fits else None,
        **estimates,
    )


def _geometric(log_SD: Sequence[Array]) -> Estimate:
    """Return the geometric mean over seeds, from draws of logarithms."""
    return summarize_ratio(np.mean(log_SD, axis=0))


def _failures(study: StudyFiles) -> dict[RunKey, str]:
    """Return the last message of each run whose latest process failed."""
    last = {RunKey(row["arm"], row["seed"]): row for row in study.journal()}
    return {key: row["said"] for key, row in last.items() if row["code"] and row["code"] not in STOPPED}


def _run(study: StudyFiles, key: RunKey, axis: str, task: str | None, failure: str) -> RunResult:
    curve, fit_result, problem = None, None, ""
    if study.has_points(key):
        try:
            curve = study.curve(key, axis, task)
            fit_result = fit(curve)
        except CurveError as error:  # too short, or no progress; the other runs are still used
            problem = str(error)
    else:
        problem = failed(failure) or "not started"
    metrics = _metrics(study.run(key))
    return RunResult(key, study.step(key), study.steps(key), curve, fit_result, problem, metrics, failure)


def _metrics(path: Path) -> dict[str, float]:
    spent = ("device_hours", "flops", "tokens")
    rows = read_rows(path / METRICS_FILE)
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
    return {kind: max(ends, key=ends.__getitem__) for kind, ends in _ends(read_files(path)).items()}


def sweep_note(study: StudyFiles) -> str:
    """Return a note with the best rate of each loss; empty if the study sweeps no rates or is not finished."""
    if max(map(len, rates_by_loss(study.info).values())) < 2:
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


def _ends(study: StudyFiles) -> dict[str, dict[float, float]]:
    """Return the mean over seeds and the last evaluations, by loss and learning rate."""
    ends: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key in study.info.runs():
        if study.step(key) < study.steps(key):
            raise ConfigError(
                f"--rates: {study.run(key)} is not finished; resume it with: scalerl study resume {study.path}"
            )
        points = [point.pass_rate for point in read_points(study.run(key))][-LAST_POINTS:]
        loss, rate = _loss_and_rate(study.info, key.arm)
        ends[loss][rate].append(statistics.fmean(points))
    return {kind: {rate: statistics.fmean(means) for rate, means in by_rate.items()} for kind, by_rate in ends.items()}


def rates_by_loss(info: StudyInfo) -> dict[str, set[float]]:
    """Return the learning rates of the arms by loss; a study with several for one loss is a sweep."""
    by_loss: dict[str, set[float]] = {}
    for loss, rate in (_loss_and_rate(info, arm) for arm in info.arms):
        by_loss.setdefault(loss, set()).add(rate)
    return by_loss


def rates_note(info: StudyInfo) -> str:
    """Return a note with the rate of each loss; empty if all arms have the same rate, or a loss has several."""
    by_loss = rates_by_loss(info)
    if len(set().union(*by_loss.values())) == 1 or max(map(len, by_loss.values())) > 1:
        return ""
    return "learning rates: " + ", ".join(f"{min(rates):g} ({loss})" for loss, rates in by_loss.items())


def _loss_and_rate(info: StudyInfo, arm: str) -> tuple[str, float]:
    fields = info.settings_of(arm)
    return str(fields.get("recipe.loss.kind", "")), number(fields.get("recipe.optimizer.learning_rate"))


CHANCE = 0.05
"""Level of the comparisons; a plan of twenty arms without any effect has one false alarm on average."""

LIKELY_DEPARTURE = 0.5
"""Probability above which a run counts as departing from the law."""


def study_notes(study: StudyFiles, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield the notes of a study, the most serious first."""
    yield from filter(None, map(_fallen, arms))
    yield from filter(None, map(_departed, arms))
    yield from filter(None, (*study.info.notes, rates_note(study.info), sweep_note(study)))
    seeds, comparisons = len({key.seed for key in study.info.runs()}), len(arms) - 1
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
        kind
        for fit in arm.fits
        for kind, p in fit.posterior.departures.items()
        if kind != "law" and p > LIKELY_DEPARTURE
    ]
    if not departed:
        return ""
    kinds = " or ".join(dict.fromkeys(departed))
    return (
        f"{arm.name}: {len(departed)} of {len(arm.runs)} runs depart from the law ({kinds}); such a ceiling is "
        f"less certain than its interval suggests; train further before you rely on it"
    )
