"""Draws (samples) of a curve: its parameters, the level at any compute, and the compute needed for a level.

Axes in names: D draws, M amounts of compute.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scalerl.scaling.law import CLIMB_DONE, Array, climb, log_compute


class Draws(NamedTuple):
    """Draws of a rising curve and its noise, each of shape (D,).

    A draw of the plain law has no delay and no second rise, and its plateau is its asymptote.
    """

    asymptote: Array
    """Level at unlimited compute, at most the metric's bound."""
    efficiency: Array
    """B of the first rise."""
    midpoint: Array
    """Compute at which half of the first rise is complete."""
    initial: Array
    """Level at compute 0."""
    autocorrelation: Array
    """Correlation of the noise of neighboring points."""
    noise_sd: Array
    """Standard deviation of the noise of one point (stationary, not of the innovations)."""
    plateau: Array
    """Level at which the first rise ends."""
    delay: Array
    """Compute at which the climb starts."""
    second_midpoint: Array
    """Compute at which half of the second rise is complete."""
    second_efficiency: Array
    """B of the second rise."""
    second_gain: Array
    """Size of the second rise; 0 if there is none."""

    def levels(self, compute_M: Array, most: float) -> Array:
        """Return the level of each drawn curve at each compute, shape (M, D), at most the metric's bound `most`."""
        with np.errstate(divide="ignore"):
            log_since = np.log(np.maximum(compute_M[:, None] - self.delay, 0.0))
        u_MD = climb(log_since, np.log(self.midpoint - self.delay), self.efficiency)
        level_MD = self.initial + (self.plateau - self.initial) * u_MD
        if self.second_gain.any():
            second_MD = climb(log_compute(compute_M)[:, None], np.log(self.second_midpoint), self.second_efficiency)
            level_MD = np.minimum(level_MD + self.second_gain * second_MD, most)
        return np.asarray(level_MD)

    def compute_for(self, target_D: Array, most: float) -> Array:
        """Compute at which each drawn curve reaches a level, shape (D,); infinite if never, 0 if it starts there."""
        share_D = (target_D - self.initial) / np.maximum(self.plateau - self.initial, 1e-12)
        odds_D = np.clip(share_D, 1e-12, 1 - 1e-12)
        log_since_D = np.log(self.midpoint - self.delay) + np.log(odds_D / (1 - odds_D)) / self.efficiency
        needed_D = self.delay + np.exp(np.clip(log_since_D, -700, 700))
        needed_D = np.where(share_D <= 0, 0.0, np.where(share_D >= 1, np.inf, needed_D))
        twice_D = self.second_gain > 0
        if twice_D.any():
            chosen = Draws(*(values[twice_D] for values in self))
            needed_D[twice_D] = chosen.bisected(target_D[twice_D], most)
        return np.asarray(needed_D)

    def bisected(self, target_D: Array, most: float) -> Array:
        """Return `compute_for` of curves with two rises, by bisection, because there is no closed form."""
        low_D, high_D = np.log(self.midpoint) - 40.0, np.log(self.second_midpoint) + 40.0
        for _ in range(60):
            middle_D = (low_D + high_D) / 2
            level_D = self.level_each(np.exp(middle_D), most)
            below_D = level_D < target_D
            low_D, high_D = np.where(below_D, middle_D, low_D), np.where(below_D, high_D, middle_D)
        never_D = target_D >= np.minimum(self.plateau + self.second_gain, most)
        return np.where(target_D <= self.initial, 0.0, np.where(never_D, np.inf, np.exp(high_D)))

    def level_each(self, compute_D: Array, most: float) -> Array:
        """Return the level of each drawn curve at the compute of the same index, shape (D,)."""
        with np.errstate(divide="ignore"):
            log_since_D = np.log(np.maximum(compute_D - self.delay, 0.0))
        first_D = climb(log_since_D, np.log(self.midpoint - self.delay), self.efficiency)
        second_D = climb(np.log(compute_D), np.log(self.second_midpoint), self.second_efficiency)
        level_D = self.initial + (self.plateau - self.initial) * first_D + self.second_gain * second_D
        return np.asarray(np.minimum(level_D, most))

    def compute_done(self, most: float) -> Array:
        """Compute at which 95% of the climb from the initial level to the asymptote is complete, shape (D,)."""
        return self.compute_for(self.initial + CLIMB_DONE * (self.asymptote - self.initial), most)


def plain_draws(
    asymptote: Array, efficiency: Array, midpoint: Array, initial: Array, autocorrelation: Array, noise_sd: Array
) -> Draws:
    """Return draws of the law, without delay and second rise."""
    none = np.zeros_like(asymptote)
    one = np.ones_like(asymptote)
    return Draws(asymptote, efficiency, midpoint, initial, autocorrelation, noise_sd, asymptote, none, one, one, none)


def joined(parts: list[Draws]) -> Draws:
    """Return the concatenation of several sets of draws."""
    return Draws(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def every(draws: Draws, count: int) -> Draws:
    """Return the given number of draws, evenly spaced."""
    index = np.linspace(0, len(draws.asymptote) - 1, count).round().astype(int)
    return Draws(*(values[index] for values in draws))
