"""The compute-performance law as functions of arrays.

    R(C) = R0 + (A - R0) u(C),    u(C) = 1 / (1 + (C_mid / C)^B)          (arXiv 2510.13786, equation 1)

In ln C this is a logistic curve with slope B and center ln C_mid. This form does not overflow or divide by zero, and
u(0) is exactly 0, so the evaluation before training needs no special case.

Draws (samples) of a curve have its parameters, and return the level at any compute and the compute for a level.

Axes in names: D draws, M amounts of compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

CLIMB_DONE = 0.95
"""Share of the climb from R0 to A after which a run counts as complete."""


def log_compute(compute: ArrayLike) -> Array:
    """Return the natural logarithm of compute, of the same shape; minus infinity at zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.asarray(compute, dtype=np.float64)), dtype=np.float64)


def climb(log_c: ArrayLike, log_midpoint: ArrayLike, efficiency: ArrayLike) -> Array:
    """Return the share u of the climb that is complete at ln C; arguments broadcast, result in [0, 1]."""
    # in place: on a grid, most of the time is spent in this function, mainly for the allocation of arrays
    work = np.asarray(np.subtract(log_midpoint, log_c, dtype=np.float64))
    work = scaled(work, efficiency)
    with np.errstate(over="ignore"):  # overflow to infinity is intended: its reciprocal is zero
        np.exp(work, out=work)
    work += 1.0
    return np.reciprocal(work, out=work)


def scaled(work: Array, factor: ArrayLike) -> Array:
    """Return work times a factor that broadcasts with it; in place if the shape of work is that of the product."""
    in_place = np.broadcast_shapes(work.shape, np.shape(factor)) == work.shape
    return np.asarray(np.multiply(work, factor, out=work if in_place else None))


FAST_SLOPE = 2.0 * float(np.log(2.0))
"""Exponents that make the slopes of both climbs equal at their midpoint: q = B / FAST_SLOPE."""


def fast_climb(log_c: ArrayLike, log_midpoint: ArrayLike, efficiency: ArrayLike) -> Array:
    """Return the share of a climb that ends exponentially, u = 1 - exp(-(C / tau)^q); arguments as for `climb`.

    C_mid and B have the meaning that they have in the law: half of the climb is complete at C_mid, with the same slope
    in ln C. Thus (C / tau)^q = ln 2 (C / C_mid)^q with q = B / FAST_SLOPE.
    """
    work = np.asarray(np.subtract(log_c, log_midpoint, dtype=np.float64))
    work = scaled(work, np.divide(efficiency, FAST_SLOPE))
    with np.errstate(over="ignore"):
        np.exp(work, out=work)
        work *= -np.log(2.0)
        np.expm1(work, out=work)
    return np.negative(work, out=work)


def sigmoid(
    compute: ArrayLike, asymptote: ArrayLike, efficiency: ArrayLike, midpoint: ArrayLike, initial: ArrayLike
) -> Array:
    """Return R(C) of equation 1; arguments broadcast. R(C_mid) is halfway between R0 and A."""
    u = climb(log_compute(compute), log_compute(midpoint), efficiency)
    start = np.asarray(initial, dtype=np.float64)
    return np.asarray(start + (np.asarray(asymptote, dtype=np.float64) - start) * u, dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Draws of a rising curve and its noise, each of shape (D,) unless stated.

    A draw of the plain law has no delay and no second rise, and its plateau is its asymptote (`plain_draws`).

    Example (one draw): `Draws(asymptote=[0.83], efficiency=[1.8], midpoint=[6.9e11], initial=[0.2],
    autocorrelation=[0.4], noise_sd=[0.011], plateau=[0.83], delay=[0.0], second_midpoint=[1.0],
    second_efficiency=[1.0], second_gain=[0.0], fast=[0.0], most=1.0)`
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
    fast: Array
    """1 if the climb ends exponentially (`fast_climb`), 0 if it follows the law."""
    most: float
    """Upper bound of the metric, which no level exceeds; a number."""

    def __len__(self) -> int:
        return len(self.asymptote)

    def select(self, index_D: Any) -> Draws:
        """Return the draws at these indices, or where a mask is true."""
        return replace(self, **{name: getattr(self, name)[index_D] for name in DRAW_COLUMNS})

    def levels(self, compute_M: Array) -> Array:
        """Return the level of each drawn curve at each compute, shape (M, D)."""
        return self.level_each(compute_M[:, None])

    def level_each(self, compute: Array) -> Array:
        """Return the level of each drawn curve at compute that broadcasts with the draws, in the shape of both."""
        log_since, log_midpoint = log_compute(np.maximum(compute - self.delay, 0.0)), np.log(self.midpoint - self.delay)
        u = climb(log_since, log_midpoint, self.efficiency)
        if self.fast.any():
            u = np.where(self.fast > 0, fast_climb(log_since, log_midpoint, self.efficiency), u)
        level = self.initial + (self.plateau - self.initial) * u
        if self.second_gain.any():
            second = climb(log_compute(compute), np.log(self.second_midpoint), self.second_efficiency)
            level = np.minimum(level + self.second_gain * second, self.most)
        return np.asarray(level)

    def compute_for(self, target_D: Array) -> Array:
        """Compute at which each drawn curve reaches a level, shape (D,); infinite if never, 0 if it starts there."""
        share_D = (target_D - self.initial) / np.maximum(self.plateau - self.initial, 1e-12)
        odds_D = np.clip(share_D, 1e-12, 1 - 1e-12)
        log_since_D = np.log(self.midpoint - self.delay) + np.log(odds_D / (1 - odds_D)) / self.efficiency
        if self.fast.any():
            needed_D = np.log(self.midpoint) + np.log(-np.log2(1.0 - odds_D)) * FAST_SLOPE / self.efficiency
            log_since_D = np.where(self.fast > 0, needed_D, log_since_D)
        needed_D = self.delay + np.exp(np.clip(log_since_D, -700, 700))
        needed_D = np.where(share_D <= 0, 0.0, np.where(share_D >= 1, np.inf, needed_D))
        rises_twice_D = self.second_gain > 0
        if rises_twice_D.any():
            needed_D[rises_twice_D] = self.select(rises_twice_D).bisected(target_D[rises_twice_D])
        return np.asarray(needed_D)

    def bisected(self, target_D: Array) -> Array:
        """Return `compute_for` of curves with two rises, by bisection, because there is no closed form."""
        low_D, high_D = np.log(self.midpoint) - 40.0, np.log(self.second_midpoint) + 40.0
        for _ in range(60):
            middle_D = (low_D + high_D) / 2
            below_D = self.level_each(np.exp(middle_D)) < target_D
            low_D, high_D = np.where(below_D, middle_D, low_D), np.where(below_D, high_D, middle_D)
        never_D = target_D >= np.minimum(self.plateau + self.second_gain, self.most)
        return np.where(target_D <= self.initial, 0.0, np.where(never_D, np.inf, np.exp(high_D)))

    def compute_done(self) -> Array:
        """Compute at which 95% of the climb from the initial level to the asymptote is complete, shape (D,)."""
        return self.compute_for(self.initial + CLIMB_DONE * (self.asymptote - self.initial))

    def evenly(self, count: int) -> Draws:
        """Return the given number of draws, evenly spaced."""
        return self.select(np.linspace(0, len(self) - 1, count).round().astype(int))


DRAW_COLUMNS = tuple(field.name for field in fields(Draws) if field.name != "most")
"""The fields of `Draws` with one entry per draw."""


def plain_draws(
    *,
    asymptote: Array,
    efficiency: Array,
    midpoint: Array,
    initial: Array,
    autocorrelation: Array,
    noise_sd: Array,
    most: float,
) -> Draws:
    """Return draws of the law, without delay and second rise."""
    none_D, one_D = np.zeros_like(asymptote), np.ones_like(asymptote)
    return Draws(
        asymptote=asymptote, efficiency=efficiency, midpoint=midpoint, initial=initial,
        autocorrelation=autocorrelation, noise_sd=noise_sd, most=most,
        plateau=asymptote, delay=none_D, second_midpoint=one_D, second_efficiency=one_D, second_gain=none_D,
        fast=none_D,
    )  # fmt: skip


def joined_draws(parts: Sequence[Draws]) -> Draws:
    """Return the concatenation of several sets of draws of one metric."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in DRAW_COLUMNS}
    return replace(parts[0], **columns)
