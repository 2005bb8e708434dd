"""The families of curves that a run may follow, with the reason for each and its weight in intervals.

Five families have a curve, which `sampling` solves on a grid: the law (equation 1), and four departures from it. Each
converts its parameters to the columns of a linear problem in (R0, A) and, for two of them, the size of a second rise.
Three others need no grid: a run that stays where it is (`level`), a rise that has not begun, and a fallen run that
returns (`posterior`).

Compute is in multiples of the compute of the last point, the metric in shares of its range.

Axes in names: N points, D draws, K parameters of a family, the first two being ln C_mid and ln B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scalerl.reading.curves.law import Array, climb, fast_climb, log_compute

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
class Family:
    """One kind of future.

    Example: `Family("level", "flat runs are as common as rising ones, if the noise hides a climb")`
    """

    name: str
    why: str
    """The reason why it exists."""
    wide: float = 1.0
    """Weight in the intervals, in multiples of its probability."""


@dataclass(frozen=True)
class CurveFamily(Family):
    """A family with a curve that is solved on a grid."""

    limits_K2: tuple[tuple[float, float], ...] = ()
    """Smallest and largest value of the parameters after ln C_mid and ln B; the prior is uniform between them."""

    cells_K: tuple[int, ...] = ()
    """Number of grid cells along each parameter."""

    columns: Callable[[Array, list[Array]], Columns] = field(kw_only=True)
    """Function of ln compute, shape (N,), and of parameters that broadcast with each other."""

    bends: Callable[[list[Array], Array], Bends] = field(kw_only=True)
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


LAW = CurveFamily("law", "equation 1: what most runs follow", cells_K=(36, 20), columns=law_columns, bends=law_bends)
LATE_START = CurveFamily(
    "late start", "the level is constant up to some compute, and follows the law from there",
    limits_K2=((0.05, 0.7),), cells_K=(14, 10, 9), columns=late_columns, bends=late_bends,
)  # fmt: skip
SECOND_RISE = CurveFamily(
    "second rise", "on top of the law, a second sigmoid has begun, which looks like a run that has flattened", wide=3.0,
    limits_K2=((float(np.log(0.3)), float(np.log(4.0))), (0.0, float(np.log(6.0)))), cells_K=(12, 9, 7, 5),
    columns=twice_columns, bends=twice_bends, most_second=0.5, weight_second=rarely_large,
)  # fmt: skip
CREEP = CurveFamily(
    "creep", "on top of the law, the level drifts up slowly, by as much as noise hides", wide=2.0,
    cells_K=(20, 14), columns=creep_columns, bends=creep_bends, most_second=0.06,
)  # fmt: skip
FAST_END = CurveFamily(
    "fast end", "the climb ends exponentially and not as a power: of such worlds the law alone covers 29%", wide=8.0,
    cells_K=(24, 16), columns=fast_columns, bends=fast_bends,
)  # fmt: skip
LEVEL = Family("level", "a run without a clear climb, or one that has fallen, stays where it is")
NOT_BEGUN = Family("rise not begun", "runs without a climb rose later, which no point so far can show")
RETURN = Family("return", "of runs that had fallen, six of 26 recovered half of it or more")

DEPARTURES = (LATE_START, SECOND_RISE, CREEP)
"""The departures from the law that may move the mean; all have the same prior probability, as has `FAST_END`.

In the mean they count if together they are likely (`posterior.ADMITTED`), a fast end never. The weights of intervals
are such that these contain 80% of simulated runs that creep or rise twice at every horizon, and over 85% of those that
end fast: points so far seldom tell them from the law, and at ten times the compute the difference is large."""
