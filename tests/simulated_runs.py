"""Synthetic curves with known truth, shared by the tests."""

import numpy as np
from json_rows import write_rows

from scalerl.reading.curves import Curve, sigmoid

TRUTH = {"asymptote": 0.61, "efficiency": 1.92, "midpoint": 2542.0, "initial": 0.2}
"""The published ScaleRL run (arXiv 2510.13786, table 1), with a plausible start."""


def run(points=41, last=16_000.0, noise=0.004, seed=0, **changes):
    """Return a run evaluated at equal steps from compute 0."""
    truth = {**TRUTH, **changes}
    compute = np.linspace(0, last, points)
    wobble = noise * np.random.default_rng(seed).standard_normal(points)
    return Curve(compute, np.clip(sigmoid(compute, **truth) + wobble, 0, 1), axis="device_hours", label="simulated")


def write(path, made):
    """Write a curve as a file of points; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(made.compute.tolist(), made.metric.tolist(), strict=True)
    return write_rows(path, [{"device_hours": c, "pass_rate": r} for c, r in rows])


def fallen(seed=0):
    """Return a run that reaches 0.6 by half, then falls to 0.2 within five evaluations and stays there."""
    compute = np.arange(31.0)
    level = np.where(compute < 16, sigmoid(compute, 0.6, 3.0, 4.0, 0.1), np.maximum(0.6 - 0.08 * (compute - 16), 0.2))
    return Curve(compute, level + 0.02 * np.random.default_rng(seed).standard_normal(31))
