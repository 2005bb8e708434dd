"""Simulated study directories with known truth: a plan, and the rows of its runs. Trains nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from json_rows import write_rows

from scalerl.core.run_files import RunKey
from scalerl.core.types import EvalPoint
from scalerl.reading.curves import sigmoid
from scalerl.training.config import PRESETS, RunConfig, to_toml
from scalerl.training.config.base import replace as replace_part
from scalerl.training.loop.run_info import run_info
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.plan import Arm, Plan

STEPS, EVERY = 160, 8
FLOPS_A_STEP, TOKENS_A_STEP, HOURS_A_STEP = 2e12, 50_000, 5e-4


@dataclass(frozen=True)
class Truth:
    """The true parameters of an arm's runs, and their progress."""

    asymptote: float = 0.61
    efficiency: float = 1.9
    midpoint: float = 5e13
    """C_mid in FLOPs; a whole run has 3.2e14."""
    initial: float = 0.2
    last_step: int = STEPS
    """Step of the last evaluation; below 0 the run was not started."""
    noise: float = 0.004
    about: str = ""
    failed: str = ""
    """Last message of its processes."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Values that differ from `METRICS`."""


METRICS = {
    "truncation_rate": 0.02, "interruption_rate": 0.1, "staleness_mean": 3.2, "entropy": 0.31,
    "completion_tokens_mean": 48.0, "generator_idle": 0.05, "trainer_idle": 0.12,
}  # fmt: skip

SEED_SD = 0.004
"""Standard deviation of A between seeds."""


def plan_of(truths: Mapping[str, Truth], seeds: int = 3, about: str = "What matters?", name: str = "simulated") -> Plan:
    """Return a plan with one arm per truth; the first is the reference. Arms differ in a field without effect here."""
    lab = PRESETS["lab"]
    base = replace_part(lab, steps=STEPS, evaluation=replace_part(lab.evaluation, every=EVERY))
    arms = [
        Arm(name=arm, about=truth.about, changes={"recipe": {"optimizer": {"learning_rate": 1e-4 * (1 + i)}}})
        for i, (arm, truth) in enumerate(truths.items())
    ]
    return Plan(
        name=name, about=about, reference=next(iter(truths)), seeds=tuple(range(seeds)), base=base, arms=tuple(arms)
    )


def point_row(step: int, pass_rate: float) -> str:
    """Return a line of points.jsonl."""
    point = EvalPoint(step, HOURS_A_STEP * step, FLOPS_A_STEP * step, TOKENS_A_STEP * step, "t", pass_rate, 0.01, 9, 4)
    return json.dumps(point.to_dict()) + "\n"


def write_study(
    path: Path, truths: Mapping[str, Truth], seeds: int = 3, about: str = "What matters?"
) -> StudyDirectory:
    """Write the directory of a study and open it."""
    plan = plan_of(truths, seeds, about, path.name)
    study = StudyDirectory.create(path, plan)
    for number, key in enumerate(study.plan.runs()):
        _write_run(study, key, truths[key.arm], number)
    return study


def _write_run(study: StudyDirectory, key: RunKey, truth: Truth, number: int) -> None:
    run = study.run(key)
    if truth.failed:
        row = {"arm": key.arm, "seed": key.seed, "target": STEPS, "code": 1, "seconds": 3.0, "step": truth.last_step}
        study.note({**row, "said": truth.failed})
    if truth.last_step < 0:
        return
    run.mkdir(parents=True)
    (run / "config.toml").write_text(to_toml(study.plan.run_config(key)), encoding="utf-8")
    (run / "run.json").write_text(run_info(study.plan.run_config(key)).to_json(), encoding="utf-8")
    write_rows(run / "points.jsonl", _points(study.plan.run_config(key), truth, number))
    write_rows(run / "metrics.jsonl", [_metrics(step, truth) for step in range(1, truth.last_step + 1)])


def _points(config: RunConfig, truth: Truth, number: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(number)
    own = replace(truth, asymptote=truth.asymptote + SEED_SD * rng.standard_normal())
    every = config.evaluation.every
    steps = np.arange(0, truth.last_step + 1, every)
    law = (own.asymptote, own.efficiency, own.midpoint, own.initial)
    rates = sigmoid(steps * FLOPS_A_STEP, *law) + truth.noise * rng.standard_normal(len(steps))
    return [
        EvalPoint(
            step=int(step), device_hours=step * HOURS_A_STEP, flops=step * FLOPS_A_STEP,
            tokens=int(step) * TOKENS_A_STEP, task="arithmetic", pass_rate=float(np.clip(rate, 0, 1)),
            stderr=0.004, prompts=1000, samples_per_prompt=2,
        ).to_dict()
        for step, rate in zip(steps, rates, strict=True)
    ]  # fmt: skip


def _metrics(step: int, truth: Truth) -> dict[str, Any]:
    spent = {"device_hours": step * HOURS_A_STEP, "flops": step * FLOPS_A_STEP, "tokens": step * TOKENS_A_STEP}
    return {"step": step, **METRICS, **truth.metrics, **spent}


KNOWN = {
    "scalerl": Truth(about="the whole recipe"),
    "dapo": Truth(asymptote=0.53, about="DAPO's loss instead of CISPO", metrics={"truncation_rate": 0.11}),
    "slow": Truth(efficiency=1.2, midpoint=7e13, about="the same A, B lower by a third"),
    "fp32": Truth(about="nothing, here"),
    "young": Truth(last_step=24, about="three evaluations of twenty-one"),
    "broken": Truth(last_step=-1, failed="loss is not finite at step 3", about="never measured"),
}
"""One arm for each kind of verdict."""

TWO = {name: KNOWN[name] for name in ("scalerl", "dapo")}
