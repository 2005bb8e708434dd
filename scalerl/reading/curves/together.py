"""Fits related runs together: runs that should end alike, such as seeds of one recipe, shrink toward what they share.

    theta_i ~ N(mu, diag(tau^2)),    theta = (logit A, ln C_mid, ln B) of run i

Each run keeps the law, the noise and the departures of its own fit. Its draws are weighted by the density of theta_i
under the runs together, divided by the prior of a single fit (Hogg, Myers and Bovy 2010, arXiv 1008.4146). mu and tau
are drawn by affine-invariant walkers (Goodman and Weare 2010) from

    p(mu, tau) prod_i mean_d N(theta_id | mu, tau^2) / prior(theta_id),    d the draws of run i alone

so tau, the scatter between the runs, is learned: runs that differ clearly shrink little. R0 is not shared, because the
first evaluation tells it.

Axes in names: S runs, D draws, H draws of mu and tau, K parameters, W walkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from scalerl.reading.curves.comparison import check_alike
from scalerl.reading.curves.curve import Curve, checked_curve, thinned
from scalerl.reading.curves.estimate import TAILS, Estimate, as_json, summarize
from scalerl.reading.curves.families import DEPARTURES, FAST_END, LAW
from scalerl.reading.curves.fit import MAX_POINTS, Fit, solved, usable_points
from scalerl.reading.curves.law import Array, Draws
from scalerl.reading.curves.noise import averaged_in
from scalerl.reading.curves.notebook import Guided
from scalerl.reading.curves.pool import CENTER_SD, EDGE, logit
from scalerl.reading.curves.posterior import Posterior, posterior
from scalerl.reading.curves.sampling import Prior
from scalerl.reading.curves.units import range_text
from scalerl.reading.tables.errors import CurveError

DRAWS_OF_FIT = 8000
"""Draws of each single fit: a run that says little alone keeps only the few that agree with the others."""

LIKELIHOOD_DRAWS = 500
"""Draws that represent the likelihood of a run while mu and tau are drawn."""

MIDDLE_SCATTER = np.array([0.3, 0.5, 0.15])
"""Prior median of tau. Seeds scatter less and models of several sizes more: two or three runs must tell which."""

SCATTER_SPREAD = 1.0
"""Prior standard deviation of ln tau.

With the narrower prior of `frontier` (0.1, 0.2, 0.15, spread 0.8), which a finished grid can afford, seeds shrink no
more, but the intervals of models whose ceilings scatter by 0.8 in the logit contain 83% of them instead of 91%."""

SMOOTHING = 0.15
"""Width of the kernel around each draw, in standard deviations of the draws: a few draws alone would make tau small."""

WALKERS, WARM_UP_MOVES, SAMPLED_MOVES, KEPT_EVERY = 48, 150, 150, 15
"""Walkers, moves that are left out and kept of each, and moves between those that are used."""

MOST_SEED_SCATTER = 0.2
"""Scatter of logit A above which runs are probably no seeds: a standard deviation of 0.05 of A in the middle.

In `benchmarks/together.py` seeds are at 0.1 to 0.16, runs that share nothing at 0.3 to 1.4, and such runs are forecast
better alone."""

SHARED = ("asymptote", "midpoint", "efficiency")
"""Parameters that related runs share, in the order of theta."""


class Alone(NamedTuple):
    """One run before it is fitted with the others."""

    points: Curve
    """All points after exclusion."""
    solution: Posterior
    """Posterior of the run alone; its curve has the points that are fitted."""


@dataclass(frozen=True, eq=False)
class Together(Guided):
    """Fits of related runs, each shrunk toward the others, and what they share."""

    fits: tuple[Fit, ...]
    """The runs in the order given; forecasts and advice use them like single fits."""

    asymptote: Estimate
    """A of the middle of such runs, in the metric's unit."""

    midpoint: Estimate
    """C_mid of the middle of such runs, unit of the compute axis."""

    efficiency: Estimate
    """B of the middle of such runs."""

    scatter: dict[str, Estimate]
    """Standard deviation between the runs of logit A, ln C_mid and ln B, by parameter."""

    @property
    def alike(self) -> bool:
        """Whether the runs agree as seeds do; if not, read each of them alone."""
        return self.scatter["asymptote"].mean <= MOST_SEED_SCATTER

    def __str__(self) -> str:
        axis = self.fits[0].curve.axis
        middle = range_text(self.midpoint.mean, self.midpoint.low, self.midpoint.high, axis)
        scatter = {name: f"scatter between runs {tau.mean:.2f} ({tau.low:.2f} to {tau.high:.2f})" for name, tau
                   in self.scatter.items()}  # fmt: skip
        return "\n".join([
            f"shared by {len(self.fits)} runs, toward which each of them shrinks:",
            f"  A       {self.asymptote}   {scatter['asymptote']} in logit A",
            f"  B       {self.efficiency}   {scatter['efficiency']} in ln B",
            f"  C_mid   {middle}   {scatter['midpoint']} in ln C_mid",
            *([] if self.alike else [UNLIKE]),
        ])  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return what the runs share as a dict of JSON values, without the fits."""
        return {**{name: as_json(value) for name, value in vars(self).items() if name != "fits"}, "alike": self.alike}


UNLIKE = "warning   the ceilings of these runs differ more than those of seeds: read each run alone, without --together"


def fit_together(runs: Sequence[Curve], *, exclude_below: float = 0.0) -> Together:
    """Fit related runs, which should end alike: seeds of one recipe, or runs that differ in little else.

    Args:
        runs: At least two curves, with one metric and one compute axis.
        exclude_below: As for `fit`.

    Raises:
        CurveError: There are fewer than two runs, a run cannot be fitted, or the runs differ in metric or axis.
    """
    curves = [checked_curve(run) for run in runs]
    if len(curves) < 2:
        raise CurveError(f"a fit of runs together needs at least two of them; got {len(curves)}")
    check_alike(curves)
    alone = [run_alone(curve, exclude_below, f"run {number}") for number, curve in enumerate(curves, 1)]
    mean_HK, scatter_HK = shared(alone)
    fits = tuple(solved(run.points, shrunk(run.solution, mean_HK, scatter_HK), Prior()) for run in alone)
    low, high = curves[0].bounds
    middle_HK = np.stack([low + (high - low) / (1 + np.exp(-mean_HK[:, 0])), *np.exp(mean_HK[:, 1:]).T], axis=1)
    estimates = dict(zip(SHARED, map(central, middle_HK.T), strict=True))
    scatter = dict(zip(SHARED, map(central, scatter_HK.T), strict=True))
    return Together(fits, scatter=scatter, **estimates)


def run_alone(curve: Curve, exclude_below: float, name: str) -> Alone:
    """Return one run with the posterior that it has alone; an error has its name."""
    try:
        points = usable_points(curve, exclude_below)
    except CurveError as error:
        raise CurveError(f"{name}: {error}") from error
    window = thinned(points, MAX_POINTS)
    return Alone(points, posterior(window, averaged=averaged_in(points, len(window)), num_draws=DRAWS_OF_FIT))


def central(draws_H: Array) -> Estimate:
    """Return the median of draws as the mean of an estimate: a few runs leave long tails."""
    low, high = np.quantile(draws_H, TAILS)
    return Estimate(float(np.median(draws_H)), summarize(draws_H).sd, float(low), float(high))


def parameters(draws: Draws, curve: Curve) -> Array:
    """Return theta of each draw, shape (D, K)."""
    low, high = curve.bounds
    share_D = np.clip((draws.asymptote - low) / (high - low), EDGE, 1 - EDGE)
    return np.stack([logit(share_D), np.log(draws.midpoint), np.log(draws.efficiency)], axis=1)


def log_single_prior(theta_DK: Array, last: float) -> Array:
    """Return the log density of theta in a single fit, up to a constant, shape (D,); A is uniform there."""
    prior, share_D = Prior(), 1 / (1 + np.exp(-theta_DK[:, 0]))
    spread_D = (theta_DK[:, 2] - np.log(prior.efficiency)) / prior.efficiency_spread
    return np.asarray(
        np.log(share_D * (1 - share_D)) - np.maximum(theta_DK[:, 1] - np.log(last), 0.0) - 0.5 * spread_D**2
    )


def shared(alone: Sequence[Alone]) -> tuple[Array, Array]:
    """Return draws of mu and tau given all runs, each of shape (H, K)."""
    theta_SDK, weight_SD, kernel_SK = [], [], []
    for run in alone:
        draws, curve = run.solution.law_sample.evenly(LIKELIHOOD_DRAWS), run.solution.curve
        theta_DK = parameters(draws, curve)
        log_weight_D = -log_single_prior(theta_DK, curve.last_compute)
        weight_D = np.exp(log_weight_D - log_weight_D.max())
        # without large weights, which would make the result depend on a few draws (Ionides 2008)
        weight_D = np.minimum(weight_D, weight_D.mean() * np.sqrt(len(weight_D)))
        theta_SDK.append(theta_DK)
        weight_SD.append(weight_D / weight_D.sum())
        kernel_SK.append(SMOOTHING * theta_DK.std(axis=0) + 1e-6)
    points_SDK, weights_SD, variance_SK = np.stack(theta_SDK), np.stack(weight_SD), np.stack(kernel_SK) ** 2
    center_K = np.array([0.0, float(np.mean([np.log(run.solution.last) for run in alone])), np.log(1.7)])

    def log_density(state_WX: Array) -> Array:
        mean_WK, log_tau_WK = state_WX[:, :3], state_WX[:, 3:]
        total_WSK = np.exp(2 * log_tau_WK)[:, None] + variance_SK
        apart_WSDK = points_SDK - mean_WK[:, None, None]
        exponent_WSD = -0.5 * np.einsum("wsdk,wsk->wsd", apart_WSDK**2, 1 / total_WSK)
        most_WS = exponent_WSD.max(axis=2)
        density_WS = (np.exp(exponent_WSD - most_WS[..., None]) * weights_SD).sum(axis=2)
        log_runs_WS = np.log(density_WS + 1e-300) + most_WS - 0.5 * np.log(total_WSK).sum(axis=2)
        prior_W = -0.5 * (((mean_WK - center_K) / CENTER_SD[:3]) ** 2).sum(axis=1)
        prior_W -= 0.5 * (((log_tau_WK - np.log(MIDDLE_SCATTER)) / SCATTER_SPREAD) ** 2).sum(axis=1)
        return np.asarray(log_runs_WS.sum(axis=1) + prior_W)

    rng = np.random.default_rng(4)
    pick_W = rng.integers(LIKELIHOOD_DRAWS, size=WALKERS)
    means_WK = np.stack([points_SDK[:, pick].mean(axis=0) for pick in pick_W])
    start_WX = np.hstack([means_WK, np.log(MIDDLE_SCATTER) + 0.8 * rng.standard_normal((WALKERS, 3))])
    state_HX = walk(log_density, start_WX, rng)
    return state_HX[:, :3], np.exp(state_HX[:, 3:])


def walk(log_density: Any, state_WX: Array, rng: np.random.Generator) -> Array:
    """Return draws from a density by the stretch move of Goodman and Weare (2010), half of the walkers at a time."""
    half, size, states = len(state_WX) // 2, state_WX.shape[1], []
    log_p_W = log_density(state_WX)
    for move in range(WARM_UP_MOVES + SAMPLED_MOVES):
        for mine, others in ((slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))):
            partner_WX = state_WX[others][rng.integers(half, size=half)]
            stretch_W = (1.0 + rng.random(half)) ** 2 / 2.0  # density 1/sqrt(z) on [1/2, 2]
            moved_WX = partner_WX + stretch_W[:, None] * (state_WX[mine] - partner_WX)
            moved_p_W = log_density(moved_WX)
            accepted_W = np.log(rng.random(half)) < (size - 1) * np.log(stretch_W) + moved_p_W - log_p_W[mine]
            state_WX[mine] = np.where(accepted_W[:, None], moved_WX, state_WX[mine])
            log_p_W[mine] = np.where(accepted_W, moved_p_W, log_p_W[mine])
        if move >= WARM_UP_MOVES and move % KEPT_EVERY == 0:
            states.append(state_WX.copy())
    return np.concatenate(states)


def shrunk(alone: Posterior, mean_HK: Array, scatter_HK: Array) -> Posterior:
    """Return the posterior of a run conditional on all runs: its draws with other weights.

    The probability that it stays where it is, and that of a climb that has not begun, remain as they are.
    """
    shared_D = np.any([alone.of(family.name) for family in (LAW, *DEPARTURES, FAST_END)], axis=0)
    theta_DK = parameters(alone.draws.select(shared_D), alone.curve)
    log_prior_D = log_single_prior(theta_DK, alone.last)

    def given_all(weight_D: Array) -> Array:
        """Return weights of all draws, in which those of the curves that runs share are given all runs."""
        own_D = weight_D[shared_D]
        mean_K = np.average(theta_DK, axis=0, weights=own_D)
        variance_HK = scatter_HK**2 + SMOOTHING**2 * np.average((theta_DK - mean_K) ** 2, axis=0, weights=own_D)
        apart_HDK = theta_DK - mean_HK[:, None]
        log_HD = -0.5 * np.einsum("hdk,hk->hd", apart_HDK**2, 1 / variance_HK) - log_prior_D
        of_each_HD = own_D * np.exp(log_HD - log_HD.max(axis=1, keepdims=True))
        result_D = weight_D.copy()
        result_D[shared_D] = own_D.sum() * (of_each_HD / of_each_HD.sum(axis=1, keepdims=True)).mean(axis=0)
        return result_D

    return replace(alone, mean_D=given_all(alone.mean_D), wide_D=given_all(alone.wide_D))
