"""The families of curves that a run may follow: the law, and four departures from it.

- law: equation 1;
- late start: the level is constant up to some compute, and follows the law from there;
- second rise: on top of the law, a second sigmoid has begun;
- creep: on top of the law, the level drifts up slowly, in proportion to compute;
- fast end: the climb ends exponentially, R = R0 + (A - R0) (1 - exp(-(C / tau)^q)), and not as a power of compute. It
  enters intervals and the question whether the ceiling is identified, and not the mean.

Each family converts its parameters to the columns of a linear problem in (R0, A) and, for the last two, the size of the
second rise. A second rise that has not begun is excluded, because no data can support or contradict it. Compute is in
multiples of the compute of the last point, the metric in shares of its range.

Axes in names: N points, D draws, K parameters of a family, the first two being ln C_mid and ln B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scalerl.scaling.law import Array, climb, fast_climb, log_compute

VISIBLE = 0.05
"""Smallest share of a second rise that must be complete at the last point."""

RISE_SCALE = 0.2
"""Prior mean of the size of a second rise (exponential), as a share of the metric's range."""

CREEP_REACH = 200.0
"""Midpoint of a creep, a sigmoid with B = 1: straight within 5% up to ten times the compute of the run."""


class Columns(NamedTuple):
    """Columns of the linear problem for given parameters, shape (..., N)."""

    first: Array
    """Share of the first rise that is complete."""
    second: Array | None
    """Share of the second rise that is complete (for a creep, relative to the last point); None if there is none."""


class Bends(NamedTuple):
    """Shape parameters of D drawn curves in addition to C_mid and B, as in `Draws`, in relative units."""

    delay: Array
    second_midpoint: Array
    second_efficiency: Array
    second_gain: Array
    fast: Array


@dataclass(frozen=True)
class CurveFamily:
    """One family of curves."""

    name: str
    """Name, as in the list above."""

    limits_K2: tuple[tuple[float, float], ...]
    """Smallest and largest value of the parameters after ln C_mid and ln B; the prior is uniform between them."""

    cells_K: tuple[int, ...]
    """Number of grid cells along each parameter."""

    columns: Callable[[Array, list[Array]], Columns]
    """Function of ln compute, shape (N,), and of parameters that broadcast with each other."""

    bends: Callable[[list[Array], Array], Bends]
    """Function of parameters and of the coefficient of the second column (zeros if there is none), all shape (D,)."""

    most_second: float = 0.0
    """Largest coefficient of the second column; the prior on the grid is uniform up to it."""

    weight_second: Callable[[Array], Array] = np.ones_like
    """Prior density of this coefficient relative to the uniform one."""


def first_rise(log_c_N: Array, log_midpoint: Array, log_efficiency: Array) -> Array:
    """Return the share of a sigmoid climb that is complete at each point."""
    return climb(log_c_N, log_midpoint[..., None], np.exp(log_efficiency)[..., None])


def law_columns(log_c_N: Array, place_K: list[Array]) -> Columns:
    """Return the columns of R = R0 (1 - u) + A u."""
    return Columns(first_rise(log_c_N, *place_K), None)


def law_bends(place_KD: list[Array], coefficient_D: Array) -> Bends:
    """Return shape parameters without delay and second rise."""
    none_D, one_D = np.zeros_like(coefficient_D), np.ones_like(coefficient_D)
    return Bends(none_D, one_D, one_D, none_D, none_D)


def fast_columns(log_c_N: Array, place_K: list[Array]) -> Columns:
    """Return the columns of the law with a climb that ends exponentially."""
    log_midpoint, log_efficiency = place_K
    return Columns(fast_climb(log_c_N, log_midpoint[..., None], np.exp(log_efficiency)[..., None]), None)


def fast_bends(place_KD: list[Array], coefficient_D: Array) -> Bends:
    """Return shape parameters of a climb that ends exponentially."""
    return law_bends(place_KD, coefficient_D)._replace(fast=np.ones_like(coefficient_D))


def late_columns(log_c_N: Array, place_K: list[Array]) -> Columns:
    """Return the columns of the law, with compute counted from the start of the climb."""
    log_midpoint, log_efficiency, delay = place_K
    since = np.exp(log_c_N) - delay[..., None]
    since = log_compute(np.maximum(since, 0.0, out=since))
    return Columns(first_rise(since, log_midpoint, log_efficiency), None)


def late_bends(place_KD: list[Array], coefficient_D: Array) -> Bends:
    """Return shape parameters with a delay only."""
    return law_bends(place_KD, coefficient_D)._replace(delay=place_KD[2])


def twice_columns(log_c_N: Array, place_K: list[Array]) -> Columns:
    """Return the columns of R = R0 (1 - u) + A u + G u2; the second is zero while the second rise is not visible."""
    log_midpoint, log_efficiency, log_second, log_steepness = place_K
    second = first_rise(log_c_N, log_second, log_steepness)
    done = climb(0.0, log_second, np.exp(log_steepness))[..., None]
    second *= done >= VISIBLE
    return Columns(first_rise(log_c_N, log_midpoint, log_efficiency), second)


def twice_bends(place_KD: list[Array], coefficient_D: Array) -> Bends:
    """Return shape parameters with a second rise, whose size is the coefficient."""
    none_D = np.zeros_like(coefficient_D)
    return Bends(none_D, np.exp(place_KD[2]), np.exp(place_KD[3]), coefficient_D, none_D)


def rarely_large(coefficient_D: Array) -> Array:
    """Return the ratio of the exponential density of a second rise to the uniform one on (0, most]."""
    most = SECOND_RISE.most_second
    return np.asarray(np.exp(-coefficient_D / RISE_SCALE) * most / (RISE_SCALE * (1 - np.exp(-most / RISE_SCALE))))


def creep_columns(log_c_N: Array, place_K: list[Array]) -> Columns:
    """Return the columns of a creep; the coefficient of the second column is the rise by the creep so far."""
    ratio_N = np.exp(log_c_N)
    return Columns(first_rise(log_c_N, *place_K), ratio_N * (1 + CREEP_REACH) / (ratio_N + CREEP_REACH))


def creep_bends(place_KD: list[Array], coefficient_D: Array) -> Bends:
    """Return shape parameters with a second rise of which 1 / (1 + CREEP_REACH) is complete."""
    one_D = np.ones_like(coefficient_D)
    return Bends(0 * one_D, CREEP_REACH * one_D, one_D, (1 + CREEP_REACH) * coefficient_D, 0 * one_D)


LAW = CurveFamily("law", (), (36, 20), law_columns, law_bends)
LATE_START = CurveFamily("late start", ((0.05, 0.7),), (14, 10, 9), late_columns, late_bends)
SECOND_RISE = CurveFamily(
    "second rise",
    ((float(np.log(0.3)), float(np.log(4.0))), (0.0, float(np.log(6.0)))),
    (12, 9, 7, 5), twice_columns, twice_bends, 0.5, rarely_large,
)  # fmt: skip
FAST_END = CurveFamily("fast end", (), (24, 16), fast_columns, fast_bends)
CREEP = CurveFamily("creep", (), (20, 14), creep_columns, creep_bends, 0.06)

DEPARTURES = (LATE_START, SECOND_RISE, CREEP)
"""The departures from the law that may move the mean; all have the same prior probability, as has `FAST_END`."""
