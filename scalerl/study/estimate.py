"""Estimates how long a plan takes on this machine, within about a third, before anything has run.

The lab's runs were timed once on one machine. A short computation measures this machine's speed relative to that one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from scalerl.config import RunConfig, TinyModel
from scalerl.config.base import replace
from scalerl.study.plan import Plan, RunKey

TRAINING_S, EVALUATION_S, STARTUP_S = 1.9e-3, 1.3e-3, 10.0
"""Seconds per trained completion, per evaluated sample of the quick lab, and per start of a run.

Measured on two cores of an AMD EPYC, November 2026."""

PROBE_S = 0.074
"""Result of `probe` on the same machine, seconds."""

IN_TURNS = 1.77
"""Factor on the time of a step if generation and training do not overlap (docs/benchmarks.md)."""


def probe() -> float:
    """Return the time in seconds of a fixed amount of arithmetic.

    It uses elementwise operations and the thread's CPU clock. A matrix product runs on several threads that wait for
    each other; with another process on the same cores, it took fifty times as long.
    """
    import numpy as np

    values = np.ones(4096, np.float32)
    times = []
    for _ in range(5):
        began = time.thread_time()
        for _ in range(5000):
            np.exp(-np.sqrt(values * values + 1)).sum()
        times.append(time.thread_time() - began)
    return min(times)


def run_seconds(config: RunConfig) -> float | None:
    """Return the time of one run in seconds on the reference machine; None if the model is not the lab's."""
    if not isinstance(config.model, TinyModel):
        return None
    recipe = config.recipe
    size = config.model.layers * config.model.width**2 / (2 * 64**2) * recipe.length.max_tokens / 69
    overlap = recipe.off_policy.kind == "pipeline" and recipe.off_policy.max_lag > 0
    training = config.steps * recipe.completions_per_step * TRAINING_S * (1.0 if overlap else IN_TURNS)
    evaluations = 1 + -(-config.steps // config.evaluation.every)
    return STARTUP_S + size * (training + evaluations * config.evaluated_sequences * EVALUATION_S)


def plan_seconds(plan: Plan, had: Mapping[RunKey, int]) -> float | None:
    """Return the time of a plan in seconds on this machine, one run at a time, without warm starts; None if unknown.

    Args:
        plan: Plan of the study.
        had: Number of steps reused from other studies, by run.
    """
    total = 0.0
    for key in plan.runs():
        config = plan.run_config(key)
        left = config.steps - had.get(key, 0)
        if left:
            seconds = run_seconds(replace(config, steps=left))
            if seconds is None:
                return None
            total += seconds
    return total * probe() / PROBE_S
