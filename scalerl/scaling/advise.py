"""Advice on a run from its fit: continue, stop or go back, with the probability that this is right, and its price.

The forecast's mean gain decides: on public runs no other rule was better. Its probability has a second opinion, because
real runs depart from the law: the trend of the last doubling of compute, or before a climb the share of public runs
that rose later.

Axes in names: D draws, P draws picked from them as the truth, N planned evaluations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.scaling.counts import NO_CLIMB, NO_RETURN, SLOW_RISE
from scalerl.scaling.estimate import Estimate, as_json
from scalerl.scaling.fit import MIN_POINTS, UNLAWFUL, Fit
from scalerl.scaling.forecast import amount, gain_at
from scalerl.scaling.futures import has_fallen
from scalerl.scaling.health import Symptom, decline
from scalerl.scaling.price import Cost, NextGain, cost_of
from scalerl.scaling.readers import CurveError
from scalerl.scaling.trend import trend
from scalerl.scaling.units import compute_text

Action = Literal["continue", "stop", "go back"]

MIN_GAIN = 0.02
"""Smallest gain that is worth twice the compute, as a share of the metric's range: the one default of every output."""

SURE = 0.8
"""Probability from which an advice is called sure; below it, it is a best guess."""

VISIBLE_CLIMB = float(np.log((1.0 - UNLAWFUL) / UNLAWFUL))
"""Log evidence ratio above which the points show a climb: with even prior odds its probability is above 0.9."""

EQUAL_WEIGHT = 0.5
"""Weight of the second opinion before a climb, when the points say little about the future."""

PLAN_DRAWS = 64
"""Number of draws over which plans for further evaluations are averaged."""

LIKELY = 0.7
"""Smallest probability that further evaluations make an advice sure, for them to be suggested."""

SUGGESTIONS = ((1.25, 1.0), (1.25, 4.0), (1.5, 1.0), (1.5, 4.0))
"""Further evaluations that may make an advice sure, cheapest first: up to which multiple of the compute, and on how
many times the prompts. Never beyond twice the compute, which is the decision itself."""

PLANNED_POINTS = 12
"""Largest number of planned evaluations; more are represented by fewer with larger weights."""


@dataclass(frozen=True)
class Advice:
    """Whether to continue a run, how sure that is, what it gains and what it costs.

    The same object is behind `scalerl fit`, the page, `stop_when`, the callback and Python.
    """

    action: Action
    """"continue", "stop" or "go back"."""

    probability: float
    """Probability that this is right, in [0, 1]: that the gain is above `min_gain` ("continue"), that it is not
    ("stop"), or that the run never exceeds its best again ("go back")."""

    sure: bool
    """Whether the probability is at least `SURE`; otherwise the advice is a best guess."""

    gain: Estimate
    """Level at the budget minus level now, as in the forecast; for "go back" the best level so far minus the last."""

    min_gain: float
    """Smallest gain that is worth the compute, in the metric's unit."""

    budget: float
    """Compute at which the gain is judged, unit of the curve's axis."""

    cost: Cost
    """Price of the compute between now and the budget; for "go back" of the compute since the best level."""

    go_back_to: float
    """For "go back": compute of the best level so far; NaN for the other actions."""

    headline: str
    """The decision as one sentence: action, probability, gain and price."""

    reason: str
    """Why, as further sentences; may be empty."""

    remedy: str
    """What would make a best guess sure, or how to go back; may be empty."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The advice as lines of text, the decision first."""
        return tuple(line for line in (self.headline, self.reason, self.remedy) if line)

    @property
    def explanation(self) -> str:
        """The advice without its action, as text."""
        return " ".join(self.lines).partition(": ")[2]

    @property
    def sentence(self) -> str:
        """The advice as text."""
        return " ".join(self.lines)

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        return {**as_json(self), "sentence": self.sentence}


def advise(
    fit: Fit, budget: float | str = "2x", min_gain: float | None = None, *, price: float | None = None
) -> Advice:
    """Return advice on a run.

    - "go back": the run has clearly fallen, at this evaluation and at the one before it.
    - "continue": the mean gain of the forecast is above `min_gain`.
    - "stop": it is not.

    Args:
        fit: Fit of the run so far.
        budget: Compute beyond the last point at which the gain is judged, in the curve's unit or as a multiple, "2x".
        min_gain: Smallest gain that is worth the compute, in the metric's unit; > 0. None: `MIN_GAIN` of its range.
        price: Price of a device-hour; None: costs are in device-hours.

    Raises:
        CurveError: The budget is already spent, the gain is not positive, or the price cannot be used.
    """
    curve, last, total = fit.curve, fit.last_compute, amount(budget, fit)
    if total <= last:
        raise CurveError(
            f"the budget {compute_text(total, curve.axis)} is already spent (last point {curve.text(last)}); give a "
            "larger one, such as '2x'"
        )
    least = MIN_GAIN * float(np.ptp(curve.bounds)) if min_gain is None else float(min_gain)
    if not least > 0:
        raise CurveError(f"min_gain must be positive; got {min_gain!r}")
    fall = clear_fall(fit)
    if fall is not None:
        return back(fit, fall, total, least, price)
    gain = gain_at(fit, total)
    probability = probability_of_gain(fit, total, least)
    action: Action = "continue" if gain.mean > least else "stop"
    right = probability if action == "continue" else 1.0 - probability
    next_gain = NextGain(total, total / last, gain, cost_of(curve, total - last, gain.mean, price))
    words = next_gain.text() if action == "continue" else next_gain.text(below=least)
    sure = right >= SURE
    return Advice(
        action=action,
        probability=right,
        sure=sure,
        gain=gain,
        min_gain=least,
        budget=total,
        cost=next_gain.cost,
        go_back_to=math.nan,
        headline=f"{action.capitalize()} ({certainty(right)}): {words}.",
        reason=reason_for(fit, action, right, least),
        remedy="" if sure else what_makes_sure(fit, total, least),
    )


def certainty(probability: float) -> str:
    """Return how sure an advice is, as text; no future is certain."""
    percent = f"{min(probability, 0.99):.0%}"
    if probability < 0.5:  # gains are skewed: most may lie on one side of the limit and their mean on the other
        return f"close call, {percent}"
    return f"{percent} sure" if probability >= SURE else f"best guess, {percent}"


def back(fit: Fit, fall: Symptom, total: float, min_gain: float, price: float | None) -> Advice:
    """Return the advice to go back to the best level so far."""
    curve, last, best_at, height = fit.curve, fit.last_compute, fall.numbers["best_at"], fall.numbers["fall"]
    # of the means of three evaluations
    error = fall.numbers["noise"] * math.sqrt(2.0 / 3.0)
    return Advice(
        action="go back",
        probability=NO_RETURN.share,
        sure=NO_RETURN.share >= SURE,
        gain=Estimate(height, error, height - 1.645 * error, height + 1.645 * error),
        min_gain=min_gain,
        budget=total,
        cost=cost_of(curve, last - best_at, math.nan, price),
        go_back_to=best_at,
        headline=(
            f"Go back ({certainty(NO_RETURN.share)}): the run has fallen by {height:.3f} since its best, near "
            f"{curve.text(best_at)}; the {cost_of(curve, last - best_at, math.nan, price)} since then are lost."
        ),
        reason=(
            f"{NO_RETURN} public runs that fell as clearly were never above their best again (noise of an evaluation "
            f"{fall.numbers['noise']:.3f})."
        ),
        remedy="Take the checkpoint there and look for the cause before training on.",
    )


def probability_of_gain(fit: Fit, total: float, min_gain: float) -> float:
    """Return the probability that training to a compute gains more than `min_gain`.

    The forecast's probability rises toward that of a second opinion. After a climb, the weight is the share of public
    runs for which the forecast alone would have been a wrong reason to stop; before a climb, both count equally.

    Args:
        fit: Fit of the run so far.
        total: Compute beyond the last point, in the curve's unit.
        min_gain: Gain in the metric's unit.
    """
    # the curves of the mean and those of the interval, which give departures from the law more weight than is likely
    by_forecast = float(np.mean([(gain_D > min_gain).mean() for gain_D in (fit.mean_gain(total), fit.gain(total))]))
    if has_fallen(fit.curve):
        return by_forecast
    if climbed(fit):
        weight = SLOW_RISE.share
        other = trend(fit.curve).probability(min_gain, float(np.log2(total / fit.last_compute)))
    else:
        weight = EQUAL_WEIGHT
        low, high = fit.curve.bounds
        # a rise to any level up to the bound, as in the prior of A
        other = NO_CLIMB.share * max(0.0, 1.0 - min_gain / max(high - float(fit.curve.metric[-1]), 1e-9 * (high - low)))
    return by_forecast + weight * max(other - by_forecast, 0.0)


def reason_for(fit: Fit, action: Action, right: float, min_gain: float) -> str:
    """Return what a reader must know about this advice, as sentences; empty if there is nothing."""
    notes = []
    if right < 0.5:
        above = right if action == "continue" else 1.0 - right
        notes.append(
            f"The probability of a gain above {min_gain:g} is {above:.0%}, but the mean gain of the forecast decides: "
            "on public runs no rule was better."
        )
    if not climbed(fit) and not has_fallen(fit.curve):
        notes.append(f"The run shows no clear climb so far; {NO_CLIMB} such public runs rose by more than 0.01 later.")
    elif action == "stop" and not has_fallen(fit.curve):
        recent = trend(fit.curve)
        if recent.rise > min_gain:
            notes.append(
                f"The level rose by {recent.rise:.2g} ± {recent.error:.2g} over the last doubling of compute, and "
                f"{SLOW_RISE} public runs with such a forecast kept rising."
            )
    if has_fallen(fit.curve):
        notes.append(
            "The run has fallen from its best at the last evaluation; the next one shows whether it stays down."
        )
    return " ".join(notes)


def climbed(fit_result: Fit) -> bool:
    """Return whether the points show a climb, and the run probably rises; without a climb, it may still begin later.

    The prior odds alone are no evidence of a climb: with little noise they are against a run that stays.
    """
    futures = fit_result.futures
    return futures.stay_probability <= UNLAWFUL and futures.climb > VISIBLE_CLIMB


def clear_fall(fit_result: Fit) -> Symptom | None:
    """Return the fall of a run that fell by more than noise at two successive evaluations, or None."""
    curve = fit_result.curve
    if len(curve) <= MIN_POINTS:
        return None
    falls = [decline(part) if has_fallen(part) else None for part in (curve.first(len(curve) - 1), curve)]
    return falls[1] if falls[0] is not None else None


# --------------------------------------------------------------------------------------- plans of further evaluations


def what_makes_sure(fit: Fit, total: float, min_gain: float) -> str:
    """Return the cheapest further evaluations that probably make the advice sure, as text."""
    curve = fit.curve
    for factor, prompts in SUGGESTIONS:
        if factor * fit.last_compute >= total or (prompts > 1 and not binomial_share(fit)):
            continue
        if chance_to_be_sure(fit, total, min_gain, factor, prompts) >= LIKELY:
            to = f"training to {factor:g} times the compute ({curve.text(factor * fit.last_compute)})"
            count = f"{prompts * curve.prompts:,.0f}" if curve.prompts else f"{prompts:g} times the"
            with_prompts = f", with evaluations on {count} prompts" if prompts > 1 else ""
            return f"To be sure: {to}{with_prompts} is likely to settle it."
    return f"This is a close call: evaluations before {curve.text(total)} are not likely to settle it."


def binomial_share(fit: Fit) -> float:
    """Return the share of the noise's variance that more prompts reduce; 0 without standard errors."""
    if fit.curve.stderr is None:
        return 0.0
    error = float(np.nanmedian(fit.curve.stderr))
    return min(1.0, (error / max(fit.noise_sd, 1e-12)) ** 2) if error > 0 else 0.0


def chance_to_be_sure(fit: Fit, total: float, min_gain: float, factor: float, prompts: float) -> float:
    """Return the share of the possible futures in which further evaluations make the advice sure.

    Each picked draw is the truth in turn; the other draws are weighted by the likelihood of its planned evaluations.

    Args:
        fit: Fit of the run so far.
        total: Compute at which the gain is judged.
        min_gain: Gain in the metric's unit.
        factor: Multiple of the compute up to which evaluations continue at their present spacing.
        prompts: Number of prompts of each, in multiples of the present one.
    """
    possible, last = fit.futures.for_intervals, fit.last_compute
    spacing = float(np.median(np.diff(fit.curve.compute[-max(3, len(fit.curve) // 2) :])))
    count = max(1.0, (factor - 1.0) * last / spacing)
    compute_N = np.linspace(last, factor * last, min(math.ceil(count), PLANNED_POINTS) + 1)[1:]
    picked_D = np.linspace(0, len(possible.draws) - 1, 8 * PLAN_DRAWS).astype(int)
    truth_P = np.arange(4, 8 * PLAN_DRAWS, 8)
    level_ND = possible.possible_levels(compute_N)[:, picked_D]
    gains_D = possible.gain(total)[picked_D] > min_gain
    phi_D, noise_D = possible.draws.autocorrelation[picked_D], possible.draws.noise_sd[picked_D]
    less = 1.0 - binomial_share(fit) * (1.0 - 1.0 / prompts)
    # n points with autocorrelated noise have as much information as n (1 - phi) / (1 + phi) independent points
    inflation_D = (1 + phi_D) / (1 - phi_D) * less * len(compute_N) / count
    variance_D = np.maximum(noise_D**2 * inflation_D, 1e-12 * float(np.ptp(fit.curve.bounds)) ** 2)
    noise_NP = np.random.default_rng(0).standard_normal((len(compute_N), len(truth_P))) * np.sqrt(variance_D[truth_P])
    apart_NPD = (level_ND[:, truth_P] + noise_NP)[:, :, None] - level_ND[:, None, :]
    log_weight_PD = -0.5 * (apart_NPD**2).sum(axis=0) / variance_D - 0.5 * len(compute_N) * np.log(variance_D)
    # a truth must not find itself among the draws
    log_weight_PD[np.arange(len(truth_P)), truth_P] = -np.inf
    weight_PD = np.exp(log_weight_PD - log_weight_PD.max(axis=1, keepdims=True))
    probability_P = weight_PD @ gains_D / weight_PD.sum(axis=1)
    return float((np.maximum(probability_P, 1.0 - probability_P) >= SURE).mean())
