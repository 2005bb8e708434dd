"""Fits the law to a curve: the record of a fit, its bands at any compute, and whether its ceiling is identified.

`posterior` gives the draws. The methods of `Fit` turn them into means and bands.

Axes in names: N points, M amounts of compute, D draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scalerl.core import VIEWS
from scalerl.core.calls import checked
from scalerl.reading.curves.curve import Curve, checked_curve, checked_kind, thinned
from scalerl.reading.curves.estimate import NINE_IN_TEN, TAILS, Estimate, as_json, quantiles, summarize, weighted_mean
from scalerl.reading.curves.health import decline, departure_symptoms, shape_symptoms
from scalerl.reading.curves.law import Array, Draws
from scalerl.reading.curves.noise import averaged_in, local_noise
from scalerl.reading.curves.notebook import PLOT_HABITS, InNotebooks, Scale
from scalerl.reading.curves.posterior import Posterior, posterior
from scalerl.reading.curves.sampling import MIN_POINTS, Prior, least_midpoint
from scalerl.reading.curves.units import range_text
from scalerl.reading.tables.errors import CurveError

MAX_POINTS = 400
"""Largest number of points; longer curves are averaged in groups."""

IDENTIFIED_SD = 0.02
"""The ceiling is identified if its standard deviation is below this share of the metric's range.

In simulation 96% of the identified ceilings are within this distance of the truth.
"""

CEILING = "the ceiling of this climb"
"""What is identified. In simulation 85% of runs that rise a second time after their last point have one."""

UNLAWFUL = 0.1
"""The ceiling is not identified if something other than the law has a probability above this."""

AGREEING_POINTS = 3
"""Number of last points that must agree with the curve."""

CONTRADICTION = 4.0
"""The last points contradict the curve if their mean deviates by this multiple of the noise between neighbors.

This is 2.7 standard deviations of their mean for noise with autocorrelation 0.7, and 7 for white noise.
"""

PARAMETERS = {
    "asymptote": "ceiling A",
    "efficiency": "steepness B",
    "midpoint": "midpoint C_mid",
    "initial": "initial level R0",
}
"""Names of the parameters in text."""


PREDICTED_TOGETHER = 256
"""Amounts of compute whose 2,000 draws are in memory together: 4 MB for each of about ten arrays."""


class Band(NamedTuple):
    """A curve with its 90% band; every field has shape (M,)."""

    compute: Array
    mean: Array
    low: Array
    high: Array
    sd: Array


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Fit(InNotebooks):
    """The law fitted to one curve. `identified` and `warnings` show how far to trust it.

    Example: `Fit(asymptote=Estimate(0.829, 0.010, 0.812, 0.844), efficiency=Estimate(1.77, 0.06, 1.68, 1.87), ...,
    noise_sd=0.011, last_compute=4.2e12, warnings=(), ...)`
    """

    asymptote: Estimate
    """A, the ceiling if the run climbs, in the metric's unit. Forecasts of a run that has not
    fallen lie inside its interval."""

    efficiency: Estimate
    """B, the steepness in ln C; > 0, no unit."""

    midpoint: Estimate
    """C_mid, the compute at which half of the climb is complete; unit of the compute axis."""

    initial: Estimate
    """R0, the level before training, in the metric's unit."""

    noise_sd: float
    """Standard deviation of one point around the curve, in the metric's unit."""

    autocorrelation: float
    """Correlation of the noise of neighboring points, in (-1, 1)."""

    at_bound: tuple[str, ...]
    """Parameters that reached a limit of the metric or of the search."""

    posterior: Posterior
    """Draws of what the run may do, from which all numbers are."""

    last_compute: float
    """Compute of the run's last point, before any averaging; "2x" means twice this."""

    warnings: tuple[str, ...]
    """Symptoms of the curve, repairs, and limits that were reached."""

    def __repr__(self) -> str:
        curve = self.curve
        return f"Fit(A = {self.asymptote:.3f}, {len(curve)} {curve.what} to {curve.text(self.last_compute)})"

    @property
    def curve(self) -> Curve:
        """The points that were fitted, after exclusion and averaging."""
        return self.posterior.curve

    @property
    def draws(self) -> Draws:
        """Draws of the parameters if the run climbs, with equal weights, each of shape (D,)."""
        return self.posterior.law_sample

    @checked(habits=PLOT_HABITS)
    def plot(self, ax: Any = None, *, name: str = "", scale: Scale = "log", dark: bool = False) -> Any:
        """Draw points, fit, forecast and ceiling on matplotlib axes; None: new ones. Return the axes."""
        return VIEWS["plot"](self, ax, name=name, scale=scale, dark=dark)

    @property
    def identified(self) -> bool:
        """Whether the ceiling of this climb is known; if False, `asymptote` is a range and not a result."""
        return self._doubt is None

    @property
    def reason(self) -> str:
        """Reason why `identified` is True or False, as one sentence."""
        limit = IDENTIFIED_SD * float(np.ptp(self.curve.bounds))
        evidence = f"{CEILING}: its standard deviation is {self.asymptote.sd:.2g}, below {limit:.2g}"
        return self._doubt or evidence + self._with_rises

    @property
    def ceiling_name(self) -> str:
        """What A is, with what is known of it: a rise that has not begun is neither seen nor excluded."""
        return CEILING + self._with_rises if self.identified else f"{CEILING}, NOT identified yet"

    @property
    def _with_rises(self) -> str:
        """What an interval of A much wider than the ceiling of this climb explains."""
        widest = 2.0 * NINE_IN_TEN * IDENTIFIED_SD * float(np.ptp(self.curve.bounds))
        wide = self.asymptote.high - self.asymptote.low > widest
        return "; the interval includes a later rise, should one come" if wide else ""

    @cached_property
    def _doubt(self) -> str | None:
        return unidentified(self)

    @cached_property
    def residual_sum_of_squares(self) -> float:
        """Residual sum of squares around `predict(curve.compute).mean`."""
        residual_N = self.curve.metric - self.mean(self.curve.compute)
        return float(residual_N @ residual_N)

    def levels(self, compute: ArrayLike) -> Array:
        """Return the levels of the curves in the mean, drawn with equal weights, at each compute, shape (M, D)."""
        return self.posterior.mean_sample.levels(one_axis(compute))

    def mean(self, compute: ArrayLike) -> Array:
        """Return the mean of the curve at each compute, shape (M,)."""
        return self.posterior.mean(one_axis(compute))

    def probability_of_gain(self, compute: float, gain: float) -> float:
        """Return the probability that the level rises by more than a gain until a compute, from the band's draws."""
        return float(self.posterior.wide_D[self.posterior.gain(compute) > gain].sum())

    @checked(habits=dict.fromkeys(("ci", "alpha", "level", "return_std"), "nothing, because the band has 90%"))
    def predict(self, compute: ArrayLike, *, noise: bool = False, mean_of: int = 1) -> Band:
        """Return the mean and 90% band of the curve, or of noisy evaluations, at any compute.

        The band includes improbable departures from the law and climbs that have not begun, which mean and standard
        deviation do not include. It does not include a later fall (`Posterior.later_fall`).

        Args:
            compute: Amounts of compute, shape (M,), >= 0, in the unit of the curve's axis.
            noise: Whether the band is for an evaluation (wider) instead of the curve.
            mean_of: With noise: number of successive evaluations around each compute whose mean is meant.

        Raises:
            CurveError: `mean_of` is below 1.
        """
        if not mean_of >= 1:
            raise CurveError(f"mean_of must be a number of evaluations, at least 1; got {mean_of}")
        compute_M = one_axis(compute)
        starts = range(0, max(1, len(compute_M)), PREDICTED_TOGETHER)  # rows of draws do not depend on each other
        parts = [self._band(compute_M[start : start + PREDICTED_TOGETHER], noise, mean_of) for start in starts]
        return Band(*map(np.concatenate, zip(*parts, strict=True)))

    def _band(self, compute_M: Array, noise: bool, mean_of: int) -> Band:
        """Return `predict` of a few amounts of compute, whose draws are in memory together."""
        drawn, mean_M = self.posterior, self.mean(compute_M)
        levels_MD = drawn.evaluations(compute_M, mean_of) if noise else drawn.levels(compute_M)
        low_M, high_M = quantiles(levels_MD, drawn.wide_D)
        around_MD = levels_MD - weighted_mean(levels_MD, drawn.mean_D)[:, None]
        # what is likely and not in the mean may lie on one side of it
        return Band(
            compute_M, mean_M, np.minimum(low_M, mean_M), np.maximum(high_M, mean_M),
            np.sqrt(weighted_mean(around_MD**2, drawn.mean_D)),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values, without the draws."""
        names = (
            *("asymptote", "efficiency", "midpoint", "initial", "identified", "reason", "noise_sd"),
            *("autocorrelation", "residual_sum_of_squares", "warnings", "at_bound", "last_compute"),
        )
        return {
            **{name: as_json(getattr(self, name)) for name in names},
            "departures": self.posterior.departures,
            "fast_end": self.posterior.fast_end,
            "futures": self.posterior.to_dict(),
            "axis": self.curve.axis,
            "label": self.curve.label,
            "points": len(self.curve),
        }

    def __str__(self) -> str:
        curve, middle, last = self.curve, self.midpoint, self.curve.metric[-1]
        midpoint = range_text(middle.mean, middle.low, middle.high, curve.axis)
        lines = [
            f"curve     {len(curve)} {curve.what} to {curve.text(self.last_compute)}, last value {last:.3f}",
            f"  A       {self.asymptote}   {self.ceiling_name}",
            f"  B       {self.efficiency}   the steepness",
            f"  C_mid   {midpoint}   the midpoint, compute at half of the climb",
        ]
        return "\n".join([*lines, *(f"warning   {warning}" for warning in self.warnings)])


def one_axis(compute: ArrayLike) -> Array:
    """Return compute as an array of shape (M,); a number becomes one entry."""
    try:
        return np.atleast_1d(np.asarray(compute, dtype=np.float64))
    except (TypeError, ValueError):
        raise CurveError(
            f"compute must be numbers, in the unit of the curve's axis; got {compute!r:.60}. scalerl.forecast(fit, "
            "at='2x') takes multiples"
        ) from None


def fit(
    curve: Curve,
    *,
    r0: float | None = None,
    exclude_below: float = 0.0,
    prior: Prior | None = None,
) -> Fit:
    """Fit R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) to a curve.

    Args:
        curve: Curve with at least five points.
        r0: Value at which R0 is fixed; None fits it.
        exclude_below: Compute below which points are left out (the paper drops the first epoch), except the point at
            compute 0, which is R0.
        prior: Prior of the parameters; None: the defaults of `Prior`.

    Raises:
        CurveError: The curve or an argument cannot be used.
    """
    checked_curve(curve)
    r0 = None if r0 is None else checked_r0(r0, curve)
    prior = prior or Prior()
    points = usable_points(curve, exclude_below)
    window = thinned(points, MAX_POINTS)
    return solved(points, posterior(window, r0, prior, averaged_in(points, len(window))), prior)


def checked_fit(data: Any) -> Fit:
    """Return a fit after checking that it is one; `scalerl.forecast` and its like fit whatever else has the points."""
    return checked_kind(data, Fit, "fit(curve)", "scalerl.forecast")


def checked_r0(r0: float, curve: Curve) -> float:
    """Return a value for R0 after checking that the metric can rise from it."""
    low, high = curve.bounds
    if not low <= r0 < high:
        raise CurveError(f"r0 must lie in [{low:g}, {high:g}); got {r0!r}")
    return float(r0)


def solved(points: Curve, solution: Posterior, prior: Prior) -> Fit:
    """Return the fit of a curve from its posterior.

    Args:
        points: The points after exclusion.
        solution: Posterior of the same, averaged if they are many.
        prior: Its prior.
    """
    window, draws = solution.curve, solution.law_sample
    at_bound = limits_reached(draws, window, prior)
    symptoms = (*shape_symptoms(window), *departure_symptoms(solution))
    if np.ptp(window.metric) == 0:
        level = f"every metric value is {window.metric[0]:g}: there is no climb yet. Train longer, or check the metric"
        window = replace(window, notes=(*window.notes, level))
        solution = replace(solution, curve=window)
    bumps = tuple(f"{PARAMETERS[name]} reaches the limit of its allowed range" for name in at_bound)
    return Fit(
        asymptote=solution.ceiling(),
        efficiency=summarize(draws.efficiency),
        midpoint=summarize(draws.midpoint),
        initial=summarize(draws.initial),
        noise_sd=float(np.hypot(np.median(draws.noise_sd), solution.averaged.within_sd)),
        autocorrelation=float(draws.autocorrelation.mean()),
        at_bound=at_bound,
        posterior=solution,
        last_compute=points.last_compute,
        warnings=(*(str(symptom) for symptom in symptoms), *bumps, *window.notes),
    )


def limits_reached(draws: Draws, curve: Curve, prior: Prior) -> tuple[str, ...]:
    """Return the parameters whose draws pile up at a limit, so that mass would lie beyond it without the limit."""
    low, high = curve.bounds
    share_D = draws.midpoint / curve.last_compute
    # for B, the prior puts only 0.006 close to the limit, so it is enough that the 90% interval ends there
    piles = {
        "asymptote": (draws.asymptote > high - 0.005 * (high - low), 0.25),
        "efficiency": (draws.efficiency > 0.97 * prior.efficiency_range[1], TAILS[0]),
        "midpoint": ((share_D > 0.8 * prior.midpoint_reach) | (share_D < 1.25 * least_midpoint(curve)), 0.25),
    }
    return tuple(name for name, (piled_D, share) in piles.items() if piled_D.mean() > share)


def usable_points(curve: Curve, exclude_below: float) -> Curve:
    """Return the part of the curve to fit; raise an error if it has too few points."""
    window = curve.between(exclude_below)
    if len(window) < MIN_POINTS:
        left_out = f" after leaving out those below {exclude_below:.4g}" if exclude_below else ""
        repairs = f" ({'; '.join(window.notes)})" if window.notes else ""
        raise CurveError(
            f"a fit needs at least {MIN_POINTS} points; got {len(window)}{left_out}{repairs}. Evaluate more often"
        )
    return window


def unidentified(fit_result: Fit) -> str | None:
    """Return the reason why the ceiling is not identified, or None if it is."""
    curve, drawn, sd = fit_result.curve, fit_result.posterior, fit_result.asymptote.sd
    width = float(np.ptp(curve.bounds))
    if decline(curve) is not None or drawn.fallen:
        return "the curve falls at the end, which the law cannot describe"
    if sd >= IDENTIFIED_SD * width:
        return f"its standard deviation is {sd:.2g}; it counts as identified below {IDENTIFIED_SD * width:.2g}"
    if "efficiency" in fit_result.at_bound:
        return "the steepness B is at the limit of its range, and the ceiling depends on B"
    unlawful = sum(drawn.departures.get(name, 0.0) for name in ("second rise", "creep"))
    if unlawful > UNLAWFUL:
        return f"with probability {unlawful:.2f} the ceiling depends on a departure from the law"
    if drawn.stay_probability > UNLAWFUL:
        return f"with probability {drawn.stay_probability:.2f} the run stays where it is and follows no law"
    if drawn.fast_end > UNLAWFUL:
        return f"with probability {drawn.fast_end:.2f} the climb ends faster than the law, at a lower ceiling"
    levels_N = fit_result.draws.levels(curve.compute[-AGREEING_POINTS:]).mean(axis=1)
    apart = float((curve.metric[-AGREEING_POINTS:] - levels_N).mean())
    if abs(apart) > max(CONTRADICTION * local_noise(curve.metric), 0.005 * width):
        side = "above" if apart > 0 else "below"
        return f"the last {AGREEING_POINTS} points lie {abs(apart):.3f} {side} the curve, more than noise explains"
    return None
