"""What one law over the settings of a study says: the best setting, and how held-out runs compare with predictions.

Axes in names: A arms, P columns of the design.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.core.files import read_json
from scalerl.core.run_files import PREDICTED, RunKey
from scalerl.reading.curves import Curve, CurveError, Frontier, frontier
from scalerl.reading.curves.settings import Design
from scalerl.reading.pages.study_files import StudyFiles
from scalerl.reading.pages.study_results import RunResult


def full_compute(study: StudyFiles, curves: Mapping[RunKey, Curve]) -> dict[str, float]:
    """Return the compute of a whole run of each arm, in proportion to its steps; without a run, by a power law."""
    ends_by_arm = defaultdict(list)
    for key, curve in curves.items():
        ends_by_arm[key.arm].append(curve.last_compute * study.steps(key) / study.step(key))
    settings = {arm: study.setting(arm) for arm in study.info.arms}
    design = Design.of(list(settings.values()))
    columns_AP, _ = design.columns([settings[name] for name in ends_by_arm])
    power_P, *_ = np.linalg.lstsq(columns_AP, np.log([np.mean(ends) for ends in ends_by_arm.values()]))
    compute_A = np.exp(design.columns(list(settings.values()))[0] @ power_P)
    return {
        name: float(np.mean(ends_by_arm.get(name, compute))) for name, compute in zip(settings, compute_A, strict=True)
    }


def decision(study: StudyFiles, runs: Sequence[RunResult], price: float | None = None) -> Frontier:
    """Return the best setting for the compute of a whole run of the reference.

    Raises:
        CurveError: The runs cannot be pooled.
    """
    reference, fits = study.info.reference, {run.key: run.fit for run in runs if run.fit is not None}
    if reference not in {key.arm for key in fits}:
        raise CurveError(f"{reference} has no fit yet")
    budget = full_compute(study, {key: fit.curve for key, fit in fits.items()})[reference]
    return frontier(list(fits.values()), [study.setting(key.arm) for key in fits], budget, price=price)


def outcomes(study: StudyFiles, runs: Sequence[RunResult]) -> Iterator[dict[str, Any]]:
    """Yield the held-out runs that have ended within the predicted compute: their level next to its predictions.

    Raises:
        CurveError: predicted.json is damaged.
    """
    arms = _predicted(study)
    for run in runs:
        if run.key.arm not in arms or run.fit is None or run.step < run.steps:
            continue
        arm, at = arms[run.key.arm], run.fit.last_compute
        if arm["compute"][0] <= at <= arm["compute"][-1]:
            log_c, level = np.log(arm["compute"]), float(run.fit.mean(at)[0])
            levels = {name: float(np.interp(np.log(at), log_c, arm[name])) for name in PREDICTED_LEVELS}
            inside = levels["low"] <= level <= levels["high"]
            yield {"run": str(run.key), "compute": at, "observed": level, **levels, "inside": inside}


PREDICTED_LEVELS = ("law", "low", "high", "nearest")
"""Levels that predicted.json has for each amount of compute."""


def _predicted(study: StudyFiles) -> dict[str, dict[str, list[float]]]:
    file = study.path / PREDICTED
    try:
        arms = read_json(file)["arms"]
        columns_by_arm = {
            str(name): {column: list(map(float, arm[column])) for column in ("compute", *PREDICTED_LEVELS)}
            for name, arm in arms.items()
        }
        if not all(arm["compute"] and len(set(map(len, arm.values()))) == 1 for arm in columns_by_arm.values()):
            raise ValueError("its columns have different lengths")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CurveError(f"{file} is damaged: {error}; held-out runs are not compared with predictions") from error
    return columns_by_arm
