"""A run that has fallen: whether it has, its level since then, and when it may return to its law.

The law has no falls, so a fall far outside the noise is evidence for a level that changed. The run stays at the new
level until it returns; how many public runs did is `counts.STAYED_DOWN`.

Axes in names: N points, D draws, X models of the level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.grid import Index, Mask
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.level import LevelDraws, LevelPosterior, level_after_change
from scalerl.reading.curves.noise import least_noise, local_noise, relative_noise

FALLEN = 0.1
"""A run has fallen if it is this share of the metric's range below its best, and `SURE_FALL` times the noise."""

SURE_FALL = 3.0
"""Minimum fall in multiples of the noise: noise alone seldom puts the best mean of three this far above the last."""


class Down(NamedTuple):
    """The state of a run that has fallen, for the D draws of its posterior."""

    level_D: Array
    """Level at the last point."""

    noise_D: Array
    """Standard deviation of one evaluation around it."""

    walk_D: Array
    """How far each level wanders in one step; after k steps, sqrt(k) times as far."""

    return_D: Array
    """Compute at which each draw returns to its law; infinite for draws that stay.

    Nothing but the time since the fall tells how long a return takes, so the probability that a run that returns has
    done so after a further time h is h / (time since the fall + h): one half when the time has doubled."""

    path_N: Array
    """Mean level at each point minus the last one."""

    def select(self, index_D: Index) -> Down:
        """Return the state of the draws at these indices."""
        level_D, noise_D, walk_D, return_D, path_N = self
        return Down(level_D[index_D], noise_D[index_D], walk_D[index_D], return_D[index_D], path_N)


class Fall(NamedTuple):
    """The level of a run since its fall."""

    level: LevelPosterior
    """The posterior of the level, in shares of the range."""

    num_before: int
    """Number of points before the fall."""

    def down(self, curve: Curve, returns_D: Mask) -> Down:
        """Return the state of draws of which some return to their law, and the others stay down."""
        low, high = curve.bounds
        width, count, rng = high - low, len(returns_D), np.random.default_rng(3)
        # in random order, because each draw that returns has a level before; two neighbors have one level and opposite
        # walks, whose mean is the level
        half, both = (count + 1) // 2, np.arange(count) // 2
        drawn = LevelDraws(*np.stack(self.level.draws(half, rng))[:, rng.permutation(half)][:, both])
        walk_D = rng.standard_normal(half)[both] * np.where(np.arange(count) % 2, 1.0, -1.0)
        age = curve.last_compute - curve.compute[self.num_before - 1]
        share_D = (rng.permutation(count) + 0.5) / count
        return Down(
            level_D=low + width * drawn.level,
            noise_D=width * drawn.noise_sd,
            walk_D=width * drawn.step_sd * walk_D,
            return_D=np.where(returns_D, curve.last_compute + age * share_D / (1.0 - share_D), np.inf),
            path_N=width * (self.level.path_N - self.level.path_N[-1]),
        )


def rolling_mean(metric_N: Array, width: int = 3) -> Array:
    """Return the means of neighboring values, shape (N - width + 1,)."""
    return np.asarray(np.convolve(metric_N, np.full(width, 1 / width), mode="valid"))


def fallen_by(curve: Curve) -> float:
    """Return the best mean of three neighboring points minus the mean of the last three; 0 for fewer points."""
    smooth = rolling_mean(curve.metric) if len(curve) >= 3 else curve.metric[-1:]
    return float(smooth.max() - smooth[-1])


def has_fallen(curve: Curve) -> bool:
    """Return whether the end of a curve is far below its best."""
    return fallen_by(curve) > max(FALLEN * float(np.ptp(curve.bounds)), SURE_FALL * local_noise(curve.metric))


def fall_of(curve: Curve) -> Fall:
    """Return the level of a run that has fallen since its fall, and when that was."""
    low, high = curve.bounds
    share_N, floor, noise_N = (curve.metric - low) / (high - low), least_noise(curve) ** 2, relative_noise(curve)
    best = int(rolling_mean(curve.metric).argmax())
    level = level_after_change(share_N, len(curve) * floor, best + 1, None if noise_N is None else 1.0 / noise_N)
    return Fall(level, points_before_fall(curve, low + (high - low) * float(level.weight_X @ level.level_X)))


def points_before_fall(curve: Curve, level: float) -> int:
    """Return the number of points up to the last one above the middle of the best level and the present one.

    At least the last point is after the fall.
    """
    middle = (float(rolling_mean(curve.metric).max()) + level) / 2.0
    last_above = int(np.flatnonzero(curve.metric > middle).max(initial=0))
    return min(last_above + 1, len(curve) - 1)
