"""The fitting procedure of the paper (arXiv 2510.13786, appendix A.5), to reproduce its numbers.

For decisions use `fit`. Here A and C_mid lie on a grid, and B is fitted for each pair. R0 is fixed at the score before
training. The result is the pair with the smallest sum of squares. It has no uncertainty.

Axes in names: N points, A asymptotes, M midpoints, B trial efficiencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalerl.reading.curves.curve import LARGEST_NUMBER, Curve, as_numbers
from scalerl.reading.curves.estimate import as_json, short_number
from scalerl.reading.curves.fit import CEILING, PARAMETERS, checked_r0, usable_points
from scalerl.reading.curves.law import Array, climb, log_compute, sigmoid
from scalerl.reading.tables.errors import CurveError

SCAN_STEP = 0.1
"""Step of the scan in ln B."""

TRIAL_EFFICIENCIES = np.exp(np.arange(np.log(0.05), np.log(20.0), SCAN_STEP))
"""Values of B that are tried before the refinement."""


@dataclass(frozen=True)
class PaperGrid:
    """Grid of A and C_mid. The published table uses different ranges for different runs."""

    asymptotes: Sequence[float] | None = None
    """Values of A; None: 200 steps over the metric's range (0.005 for a pass rate, the paper's step)."""

    midpoints: Sequence[float] | None = None
    """Values of C_mid, in the curve's compute unit; None: steps of a hundredth of the last compute, up to 2.5 times it.

    This is the paper's range (40,000 for runs of 16,000). The range acts as a prior.
    """

    def values(self, curve: Curve) -> tuple[Array, Array]:
        """Return the values of A, shape (A,), and of C_mid, shape (M,), for a curve.

        Raises:
            CurveError: A list is empty, does not ascend, or leaves the range of A (the metric's) or of C_mid (above 0).
        """
        (low, high), last = curve.bounds, curve.last_compute
        steps_A, shares_M = np.arange(1, 201) / 200, np.arange(1, 251) / 100
        asymptote_A = low + (high - low) * steps_A if self.asymptotes is None else as_numbers("A", self.asymptotes)
        midpoint_M = last * shares_M if self.midpoints is None else as_numbers("C_mid", self.midpoints)
        for name, values, least, most in (("A", asymptote_A, low, high), ("C_mid", midpoint_M, 0.0, LARGEST_NUMBER)):
            is_valid = len(values) and (np.diff(values) > 0).all() and least <= values[0] and values[-1] <= most
            if not is_valid or (name == "C_mid" and values[0] <= 0):
                limits = f"[{low:g}, {high:g}]" if name == "A" else "numbers above 0"
                raise CurveError(f"the grid of {name} must ascend within {limits}; got {short_list(values)}")
        return asymptote_A, midpoint_M


def short_list(values: Array) -> str:
    """Return a list of numbers for a message."""
    if len(values) <= 3:
        return f"{', '.join(short_number(float(value)) for value in values) or 'no value'}"
    return f"{len(values)} values from {short_number(float(values[0]))} to {short_number(float(values[-1]))}"


PUBLISHED_GRID = PaperGrid(
    asymptotes=tuple(np.round(np.arange(0.450, 0.8001, 0.005), 3)), midpoints=tuple(np.linspace(100, 40_000, 100))
)
"""The ranges printed in the paper, in GPU-hours. Its small runs use linspace(100, 4000, 100)."""


@dataclass(frozen=True, eq=False)
class PaperFit:
    """The best grid point of one curve.

    Example: `PaperFit(curve, asymptote=0.61, efficiency=1.92, midpoint=2542.0, initial=0.2,
    residual_sum_of_squares=2e-4, at_edge=())`
    """

    curve: Curve
    """The points that were fitted."""

    asymptote: float
    """A, in the metric's unit."""

    efficiency: float
    """B, no unit."""

    midpoint: float
    """C_mid, in the unit of the compute axis."""

    initial: float
    """R0, in the metric's unit."""

    residual_sum_of_squares: float
    """Over the points after compute 0."""

    at_edge: tuple[str, ...]
    """Parameters at the edge of the grid, whose range then decides the result."""

    def level(self, compute: ArrayLike) -> Array:
        """Return the level of the curve at any compute, of the same shape."""
        return sigmoid(compute, self.asymptote, self.efficiency, self.midpoint, self.initial)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values, without the points."""
        values = {name: as_json(value) for name, value in vars(self).items() if name != "curve"}
        return {"method": "paper", **values, "axis": self.curve.axis, "points": len(self.curve)}

    def __str__(self) -> str:
        unit = self.curve.unit
        lines = [
            f"curve     {len(self.curve)} evaluations to {short_number(self.curve.last_compute)} {unit}, "
            "fit of the paper",
            f"  A       {short_number(self.asymptote)}   {CEILING}",
            f"  B       {short_number(self.efficiency)}   the steepness",
            f"  C_mid   {short_number(self.midpoint)}   the midpoint, {unit} at half of the climb",
            f"  R0      {short_number(self.initial)}   the level before training",
            *(f"warning   {PARAMETERS[name]} lies at the edge of the grid" for name in self.at_edge),
            "The paper's procedure gives no uncertainty. For a forecast and advice, leave out --method.",
        ]
        return "\n".join(lines)


def paper_fit(
    curve: Curve, *, r0: float | None = None, exclude_below: float = 0.0, grid: PaperGrid | None = None
) -> PaperFit:
    """Fit by the paper's procedure; return the best grid point and its B.

    Args:
        curve: Curve with at least five points.
        r0: Value at which R0 is fixed; None: the point at compute 0.
        exclude_below: As in `fit`.
        grid: Values of A and C_mid to try; None: the defaults of `PaperGrid`.

    Raises:
        CurveError: The curve cannot be fitted, R0 is not known, or no asymptote of the grid lies above it.
    """
    grid = grid or PaperGrid()
    if r0 is None and curve.compute[0] != 0:
        raise CurveError(
            f"the paper's procedure fixes R0 at the score before training, and the first point is at "
            f"{short_number(float(curve.compute[0]))} {curve.unit}; give R0 with --r0 (r0= in Python)"
        )
    window = usable_points(curve, exclude_below)
    initial = float(curve.metric[0]) if r0 is None else checked_r0(r0, curve)
    asymptote_A, midpoint_M = grid.values(window)
    asymptote_A = asymptote_A[asymptote_A > initial]
    if not len(asymptote_A):
        raise CurveError(
            f"no asymptote of the grid lies above R0 = {initial:.4g}; give larger values with --asymptotes "
            "(PaperGrid(asymptotes=...) in Python)"
        )
    if np.ptp(window.metric) == 0:
        raise CurveError(
            f"every metric value is {window.metric[0]:g}: there is no climb to fit. Train longer, or check the metric"
        )
    after_N = window.compute > 0
    log_c_N, rise_N = log_compute(window.compute[after_N]), window.metric[after_N] - initial
    index_A, index_M, efficiency = best_point(log_c_N, rise_N, asymptote_A - initial, np.log(midpoint_M))
    asymptote, midpoint = float(asymptote_A[index_A]), float(midpoint_M[index_M])
    edges = {"asymptote": index_A in (0, len(asymptote_A) - 1), "midpoint": index_M in (0, len(midpoint_M) - 1)}
    residual_N = rise_N - (asymptote - initial) * climb(log_c_N, np.log(midpoint), efficiency)
    return PaperFit(
        curve=window,
        asymptote=asymptote,
        efficiency=efficiency,
        midpoint=midpoint,
        initial=initial,
        residual_sum_of_squares=float(residual_N @ residual_N),
        at_edge=tuple(name for name, at_edge in edges.items() if at_edge),
    )


def best_point(log_c_N: Array, rise_N: Array, gain_A: Array, log_midpoint_M: Array) -> tuple[int, int, float]:
    """Return the indices of A and C_mid, and the value of B, with the smallest sum of squares.

    With g = A - R0 the sum is |rise|^2 - 2 g (u . rise) + g^2 (u . u): two sums over the points are enough for every A.
    """
    u_MBN = climb(log_c_N, log_midpoint_M[:, None, None], TRIAL_EFFICIENCIES[:, None])
    cross_MB, square_MB = u_MBN @ rise_N, (u_MBN**2).sum(axis=2)
    cost_AMB = gain_A[:, None, None] ** 2 * square_MB - 2 * gain_A[:, None, None] * cross_MB
    # the scan of B is coarse, so the best pairs are refined before one is chosen
    cost_AM = cost_AMB.min(axis=2)
    pairs = np.argsort(cost_AM, axis=None)[:400]
    index_A, index_M = np.unravel_index(pairs, cost_AM.shape)
    log_b = np.log(TRIAL_EFFICIENCIES)[cost_AMB[index_A, index_M].argmin(axis=1)]
    log_b, cost = refine(log_c_N, rise_N, gain_A[index_A], log_midpoint_M[index_M], log_b)
    best = int(cost.argmin())
    return int(index_A[best]), int(index_M[best]), float(np.exp(log_b[best]))


def refine(log_c_N: Array, rise_N: Array, gain_A: Array, log_midpoint_M: Array, log_b: Array) -> tuple[Array, Array]:
    """Return ln B of each pair by Gauss-Newton, with steps limited to the step of the scan, and the sum of squares."""
    distance_N = log_c_N - log_midpoint_M[:, None]
    for _ in range(25):
        u_N = climb(log_c_N, log_midpoint_M[:, None], np.exp(log_b)[:, None])
        slope_N = gain_A[:, None] * u_N * (1 - u_N) * distance_N * np.exp(log_b)[:, None]
        residual_N = rise_N - gain_A[:, None] * u_N
        step = (slope_N * residual_N).sum(axis=1) / np.maximum((slope_N**2).sum(axis=1), 1e-300)
        log_b = np.clip(log_b + np.clip(step, -SCAN_STEP, SCAN_STEP), -4.0, 4.0)
    u_N = climb(log_c_N, log_midpoint_M[:, None], np.exp(log_b)[:, None])
    return log_b, ((rise_N - gain_A[:, None] * u_N) ** 2).sum(axis=1)
