"""Simulated studies of several recipes with known ceilings, for the benchmark of allocation.

Compute is in shares of one whole run. Every run has an evaluation before training and 40 at equal steps after it. The
present score misleads by design: midpoints differ by a factor of four and steepness by 2.5, and in half of the studies
the midpoints have the order of the ceilings, so that the arms that climb early have the low ceilings.

Axes in names: A arms, S seeds of an arm, N evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalerl.reading.curves import Curve, sigmoid

POINTS = 41
MIDPOINTS = (1 / 16, 1 / 4)
"""Range of C_mid, in whole runs: a run is between 4 and 16 midpoints long."""
EFFICIENCIES = (1.0, 2.5)
"""Range of B."""
PHI = 0.7
"""Correlation of the noise of neighboring evaluations."""

Random = np.random.Generator


@dataclass(frozen=True)
class Setting:
    """The distribution from which studies are drawn."""

    seeds: int = 3
    """Runs per arm."""
    noise_sd: float = 0.008
    """Standard deviation of an evaluation around its curve."""
    seed_sd: float = 0.012
    """Standard deviation of the ceiling between seeds of one arm."""
    low_gap: tuple[float, float] = (0.05, 0.15)
    """Distance of the clearly lower arms below the best."""


SETTINGS = {
    "3 seeds per arm": Setting(),
    "harder: 1 seed per arm, twice the noise, closer arms": Setting(seeds=1, noise_sd=0.016, low_gap=(0.02, 0.10)),
}


@dataclass(frozen=True)
class Study:
    """The complete runs of every arm, of which a policy sees the beginnings, and the true ceilings."""

    curves_AS: list[list[Curve]]
    asymptote_A: np.ndarray
    """True ceiling of each recipe: the mean over all possible seeds."""


def ceilings(rng: Random, setting: Setting) -> np.ndarray:
    """Draw six to nine ceilings: the best, one or two within 0.01, one 0.02 to 0.05 lower, the others clearly lower."""
    near = rng.uniform(0.0, 0.01, rng.integers(1, 3))
    middle = rng.uniform(0.02, 0.05, 1)
    low = rng.uniform(*setting.low_gap, rng.integers(6, 10) - 2 - len(near))
    return rng.uniform(0.55, 0.75) - np.concatenate([[0.0], near, middle, low])


def midpoints(rng: Random, asymptote_A: np.ndarray) -> np.ndarray:
    """Draw log-uniform midpoints; in half of the studies they are sorted, so that slower arms have higher ceilings."""
    midpoint_A = np.exp(rng.uniform(*np.log(MIDPOINTS), len(asymptote_A)))
    if rng.random() < 0.5:
        midpoint_A = np.sort(midpoint_A)[asymptote_A.argsort().argsort()]
    return midpoint_A


def noise(rng: Random, sd: float) -> np.ndarray:
    """Draw AR(1) noise of one run, shape (N,)."""
    innovation_N = rng.standard_normal(POINTS)
    noise_N = np.empty(POINTS)
    noise_N[0] = innovation_N[0]
    for i in range(1, POINTS):
        noise_N[i] = PHI * noise_N[i - 1] + np.sqrt(1 - PHI**2) * innovation_N[i]
    return sd * noise_N


def study(rng: Random, setting: Setting) -> Study:
    """Draw one study, with its arms in random order."""
    asymptote_A = rng.permutation(ceilings(rng, setting))
    midpoint_A = midpoints(rng, asymptote_A)
    efficiency_A = rng.uniform(*EFFICIENCIES, len(asymptote_A))
    initial = rng.uniform(0.1, 0.3)  # one base model, so one level before training
    compute_N = np.linspace(0.0, 1.0, POINTS)
    curves_AS = []
    for asymptote, efficiency, midpoint in zip(asymptote_A, efficiency_A, midpoint_A, strict=True):
        own_S = asymptote + setting.seed_sd * rng.standard_normal(setting.seeds)
        level_SN = [sigmoid(compute_N, own, efficiency, midpoint, initial) for own in own_S]
        curves_AS.append([Curve(compute_N, np.clip(level + noise(rng, setting.noise_sd), 0, 1)) for level in level_SN])
    return Study(curves_AS, asymptote_A)
