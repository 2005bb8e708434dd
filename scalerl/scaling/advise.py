"""Advice on a run from its fit: continue, stop, or train further until the ceiling is identified.

Axes in names: D draws, N points of a planned curve, X planned amounts of compute.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalerl.scaling.estimate import Estimate, or_none, short, summarise
from scalerl.scaling.fit import IDENTIFIED_SD, Fit
from scalerl.scaling.forecast import amount
from scalerl.scaling.health import ENOUGH_POINTS
from scalerl.scaling.law import Array, climb, log_compute
from scalerl.scaling.readers import CurveError

SURE = 0.8
"""A probability above this decides to continue, even if the ceiling is not identified."""

SURELY_NOT = 0.1
"""A probability below this decides to stop, even if the ceiling is not identified; stopping cannot be corrected."""

PLAN_DRAWS = 64
"""Number of draws over which ``compute_to_identify`` averages."""


@dataclass(frozen=True)
class Advice:
    """Whether to continue a run, and why."""

    action: str
    """"continue", "stop" or "not identified yet"."""

    probability: float
    """Probability that training to the budget gains more than ``min_gain``, in [0, 1]."""

    budget: float
    """Compute at which the gain is judged, unit of the curve's axis."""

    min_gain: float
    """The least gain worth continuing for, in the metric's unit."""

    gain: Estimate
    """Level at the budget minus level now."""

    train_to: float
    """For "not identified yet": train at least to this compute, then ask again; NaN for the other actions.

    Infinite if it is more than 28 times the last compute.
    """

    sentence: str
    """The advice in plain words."""

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """A dict of JSON values."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("gain", "train_to")}
        return {**plain, "gain": self.gain.to_dict(), "train_to": or_none(self.train_to)}


def advise(fit: Fit, budget: float | str, min_gain: float) -> Advice:
    """Continue, stop, or "not identified yet: train at least to X".

    The probability of a gain above ``min_gain`` decides if it is above 0.8, or below 0.1 with at least ten points. If
    the ceiling is identified, the limit is 0.5. Otherwise the advice is to train further until it should be identified.

    Args:
        fit: by a method that gives an uncertainty.
        budget: compute at which to judge the gain, beyond the last point, in the curve's unit or as "2x" of that point.
        min_gain: least gain worth continuing for, in the metric's unit; > 0.

    Raises:
        CurveError: a budget already spent, a gain that is not positive, or a fit without uncertainty.
    """
    total, last = amount(budget, fit), fit.last_compute
    if total <= last:
        raise CurveError(
            f"the budget {short(total)} is already spent (last point {short(last)}); give a larger one, such as '2x'"
        )
    if not min_gain > 0:
        raise CurveError(f"min_gain must be positive; got {min_gain!r}")
    if len(fit.draws.asymptote) == 1:
        raise CurveError(f"a {fit.method} fit has no uncertainty to decide with; use method='posterior'")
    gain_D = fit.gain(total)
    probability = float((gain_D > min_gain).mean())
    decided = fit.identified or probability > SURE or (probability < SURELY_NOT and len(fit.curve) >= ENOUGH_POINTS)
    action = ("continue" if probability > 0.5 else "stop") if decided else "not identified yet"
    train_to = float("nan") if decided else compute_to_identify(fit)
    gain = summarise(gain_D)
    sentence = SENTENCES[action].format(
        p=f"{probability:.2f}", g=f"{min_gain:g}", b=short(total), unit=fit.curve.unit, gain=gain,
        x=short(train_to) if np.isfinite(train_to) else f"more than {short(30 * last)}",
    )  # fmt: skip
    if not fit.identified and action != "not identified yet":
        sentence += f" The ceiling is not identified: {fit.reason}."
    if fit.futures is not None and fit.futures.fallen:
        sentence += " The run has fallen from its best: look for the cause before training on."
    return Advice(action, probability, total, float(min_gain), gain, train_to, sentence)


SENTENCES = {
    "continue": "Continue: training to {b} {unit} gains more than {g} with probability {p} (gain {gain}).",
    "stop": "Stop: training to {b} {unit} gains more than {g} only with probability {p} (gain {gain}).",
    "not identified yet": (
        "Not identified yet: train at least to {x} {unit} and ask again. From these points, training to {b} gains more "
        "than {g} with probability {p} (gain {gain})."
    ),
}
"""The sentence for each action."""


def compute_to_identify(fit: Fit) -> float:
    """The least compute at which the ceiling should be identified, or infinity.

    It computes the standard deviation of the ceiling from the Fisher information of the curve with further evaluations
    at the present spacing, and averages over the draws. In simulation nine runs in ten are identified at that compute.
    """
    curve = fit.curve
    limit = IDENTIFIED_SD * (curve.bounds[1] - curve.bounds[0])
    last, spacing = curve.last_compute, curve.last_compute / max(len(curve) - 1, 1)
    picked = np.linspace(0, len(fit.draws.asymptote) - 1, PLAN_DRAWS).astype(int)
    for factor in 1.25 ** np.arange(1, 16):
        planned = last * factor
        count = int(np.ceil((planned - last) / spacing))
        extra = np.linspace(last, planned, min(count, 400) + 1)[1:]
        # many future points are represented by fewer points with larger weights
        weight_N = np.concatenate([np.ones(len(curve)), np.full(len(extra), count / len(extra))])
        compute_N = np.concatenate([curve.compute, extra])
        sd = np.mean([planned_sd(fit, int(d), compute_N, weight_N) for d in picked])
        if sd < limit:
            return float(planned)
    return float("inf")


def planned_sd(fit: Fit, d: int, compute_N: Array, weight_N: Array) -> float:
    """Standard deviation of A from a curve with the given points, if the d-th draw were true."""
    draws = fit.draws
    log_c_N = log_compute(compute_N)
    efficiency, rise = draws.efficiency[d], draws.asymptote[d] - draws.initial[d]
    u_N = climb(log_c_N, np.log(draws.midpoint[d]), efficiency)
    steep_N = rise * efficiency * u_N * (1 - u_N)
    distance_N = np.where(np.isfinite(log_c_N), log_c_N - np.log(draws.midpoint[d]), 0.0)
    slopes_NP = np.stack([u_N, -steep_N, steep_N * distance_N, 1 - u_N], axis=1)
    information_PP = slopes_NP.T @ (weight_N[:, None] * slopes_NP)
    phi = draws.autocorrelation[d]
    # n points with autocorrelated noise hold as much information as n (1 - phi) / (1 + phi) independent points
    inflation = (1 + phi) / (1 - phi)
    variance = np.linalg.pinv(information_PP, hermitian=True)[0, 0] * inflation * draws.noise_sd[d] ** 2
    # never wider than the whole range
    return float(min(np.sqrt(max(variance, 0.0)), fit.curve.bounds[1] - fit.curve.bounds[0]))
