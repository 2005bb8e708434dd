"""Arms with known truth, shared by the tests of studies."""

import numpy as np

from scalerl.reading.curves import Curve, sigmoid

SEED_SD = 0.012


def run(asymptote=0.6, midpoint=0.15, efficiency=1.8, last=1.0, points=41, seed=0, **changes):
    """Return one run from 0.2, with compute in shares of a whole run, and white noise of 0.004."""
    compute = np.linspace(0.0, last, points)
    level = sigmoid(compute, asymptote, efficiency, midpoint, 0.2)
    wobble = 0.004 * np.random.default_rng(seed).standard_normal(points)
    return Curve(compute, np.clip(level + wobble, 0, 1), **changes)


def arm(seeds=3, first_seed=0, asymptote=0.6, **changes):
    """Return runs of one recipe whose ceilings scatter as in published runs, with exactly the given mean."""
    scatter = np.random.default_rng(first_seed).standard_normal(seeds)
    scatter = SEED_SD * (scatter - scatter.mean())
    return [run(asymptote=asymptote + d, seed=first_seed + i, **changes) for i, d in enumerate(scatter)]


def stretched(curves, factor):
    """Return the same runs with compute in another unit."""
    return [Curve(factor * curve.compute, curve.metric) for curve in curves]


def collapsed(fall=0.3, seed=0):
    """Return a run whose metric drops by `fall` after two thirds."""
    whole = run(seed=seed)
    return Curve(whole.compute, np.clip(whole.metric - fall * (whole.compute > 0.65), 0, 1))
