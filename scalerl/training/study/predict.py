"""Predictions of a study from its runs so far: which arms continue, and the levels of arms that are held out.

    allocation.jsonl   one row for each decision on the arms that continue
    predicted.json     written before the first held-out run starts, and never changed

Axes in names: A arms, D draws, M amounts of compute.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from scalerl.core.files import write_whole
from scalerl.core.run_files import ALLOCATION, PREDICTED
from scalerl.reading.curves import CurveError
from scalerl.reading.curves.estimate import TAILS, as_json
from scalerl.reading.curves.pool import level_beside, levels, pool
from scalerl.reading.pages.study_files import StudyFiles
from scalerl.reading.pages.study_law import full_compute
from scalerl.training.study.allocate import Fits, Levels, allocate, own_levels
from scalerl.training.study.directory import StudyDirectory

AROUND_END = np.geomspace(0.25, 4.0, 17)
"""Amounts of compute at which a held-out arm is predicted, in multiples of its expected end."""


def by_forecast(study: StudyDirectory) -> tuple[list[str], str]:
    """Return the arms that continue, none when the study is over, and the reason; append to allocation.jsonl."""
    curves, arms = study.trained(), defaultdict(list)
    for key, curve in curves.items():
        arms[key.arm].append(curve)
    if len(arms) < 2:
        return list(arms), "fewer than two arms have a curve"
    if study.info.vary:  # the law needs runs of all lengths, so the study is not over before the last slice
        allocation = allocate(arms, partial(at_full_compute, study, full_compute(study, curves)), tolerance=0.0)
    else:
        allocation = allocate(arms)
    with (study.path / ALLOCATION).open("a", encoding="utf-8") as file:
        file.write(json.dumps(allocation.to_dict(), allow_nan=False) + "\n")
    return [name for name, verdict in allocation.verdicts.items() if verdict.go_on], str(allocation)


def at_full_compute(study: StudyFiles, ends: Mapping[str, float], fits: Fits) -> Levels:
    """Return the levels of arms at the compute of their whole runs, by the law if it predicts left-out runs better."""
    settings = {name: study.setting(name) for name in fits}
    try:
        all_fits = [f for runs in fits.values() for f in runs]
        pooled = pool(all_fits, [settings[name] for name, runs in fits.items() for _ in runs])
    except CurveError:  # the arms that can be judged do not determine a law
        pooled = None
    if pooled is None or pooled.uses != "law":
        return own_levels({name: [f.levels(ends[name])[0] for f in runs] for name, runs in fits.items()}, fits)
    theta_DAK = pooled.law.at(list(settings.values()))
    level_AD = levels(theta_DAK, np.array([ends[name] for name in fits]), pooled.fits[0].curve.bounds).T
    return level_AD, level_AD


def predict(study: StudyDirectory) -> None:
    """Write the levels of the held-out arms, predicted from the other runs, unless they have been written.

    Raises:
        CurveError: The runs do not determine a law.
    """
    if (study.path / PREDICTED).exists():
        return
    curves = study.trained()
    pooled = pool(list(curves.values()), [study.setting(key.arm) for key in curves])
    law, ends, bounds = pooled.law, full_compute(study, curves), pooled.fits[0].curve.bounds
    arms: dict[str, Any] = {}
    for name in (name for name, arm in study.info.arms.items() if arm.held_out):
        setting, compute_M = study.setting(name), ends[name] * AROUND_END
        level_DM = levels(law.new_run(law.at([setting])), compute_M, bounds)
        low_M, high_M = np.quantile(level_DM, TAILS, axis=0)
        apart_N = law.design.distances([setting], law.settings)[0]
        nearest_M = np.array([level_beside(apart_N, pooled.fits, c) for c in compute_M])
        levels_M = {"law": level_DM.mean(axis=0), "low": low_M, "high": high_M, "nearest": nearest_M}
        numbers = {column: values.tolist() for column, values in {"compute": compute_M, **levels_M}.items()}
        arms[name] = {"setting": setting, **numbers}
    head = {"unit": pooled.fits[0].curve.unit, "uses": pooled.uses, "check": pooled.check, "notes": pooled.notes}
    values = as_json({**head, "runs": list(map(str, curves)), "arms": arms})
    write_whole(study.path / PREDICTED, json.dumps(values, indent=1, allow_nan=False) + "\n")
