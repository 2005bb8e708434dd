"""The numbers in the figures: slopes, contours of the posterior, fits of first parts, and sides of a comparison.

Axes in names: N points, D draws, G cells along one axis of a grid, S runs of a side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scalerl.scaling import Band, Comparison, Curve, CurveError, Draws, Estimate, Fit, fit
from scalerl.scaling.compare import ASSUMED_SEED_SD, common_ceiling, log_efficiency, side_mean, summarize_ratio
from scalerl.scaling.estimate import summarize
from scalerl.scaling.law import Array
from scalerl.scaling.posterior import held_at

MASSES = (0.5, 0.9)
"""Shares of the posterior that its contours contain."""

GRID = 60
"""Cells along each axis of the figure of the posterior."""


@dataclass(frozen=True, eq=False)
class Slope:
    """One run as a straight line: log F against log C, of slope B (arXiv 2510.13786, figure 7).

    F(R) = C_mid^B / ((A - R0) / (R - R0) - 1), which is C^B if R follows the law. Points at or above A, or at or
    below R0, have no F and are left out.
    """

    label: str
    axis: str

    ceiling: float
    """A, fixed for the fit."""

    efficiency: float
    """B with A fixed."""

    midpoint: float
    """C_mid with A fixed, unit of the compute axis."""

    initial: float
    """R0 with A fixed."""

    span: Array
    """Smallest and largest compute above 0 of all points, shape (2,); a run may have no point with an F."""

    compute: Array
    """Compute of the points that have an F, shape (N,)."""

    share: Array
    """(R - R0) / (A - R0) of these points, shape (N,), in (0, 1)."""

    dropped: int
    """Number of points after compute 0 without an F."""

    def level(self, unit: float = 1.0) -> Array:
        """Return F of each point, shape (N,), with compute in multiples of `unit`."""
        return np.asarray((self.midpoint / unit) ** self.efficiency / (1 / self.share - 1))

    def line(self, compute: Array, unit: float = 1.0) -> Array:
        """Return C^B, with compute in multiples of `unit`; any shape."""
        return np.asarray((np.asarray(compute) / unit) ** self.efficiency)


def slope_at(curve: Curve, ceiling: float, label: str = "") -> Slope:
    """Fit a curve with its ceiling fixed, and transform its points to a straight line."""
    held, draws = held_at(curve, ceiling)
    initial = float(draws.initial.mean())
    after_N = curve.compute > 0
    share_N = (curve.metric[after_N] - initial) / (held - initial)
    usable_N = (share_N > 0) & (share_N < 1)
    return Slope(
        label=label or curve.label,
        axis=curve.axis,
        ceiling=held,
        efficiency=float(np.exp(np.log(draws.efficiency).mean())),
        midpoint=float(np.exp(np.log(draws.midpoint).mean())),
        initial=initial,
        span=curve.compute[after_N][[0, -1]],
        compute=curve.compute[after_N][usable_N],
        share=share_N[usable_N],
        dropped=int((~usable_N).sum()),
    )


def common_asymptote(fits: Sequence[Fit]) -> float:
    """Return the common ceiling for slopes: the mean of the ceilings of all runs, weighted by their precision."""
    low, high = fits[0].curve.bounds
    return common_ceiling(fits, ASSUMED_SEED_SD * (high - low))


def common_unit(slopes: Sequence[Slope]) -> float:
    """Return a unit of compute in which all lines pass near each other: the geometric mean of the midpoints."""
    return float(np.exp(np.mean([np.log(slope.midpoint) for slope in slopes])))


def height_range(slopes: Sequence[Slope], unit: float) -> tuple[float, float]:
    """Return the range of F in a figure; it follows the lines, because F of points near the ceiling can be any value.

    Args:
        slopes: Slopes of one figure.
        unit: Unit of compute, in the unit of the axis.
    """
    heights = [slope.line(slope.span, unit) for slope in slopes]
    return float(np.min(heights)) / 4, float(np.max(heights)) * 6


class Density(NamedTuple):
    """Joint posterior of A and B on a grid."""

    asymptote: Array
    """Values of A, shape (G,)."""

    efficiency: Array
    """Values of B, shape (G,), evenly spaced in the logarithm."""

    mass: Array
    """Share of the posterior with a higher density, shape (G, G), rows B, columns A; a contour at 0.9 contains 90%."""


def joint_density(draws: Draws, bounds: tuple[float, float], cells: int = GRID) -> Density | None:
    """Return the joint posterior of A and ln B, smoothed; None if the draws have no spread (the paper's procedure)."""
    from scipy.stats import gaussian_kde

    both_2D = np.stack([draws.asymptote, np.log(draws.efficiency)])
    if both_2D.shape[1] < 3 or np.linalg.matrix_rank(np.cov(both_2D)) < 2:
        return None
    kernel = gaussian_kde(both_2D)
    (least_a, least_b), (most_a, most_b) = np.quantile(both_2D, [0.002, 0.998], axis=1)
    pad_a, pad_b = 0.25 * (most_a - least_a), 0.25 * (most_b - least_b)
    a_G = np.linspace(max(least_a - pad_a, bounds[0]), min(most_a + pad_a, bounds[1]), cells)
    log_b_G = np.linspace(least_b - pad_b, most_b + pad_b, cells)
    density_GG = kernel(np.stack([x.ravel() for x in np.meshgrid(a_G, log_b_G)])).reshape(cells, cells)
    order = np.argsort(density_GG, axis=None)[::-1]
    mass = np.empty(cells * cells)
    mass[order] = np.cumsum(density_GG.ravel()[order])
    mass_GG = (mass / mass[order[-1]]).reshape(cells, cells)
    # crop to the part inside the contours, with a margin of one cell
    rows, columns = (np.flatnonzero((mass_GG <= MASSES[-1]).any(axis=axis)) for axis in (1, 0))
    kept = [slice(max(inside[0] - 1, 0), inside[-1] + 2) for inside in (rows, columns)]
    return Density(a_G[kept[1]], np.exp(log_b_G[kept[0]]), mass_GG[kept[0], kept[1]])


def first_parts(curve: Curve, fractions: Sequence[float], method: str = "posterior") -> tuple[Fit, ...]:
    """Return the fits of the first parts of a run, the same as in `backtest`.

    Raises:
        CurveError: A part with too few points, or whose fit has no uncertainty.
    """
    parts = tuple(fit(curve.between(most=fraction * curve.last_compute), method) for fraction in fractions)
    for part, fraction in zip(parts, fractions, strict=True):
        if len(part.draws.asymptote) == 1:
            raise CurveError(f"the {method} fit of the first {fraction:.0%} of the run has no uncertainty")
    return parts


def forecast_of_rest(part: Fit, curve: Curve) -> Band:
    """Return the forecast for the evaluations of a run after its first part.

    It has few points, because the ends of a band with noise are random.
    """
    return part.predict(np.linspace(part.last_compute, curve.last_compute, 24), noise=True)


class Side(NamedTuple):
    """One quantity of a recipe in a comparison, and of each of its runs."""

    recipe: Estimate
    """Estimate from all runs, including the scatter between seeds."""

    runs: tuple[Estimate, ...]
    """Estimate from each run, shape (S,)."""


def side_asymptotes(found: Comparison, rng: np.random.Generator) -> tuple[Side, Side]:
    """Return A of both recipes."""

    def side(fits: tuple[Fit, ...]) -> Side:
        draws = [rng.permutation(f.draws.asymptote) for f in fits]
        recipe_D = side_mean(draws, np.full(len(draws[0]), found.seed_sd), rng)
        return Side(summarize(recipe_D), tuple(f.asymptote for f in fits))

    return side(found.sides[0]), side(found.sides[1])


def side_efficiencies(found: Comparison, rng: np.random.Generator) -> tuple[Side, Side]:
    """Return B of both recipes at the common ceiling."""

    def side(fits: tuple[Fit, ...]) -> Side:
        log_SD = [log_efficiency(f.curve, found.common_asymptote, found.seed_sd, rng) for f in fits]
        return Side(summarize_ratio(np.mean(log_SD, axis=0)), tuple(summarize_ratio(log_D) for log_D in log_SD))

    return side(found.sides[0]), side(found.sides[1])


QUANTITIES: dict[str, Callable[[Comparison, np.random.Generator], tuple[Side, Side]]] = {
    "asymptote": side_asymptotes,
    "efficiency": side_efficiencies,
}
"""Quantities by which recipes are compared."""
