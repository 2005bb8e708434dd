"""Fits a curve by one of three methods, and judges whether its ceiling is identified.

Axes in names: N points, D draws, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from scalerl.scaling.curve import Curve, thinned
from scalerl.scaling.estimate import TAILS, summarize
from scalerl.scaling.forecast import Fit, FitResult
from scalerl.scaling.futures import futures
from scalerl.scaling.health import departure_symptoms, shape_symptoms
from scalerl.scaling.least_squares import PaperGrid, Search, least_squares_result, paper_result
from scalerl.scaling.noise import local_noise
from scalerl.scaling.posterior import Prior, least_midpoint, posterior
from scalerl.scaling.readers import CurveError

MIN_POINTS = 5
"""Smallest number of points: one more than the parameters of the law."""

MAX_POINTS = 400
"""Largest number of points; longer curves are averaged in groups."""

IDENTIFIED_SD = 0.02
"""The ceiling is identified if its standard deviation is below this share of the metric's range.

In simulation 96% of the identified ceilings are within this distance of the truth.
"""

DOUBTFUL = 0.1
"""The ceiling is not identified if something other than the law has a probability above this."""

LAST_POINTS = 3

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


Settings = Prior | Search | PaperGrid


class Method(NamedTuple):
    """A fitting method, and the class of its settings."""

    solve: Callable[[Curve, float | None, Any], FitResult]
    settings: type[Prior] | type[Search] | type[PaperGrid]


def posterior_result(curve: Curve, r0: float | None, prior: Prior) -> FitResult:
    """Return the posterior as a `FitResult`."""
    solution = posterior(curve, r0, prior)
    draws = solution.draws
    low, high = curve.bounds
    share_D = draws.midpoint / curve.last_compute
    # if this share of the mass is close to a limit, mass would lie beyond it without the limit; for B, the prior puts
    # only 0.006 there, so it is enough that the 90% interval ends there
    piles = {
        "asymptote": (draws.asymptote > high - 0.005 * (high - low), 0.25),
        "efficiency": (draws.efficiency > 0.97 * prior.efficiency_range[1], TAILS[0]),
        "midpoint": ((share_D > 0.8 * prior.midpoint_reach) | (share_D < 1.25 * least_midpoint(curve)), 0.25),
    }
    parameters_PD = np.stack([draws.asymptote, np.log(draws.midpoint), np.log(draws.efficiency), draws.initial])
    return FitResult(
        asymptote=summarize(draws.asymptote),
        efficiency=summarize(draws.efficiency),
        midpoint=summarize(draws.midpoint),
        initial=summarize(draws.initial),
        covariance=np.cov(parameters_PD),
        draws=draws,
        at_bound=tuple(name for name, (piled_D, share) in piles.items() if piled_D.mean() > share),
        noise_sd=float(np.median(draws.noise_sd)),
        autocorrelation=float(draws.autocorrelation.mean()),
        departures=solution.probability,
        futures=futures(curve, curve.last_compute, solution),
    )


METHODS: dict[str, Method] = {
    "posterior": Method(posterior_result, Prior),
    "least-squares": Method(least_squares_result, Search),
    "paper": Method(paper_result, PaperGrid),
}
"""posterior: for decisions. least-squares: to compare with other software. paper: to reproduce the paper's numbers."""


def fit(
    curve: Curve,
    method: str = "posterior",
    r0: float | str = "free",
    exclude_below: float = 0.0,
    settings: Settings | None = None,
) -> Fit:
    """Fit R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) to a curve.

    Args:
        curve: Curve with at least five points; least squares and the paper's procedure need two different levels.
        method: "posterior", "least-squares" or "paper".
        r0: "free" to fit the initial level, or its value. The paper's procedure always fixes R0; with "free" it uses
            the first point.
        exclude_below: Compute below which points are left out (the paper drops the first epoch), except the point at
            compute 0, which is R0.
        settings: The `Prior`, `Search` or `PaperGrid` of the method; None: the defaults.

    Raises:
        CurveError: The curve or an argument cannot be used.
    """
    if not isinstance(curve, Curve):
        raise CurveError(f"fit needs a Curve; got a {type(curve).__name__}. Make one with Curve() or Curve.read(PATH)")
    if method not in METHODS:
        raise CurveError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    chosen = METHODS[method]
    settings = chosen.settings() if settings is None else settings
    if not isinstance(settings, chosen.settings):
        raise CurveError(f"method {method!r} takes a {chosen.settings.__name__}; got a {type(settings).__name__}")
    initial = checked_initial(r0, curve)
    whole = usable(curve, exclude_below)
    window = thinned(whole, MAX_POINTS)
    if np.ptp(window.metric) == 0 and method != "posterior":
        raise CurveError(
            f"every metric value is {window.metric[0]:g}: there is no climb to fit by {method!r}. Use "
            "method='posterior', train longer, or check the metric"
        )
    result = chosen.solve(window, initial, settings)
    symptoms = (*shape_symptoms(window), *departure_symptoms(window, result.draws, result.departures))
    identified, reason = verdict(result, window, {symptom.name for symptom in symptoms})
    if np.ptp(window.metric) == 0:
        level = f"every metric value is {window.metric[0]:g}: there is no climb yet. Train longer, or check the metric"
        window = replace(window, notes=(*window.notes, level))
    bumps = tuple(f"{PARAMETERS[name]} reaches the limit of its allowed range" for name in result.at_bound)
    return Fit(
        curve=window, last_compute=whole.last_compute, method=method, identified=identified, reason=reason,
        **vars(result),
        warnings=(*(str(symptom) for symptom in symptoms), *bumps, *window.notes),
    )  # fmt: skip


def checked_initial(r0: float | str, curve: Curve) -> float | None:
    """Return the value at which R0 is fixed, or None to fit it."""
    if r0 == "free":
        return None
    if isinstance(r0, str):
        raise CurveError(f"r0 must be 'free' or a number; got {r0!r}")
    if not curve.bounds[0] <= float(r0) < curve.bounds[1]:
        raise CurveError(f"r0 must lie in [{curve.bounds[0]:g}, {curve.bounds[1]:g}); got {r0!r}")
    return float(r0)


def usable(curve: Curve, exclude_below: float) -> Curve:
    """Return the part of the curve to fit; raise an error if it has too few points."""
    window = curve.between(exclude_below)
    if len(window) < MIN_POINTS:
        left_out = f" after leaving out those below {exclude_below:.4g}" if exclude_below else ""
        raise CurveError(f"a fit needs at least {MIN_POINTS} points; got {len(window)}{left_out}. Evaluate more often")
    return window


def verdict(result: FitResult, curve: Curve, symptoms: set[str]) -> tuple[bool, str]:
    """Return whether the ceiling is identified, and the reason."""
    low, high = curve.bounds
    limit = IDENTIFIED_SD * (high - low)
    sd = result.asymptote.sd
    if not np.isfinite(sd):
        return False, "this fit has no uncertainty; use method='posterior' to get one"
    if "decline" in symptoms or (result.futures is not None and result.futures.fallen):
        return False, "the curve falls at the end, which the law cannot describe"
    if sd >= limit:
        return False, f"its standard deviation is {sd:.2g}; it counts as identified below {limit:.2g}"
    if "efficiency" in result.at_bound:
        return False, "the steepness B is at the limit of its range, and the ceiling depends on B"
    unlawful = sum(result.departures.get(name, 0.0) for name in ("second rise", "creep"))
    if unlawful > DOUBTFUL:
        return False, f"with probability {unlawful:.2f} the ceiling depends on a departure from the law"
    if result.futures is not None and result.futures.stays > DOUBTFUL:
        return False, f"with probability {result.futures.stays:.2f} the run stays where it is and follows no law"
    last_N = np.arange(len(curve))[-LAST_POINTS:]
    levels_N = result.draws.levels(curve.compute[last_N], high).mean(axis=1)
    apart = float((curve.metric[last_N] - levels_N).mean())
    if abs(apart) > max(CONTRADICTION * local_noise(curve.metric), 0.005 * (high - low)):
        side = "above" if apart > 0 else "below"
        return False, f"the last {LAST_POINTS} points lie {abs(apart):.3f} {side} the curve, more than noise explains"
    return True, f"its standard deviation is {sd:.2g}, below {limit:.2g}"
