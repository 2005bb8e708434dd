"""Advice on a run from its fit: continue, stop, go back to the best checkpoint, or ask again later.

Axes in names: D draws, P draws picked from them, N points of a planned curve, K parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scalerl.scaling.counts import NO_RETURN
from scalerl.scaling.estimate import Estimate, as_json, short, summarize
from scalerl.scaling.fit import IDENTIFIED_SD, Fit
from scalerl.scaling.forecast import amount
from scalerl.scaling.futures import has_fallen
from scalerl.scaling.law import Array, derivatives, log_compute
from scalerl.scaling.readers import CurveError
from scalerl.scaling.stop import Chance, chance_of_gain, clear_fall, climbed, doubt

CONTINUE_ABOVE = 0.8
"""Probability of a gain above which the advice is to continue, even if the ceiling is not identified."""

STOP_BELOW = 0.2
"""Largest value of both probabilities of a gain for the advice to stop."""

PLAN_DRAWS = 64
"""Number of draws over which `compute_to_identify` averages."""


@dataclass(frozen=True)
class Advice:
    """Whether to continue a run, and why."""

    action: str
    """"continue", "stop", "go back" or "not known yet"."""

    probability: float
    """Probability, by the forecast, that training to the budget gains more than `min_gain`, in [0, 1]."""

    trend_probability: float
    """This probability if the rise continues as over the last doubling of compute; both must be small to stop."""

    budget: float
    """Compute at which the gain is judged, unit of the curve's axis."""

    min_gain: float
    """Smallest gain that justifies more training, in the metric's unit."""

    gain: Estimate
    """Level at the budget minus level now."""

    train_to: float
    """For "not known yet": compute to which to train before the next call; NaN for the other actions.

    Infinite if it is more than 28 times the last compute.
    """

    go_back_to: float
    """For "go back": compute of the best level so far; NaN for the other actions."""

    reason: str
    """Why, as text."""

    remedy: str = ""
    """For "go back": what to do, as text."""

    @property
    def explanation(self) -> str:
        """The advice without its action, as text."""
        return f"{self.reason} {self.remedy}".rstrip()

    @property
    def sentence(self) -> str:
        """The advice as a sentence."""
        return f"{self.action.capitalize()}: {self.explanation}"

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        return {**as_json(self), "sentence": self.sentence}


class Decision(NamedTuple):
    """The decision on a run, from which an `Advice` is made."""

    action: str
    reason: str
    train_to: float = float("nan")
    go_back_to: float = float("nan")
    remedy: str = ""


def advise(fit: Fit, budget: float | str, min_gain: float) -> Advice:
    """Return advice on a run: continue, stop, go back, or "not known yet: train at least to X".

    - "go back": the run has clearly fallen, at this evaluation and at the one before it.
    - "continue": the forecast gives a gain above `min_gain` a probability above 0.8, or above 0.5 if the ceiling is
      identified.
    - "stop": the run has climbed and has ten points or more, and the probability of the gain is at most 0.2 both by the
      forecast and by the trend of the last doubling of compute. All of this also held one evaluation earlier.
    - "not known yet": none of the above; the sentence gives the reason.

    Args:
        fit: Fit of the run so far.
        budget: Compute beyond the last point at which the gain is judged, in the curve's unit or as a multiple, "2x".
        min_gain: Smallest gain that justifies more training, in the metric's unit; > 0.

    Raises:
        CurveError: The budget is already spent, or the gain is not positive.
    """
    total, last = amount(budget, fit), fit.last_compute
    if total <= last:
        raise CurveError(
            f"the budget {short(total)} is already spent (last point {short(last)}); give a larger one, such as '2x'"
        )
    if not min_gain > 0:
        raise CurveError(f"min_gain must be positive; got {min_gain!r}")
    gain, chance = summarize(fit.gain(total)), chance_of_gain(fit, total, min_gain)
    decision = decision_on(fit, total, float(min_gain), chance, gain)
    return Advice(
        **decision._asdict(), probability=chance.forecast, trend_probability=chance.trend, budget=total,
        min_gain=float(min_gain), gain=gain,
    )  # fmt: skip


def decision_on(fit: Fit, total: float, min_gain: float, chance: Chance, gain: Estimate) -> Decision:
    """Return the decision on a run from the arguments of `advise` and its results."""
    last, unit = fit.last_compute, fit.curve.unit
    fall = clear_fall(fit)
    if fall is not None:
        best_at = fall.numbers["best_at"]
        reason = (
            f"the run has fallen by {fall.numbers['fall']:.3f} from its best near {short(best_at)} {unit} (noise "
            f"{fall.numbers['noise']:.3f}). {NO_RETURN} public runs that fell as clearly were "
            "never above their best again."
        )
        remedy = "Take the checkpoint there and look for the cause before training on."
        return Decision("go back", reason, go_back_to=best_at, remedy=remedy)
    promised = f"training to {short(total)} {unit} gains more than {min_gain:g}"
    rise = f"the fitted level rises by {gain}"
    if not has_fallen(fit.curve) and (chance.forecast > CONTINUE_ABOVE or (fit.identified and chance.forecast > 0.5)):
        ceiling = "" if fit.identified else f" The ceiling is not identified: {fit.reason}."
        return Decision("continue", f"{promised} with probability {chance.forecast:.2f}: {rise}.{ceiling}")
    missing = doubt(fit, total / last, min_gain, STOP_BELOW)
    if missing is None:
        reason = (
            f"{promised} only with probability {chance.forecast:.2f} by the forecast ({rise}), and with "
            f"{chance.trend:.2f} by the trend: the level changed by {chance.recent.rise:.2g} ± "
            f"{chance.recent.error:.2g} over the last doubling of compute."
        )
        return Decision("stop", reason)
    by_ceiling = chance.forecast > STOP_BELOW and not fit.identified and climbed(fit) and not has_fallen(fit.curve)
    # the other reasons may change with the next evaluation
    train_to = compute_to_identify(fit) if by_ceiling else last + float(np.diff(fit.curve.compute)[-1])
    where = f"at least to {short(train_to)}" if np.isfinite(train_to) else f"further than to {short(30 * last)}"
    return Decision("not known yet", f"{missing}. Train {where} {unit} and ask again.", train_to)


def compute_to_identify(fit: Fit) -> float:
    """Return the least compute at which the ceiling should be identified, or infinity.

    The standard deviation of the ceiling follows from the Fisher information of the curve with further evaluations at
    the present spacing, averaged over the draws. In simulation, nine of ten runs are identified at this compute.
    """
    curve = fit.curve
    limit = IDENTIFIED_SD * (curve.bounds[1] - curve.bounds[0])
    last, spacing = curve.last_compute, curve.last_compute / max(len(curve) - 1, 1)
    picked_P = np.linspace(0, len(fit.draws) - 1, PLAN_DRAWS).astype(int)
    for factor in 1.25 ** np.arange(1, 16):
        planned = last * factor
        count = int(np.ceil((planned - last) / spacing))
        extra = np.linspace(last, planned, min(count, 400) + 1)[1:]
        # many future points are represented by fewer points with larger weights
        weight_N = np.concatenate([np.ones(len(curve)), np.full(len(extra), count / len(extra))])
        compute_N = np.concatenate([curve.compute, extra])
        sd = planned_sd(fit, picked_P, compute_N, weight_N).mean()
        if sd < limit:
            return float(planned)
    return float("inf")


def planned_sd(fit: Fit, picked_P: Array, compute_N: Array, weight_N: Array) -> Array:
    """Return the standard deviation of A for a curve with these points, if each picked draw were true, shape (P,)."""
    asymptote, efficiency, midpoint, initial, phi, noise_sd = (
        getattr(fit.draws, name)[picked_P, None]
        for name in ("asymptote", "efficiency", "midpoint", "initial", "autocorrelation", "noise_sd")
    )
    slopes_PNK = derivatives(log_compute(compute_N), asymptote, np.log(midpoint), efficiency, initial)
    information_PKK = np.swapaxes(slopes_PNK, 1, 2) @ (weight_N[:, None] * slopes_PNK)
    # n points with autocorrelated noise have as much information as n (1 - phi) / (1 + phi) independent points
    inflation_P = ((1 + phi) / (1 - phi) * noise_sd**2)[:, 0]
    variance_P = np.linalg.pinv(information_PKK, hermitian=True)[:, 0, 0] * inflation_P
    # never wider than the whole range
    return np.asarray(np.minimum(np.sqrt(np.maximum(variance_P, 0.0)), np.ptp(fit.curve.bounds)))
