"""Predictions of a study from its runs so far: which arms continue, and the levels of arms that are held out.

    allocation.jsonl   one row for each decision on the arms that continue
    predicted.json     written before the first held-out run starts, and never changed

Axes in names: A arms, D draws, M amounts of compute.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from scalerl.core.files import write_whole
from scalerl.scaling import Curve, CurveError, Frontier, frontier
from scalerl.scaling.estimate import TAILS, as_json
from scalerl.scaling.pool import level_beside, levels, pool
from scalerl.scaling.settings import Design
from scalerl.study.allocate import Fits, Levels, allocate, own_levels
from scalerl.study.directory import StudyDirectory
from scalerl.study.plan import Plan, RunKey
from scalerl.study.results import RunResult

AROUND_END = np.geomspace(0.25, 4.0, 17)
"""Amounts of compute at which a held-out arm is predicted, in multiples of its expected end."""

FILE = "predicted.json"


def trained(study: StudyDirectory) -> dict[RunKey, Curve]:
    """Return the curves of the runs that are not held out, as far as they have any."""
    curves = {}
    for key in study.plan.runs():
        try:
            if not study.plan.is_held_out(key.arm):
                curves[key] = Curve.read(study.run(key), axis=study.axis(), task=study.task())
        except CurveError:  # the run failed before its second evaluation; its arm may have other runs
            continue
    return curves


def full_compute(study: StudyDirectory, curves: Mapping[RunKey, Curve]) -> dict[str, float]:
    """Return the compute of a whole run of each arm, in proportion to its steps; without a run, by a power law."""
    plan, seen = study.plan, defaultdict(list)
    for key, curve in curves.items():
        seen[key.arm].append(curve.last_compute * plan.run_config(key).steps / study.step(key))
    settings = {arm.name: plan.setting(arm) for arm in plan.arms}
    design = Design.of(list(settings.values()))
    columns_AP, _ = design.columns([settings[name] for name in seen])
    power_P, *_ = np.linalg.lstsq(columns_AP, np.log([np.mean(ends) for ends in seen.values()]))
    every_A = np.exp(design.columns(list(settings.values()))[0] @ power_P)
    return {name: float(np.mean(seen.get(name, each))) for name, each in zip(settings, every_A, strict=True)}


def by_forecast(study: StudyDirectory) -> tuple[list[str], str]:
    """Return the arms that continue, none when the study is over, and the reason; append to allocation.jsonl."""
    curves, arms = trained(study), defaultdict(list)
    for key, curve in curves.items():
        arms[key.arm].append(curve)
    if len(arms) < 2:
        return list(arms), "fewer than two arms have a curve"
    if study.plan.vary:  # the law needs runs of all lengths, so the study is not over before the last slice
        allocation = allocate(arms, partial(at_full_compute, study.plan, full_compute(study, curves)), tolerance=0.0)
    else:
        allocation = allocate(arms)
    with (study.path / "allocation.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(allocation.to_dict(), allow_nan=False) + "\n")
    return [name for name, verdict in allocation.verdicts.items() if verdict.go_on], str(allocation)


def at_full_compute(plan: Plan, ends: Mapping[str, float], fits: Fits) -> Levels:
    """Return the levels of arms at the compute of their whole runs, by the law if it predicts left-out runs better."""
    settings = {name: plan.setting(plan.arm(name)) for name in fits}
    try:
        every = [f for runs in fits.values() for f in runs]
        found = pool(every, [settings[name] for name, runs in fits.items() for _ in runs])
    except CurveError:  # the arms that can be judged do not determine a law
        found = None
    if found is None or found.uses != "law":
        return own_levels({name: [f.levels(ends[name])[0] for f in runs] for name, runs in fits.items()}, fits)
    theta_DAK = found.law.at(list(settings.values()))
    level_AD = levels(theta_DAK, np.array([ends[name] for name in fits]), found.fits[0].curve.bounds).T
    return level_AD, level_AD


def predict(study: StudyDirectory) -> None:
    """Write the levels of the held-out arms, predicted from the other runs, unless they have been written.

    Raises:
        CurveError: The runs do not determine a law.
    """
    if (study.path / FILE).exists():
        return
    plan, curves = study.plan, trained(study)
    found = pool(list(curves.values()), [plan.setting(plan.arm(key.arm)) for key in curves])
    law, ends, bounds = found.law, full_compute(study, curves), found.fits[0].curve.bounds
    arms: dict[str, Any] = {}
    for arm in (arm for arm in plan.arms if plan.is_held_out(arm.name)):
        setting, compute_M = plan.setting(arm), ends[arm.name] * AROUND_END
        level_DM = levels(law.new_run(law.at([setting])), compute_M, bounds)
        low_M, high_M = np.quantile(level_DM, TAILS, axis=0)
        apart_N = law.design.apart([setting], law.settings)[0]
        nearest_M = np.array([level_beside(apart_N, found.fits, c) for c in compute_M])
        said = {"law": level_DM.mean(axis=0), "low": low_M, "high": high_M, "nearest": nearest_M}
        numbers = {name: values.tolist() for name, values in {"compute": compute_M, **said}.items()}
        arms[arm.name] = {"setting": setting, **numbers}
    head = {"unit": found.fits[0].curve.unit, "uses": found.uses, "check": found.check, "notes": found.notes}
    values = as_json({**head, "runs": list(map(str, curves)), "arms": arms})
    write_whole(study.path / FILE, json.dumps(values, indent=1, allow_nan=False) + "\n")


def outcomes(study: StudyDirectory, runs: Sequence[RunResult]) -> Iterator[dict[str, Any]]:
    """Yield the held-out runs that have ended within the predicted compute: their level next to its predictions."""
    file = study.path / FILE
    arms = json.loads(file.read_text(encoding="utf-8"))["arms"] if file.exists() else {}
    for run in runs:
        if run.key.arm not in arms or run.fit is None or run.step < run.steps:
            continue
        arm, at = arms[run.key.arm], run.fit.last_compute
        if arm["compute"][0] <= at <= arm["compute"][-1]:
            log_c, level = np.log(arm["compute"]), float(run.fit.mean(at)[0])
            said = {name: float(np.interp(np.log(at), log_c, arm[name])) for name in ("law", "low", "high", "nearest")}
            inside = said["low"] <= level <= said["high"]
            yield {"run": str(run.key), "compute": at, "observed": level, **said, "inside": inside}


def decision(study: StudyDirectory, runs: Sequence[RunResult]) -> Frontier:
    """Return the best setting for the compute of a whole run of the reference.

    Raises:
        CurveError: The runs cannot be pooled.
    """
    plan, fits = study.plan, {run.key: run.fit for run in runs if run.fit is not None}
    if plan.reference not in {key.arm for key in fits}:
        raise CurveError(f"{plan.reference} has no fit yet")
    budget = full_compute(study, {key: fit.curve for key, fit in fits.items()})[plan.reference]
    return frontier(list(fits.values()), [plan.setting(plan.arm(key.arm)) for key in fits], budget)
