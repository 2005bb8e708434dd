"""Whether to go on with a run: continue, stop, or train to where it can be known. Knows only the draws of a fit.

Axes in names: D draws, N points of a planned curve, X planned amounts of compute.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalerl.scaling.estimate import Estimate, or_none, short, summarise
from scalerl.scaling.fit import IDENTIFIED_SD, Fit
from scalerl.scaling.forecast import amount
from scalerl.scaling.law import Array, climb, log_compute
from scalerl.scaling.readers import CurveError

SURE = 0.8
"""A probability beyond this (or below one minus it) decides, whether or not the ceiling is known."""

PLAN_DRAWS = 64
"""Draws over which a plan is averaged."""


@dataclass(frozen=True)
class Advice:
    """What to do with a run, and why."""

    action: str
    """"continue", "stop" or "not identified yet"."""

    probability: float
    """That the budget brings more than ``min_gain``, in [0, 1]."""

    budget: float
    """Compute up to which the gain counts, unit of the curve's axis."""

    min_gain: float
    """The gain that makes going on worth it, in the metric's unit."""

    gain: Estimate
    """Level at the budget minus level now."""

    train_to: float
    """For "not identified yet": train at least to this compute, then ask again; infinite when that is out of sight.

    Not a number for the other actions.
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

    The probability of a gain above ``min_gain`` decides where it is sure (above 0.8 or below 0.2), or where the ceiling
    is known (then 0.5 is the line). Otherwise the advice is to train on until the ceiling should be known.

    Args:
        fit: by a method that gives uncertainty.
        budget: compute to judge, in the curve's unit or as "2x" of the last point; beyond the last point.
        min_gain: least gain worth having, in the metric's unit; > 0.

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
        raise CurveError(f"a {fit.method} fit carries no uncertainty to decide with; use method='posterior'")
    gain_D = fit.levels(total)[0] - fit.levels(last)[0]
    probability = float((gain_D > min_gain).mean())
    decided = fit.identified or not 1 - SURE < probability < SURE
    action = ("continue" if probability > 0.5 else "stop") if decided else "not identified yet"
    train_to = float("nan") if decided else compute_to_identify(fit)
    gain = summarise(gain_D)
    sentence = SENTENCES[action].format(
        p=f"{probability:.2f}", g=f"{min_gain:g}", b=short(total), unit=fit.curve.unit, gain=gain,
        x=short(train_to) if np.isfinite(train_to) else f"more than {short(30 * last)}",
    )  # fmt: skip
    if not fit.identified and action != "not identified yet":
        sentence += f" The ceiling itself is not known: {fit.reason}."
    return Advice(action, probability, total, float(min_gain), gain, train_to, sentence)


SENTENCES = {
    "continue": "Continue: training to {b} {unit} gains more than {g} with probability {p} (gain {gain}).",
    "stop": "Stop: training to {b} {unit} gains more than {g} with probability only {p} (gain {gain}).",
    "not identified yet": (
        "Not identified yet: train at least to {x} {unit} and ask again; as it stands, training to {b} gains more "
        "than {g} with probability {p} (gain {gain})."
    ),
}
"""One plain sentence for each action."""


def compute_to_identify(fit: Fit) -> float:
    """The least compute at which the ceiling's standard deviation should fall below the limit, or infinity.

    For each draw the Fisher information of a curve that goes on with evaluations at the present spacing; the standard
    deviations are averaged over the draws. In simulation nine runs in ten are identified when they get there.
    """
    curve = fit.curve
    limit = IDENTIFIED_SD * (curve.bounds[1] - curve.bounds[0])
    last, spacing = curve.last_compute, curve.last_compute / max(len(curve) - 1, 1)
    picked = np.linspace(0, len(fit.draws.asymptote) - 1, PLAN_DRAWS).astype(int)
    for factor in 1.25 ** np.arange(1, 16):
        planned = last * factor
        count = int(np.ceil((planned - last) / spacing))
        extra = np.linspace(last, planned, min(count, 400) + 1)[1:]
        # many future points are stood for by fewer, each counting for several
        weight_N = np.concatenate([np.ones(len(curve)), np.full(len(extra), count / len(extra))])
        compute_N = np.concatenate([curve.compute, extra])
        sd = np.mean([planned_sd(fit, int(d), compute_N, weight_N) for d in picked])
        if sd < limit:
            return float(planned)
    return float("inf")


def planned_sd(fit: Fit, d: int, compute_N: Array, weight_N: Array) -> float:
    """Standard deviation of A that a curve of given points would leave, if the d-th draw were the truth."""
    draws = fit.draws
    log_c_N = log_compute(compute_N)
    efficiency, rise = draws.efficiency[d], draws.asymptote[d] - draws.initial[d]
    u_N = climb(log_c_N, np.log(draws.midpoint[d]), efficiency)
    steep_N = rise * efficiency * u_N * (1 - u_N)
    distance_N = np.where(np.isfinite(log_c_N), log_c_N - np.log(draws.midpoint[d]), 0.0)
    slopes_NP = np.stack([u_N, -steep_N, steep_N * distance_N, 1 - u_N], axis=1)
    information_PP = slopes_NP.T @ (weight_N[:, None] * slopes_NP)
    phi = draws.autocorrelation[d]
    # autocorrelated noise is worth (1 - phi) / (1 + phi) as many independent points
    inflation = (1 + phi) / (1 - phi)
    variance = np.linalg.pinv(information_PP, hermitian=True)[0, 0] * inflation * draws.noise_sd[d] ** 2
    # nothing is less known than the whole range
    return float(min(np.sqrt(max(variance, 0.0)), fit.curve.bounds[1] - fit.curve.bounds[0]))
