"""Files of simulated runs, shared by the tests of the report."""

import json

import numpy as np

from scalerl.scaling import Curve, sigmoid


def level(compute, asymptote=0.61, efficiency=1.92, midpoint=2542.0, initial=0.2):
    """Return the pass rate of the published ScaleRL run (arXiv 2510.13786, table 1), with a plausible start."""
    return sigmoid(compute, asymptote, efficiency, midpoint, initial)


def curve(seed=0, points=41, last=16_000.0, noise=0.004, label="simulated", **truth):
    compute = np.linspace(0, last, points)
    wobble = noise * np.random.default_rng(seed).standard_normal(points)
    return Curve(compute, np.clip(level(compute, **truth) + wobble, 0, 1), axis="device_hours", label=label)


def write(path, made):
    """Write a curve as a file of points; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(made.compute, made.metric, strict=True)
    path.write_text("".join(json.dumps({"device_hours": c, "pass_rate": r}) + "\n" for c, r in rows))
    return path
