"""Advice on a run from its fit: go back, open, about, continue or stop, with the gain, its price and its record.

The mean gain of the forecast decides: on public runs no other rule was better. How often such advice was right is
counted in public runs that nobody had tuned to: `cases.csv` has 513 cuts of runs of 68 public repositories, none of
which was used to choose anything in the forecast, with the gain that was forecast for twice the compute and the gain
that followed, as shares of the metric's range.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from scalerl.reading.curves.estimate import NINE_IN_TEN, Estimate, as_json, summarize
from scalerl.reading.curves.falls import has_fallen
from scalerl.reading.curves.fit import UNLAWFUL, Fit, checked_fit
from scalerl.reading.curves.forecast import amount, gain_at
from scalerl.reading.curves.health import Symptom, decline
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.notebook import Guided
from scalerl.reading.curves.price import Cost, cost_of
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.curves.units import compute_text, factor_text, number_text
from scalerl.reading.tables.errors import CurveError

Action = Literal["go back", "open", "about", "continue", "stop"]

MIN_GAIN = 0.02
"""Smallest gain that is worth twice the compute, as a share of the metric's range: the one default of every output."""

VISIBLE_CLIMB = float(np.log((1.0 - UNLAWFUL) / UNLAWFUL))
"""Log evidence ratio above which the points show a climb: with even prior odds its probability is above 0.9."""

COUNTED_BUDGET = 2.0
"""Multiple of the compute for which public runs were counted."""

OPEN_FACTOR = 2.0
"""A run that shows no climb is open if its interval reaches a gain of this multiple of the limit."""

ABOUT = 0.25
"""Distance of the mean gain from the limit, as a share of it, within which the gain is about what is asked for."""

FEW_CASES = 20
"""Smallest number of cases for a count."""


class Counted(NamedTuple):
    """How often an advice of one kind was right.

    Example: `Counted(right=137, of=216, repositories=53)`
    """

    right: int
    of: int
    repositories: int


@dataclass(frozen=True)
class Future:
    """One of two futures of a run without a climb.

    Example: `Future(probability=0.41, gain=Estimate(0.09, 0.07, 0.02, 0.25))`
    """

    probability: float
    gain: Estimate
    """Gain at the budget in this future, in the metric's unit."""


@dataclass(frozen=True)
class Advice(Guided):
    """What to do with a run, what it gains and costs, and how often such advice was right.

    The same object is behind `scalerl fit`, the page, trackers, the callback and Python.

    Example: `Advice("stop", gain=Estimate(0.008, 0.001, 0.007, 0.009), limit=0.02, budget=80.0, cost=Cost(40.0, ...),
    futures=None, counted=Counted(137, 216, 53), go_back_to=nan, sentence="Stop: ...")`
    """

    action: Action
    """"go back" (a clear fall), "open" (no climb so far, and a rise would be worth it), "about" (the gain is close to
    the limit), "continue" or "stop"."""

    gain: Estimate
    """Level at the budget minus level now, as in the forecast; for "go back" the best level so far minus the last."""

    limit: float
    """Smallest gain that is worth the compute, in the metric's unit."""

    budget: float
    """Compute at which the gain is judged, unit of the curve's axis."""

    cost: Cost
    """Price of the compute between now and the budget; for "go back" of the compute since the best level."""

    futures: dict[str, Future] | None
    """For "open": the draws that stay "flat" and those that gain more than the limit, "rises"; else None."""

    counted: Counted | None
    """In how many cases of public runs such advice was right; None for another budget than twice the compute, for a
    training reward, and for few cases."""

    go_back_to: float
    """For "go back": compute of the best level so far; NaN for the other actions."""

    sentence: str
    """The advice as text."""

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        counted = None if self.counted is None else self.counted._asdict()
        return {**as_json(self), "counted": counted}


def advise(
    fit: Fit, budget: float | str = "2x", min_gain: float | None = None, *, price: float | None = None
) -> Advice:
    """Return advice on a run: the first of these that applies.

    - "go back": the run has clearly fallen, at this evaluation and at the one before it.
    - "open": it shows no climb, its mean gain is below the limit, and its interval reaches twice the limit.
    - "about": the mean gain is within a quarter of the limit.
    - "continue" or "stop": the mean gain is above the limit, or it is not.

    Args:
        fit: Fit of the run so far.
        budget: Compute beyond the last point at which the gain is judged, in the curve's unit or as a multiple, "2x".
        min_gain: The limit: the smallest gain that is worth the compute, in the metric's unit; > 0. None: `MIN_GAIN` of
            its range.
        price: Price of a device-hour; None: costs are in device-hours.

    Raises:
        CurveError: The budget is already spent, the gain is not positive, or the price cannot be used.
    """
    checked_fit(fit)
    curve, last, total = fit.curve, fit.last_compute, amount(budget, fit)
    if total <= last:
        raise CurveError(
            f"the budget {compute_text(total, curve.axis)} is already spent (last point {curve.text(last)}); give a "
            "larger one, such as '2x'"
        )
    width = float(np.ptp(curve.bounds))
    limit = MIN_GAIN * width if min_gain is None else float(min_gain)
    if not 0 < limit < math.inf:
        raise CurveError(f"min_gain must be a number above 0; got {min_gain!r}")
    fall = clear_fall(fit)
    if fall is not None:
        # of the means of three evaluations
        height, error = fall.numbers["fall"], fall.numbers["noise"] * math.sqrt(2.0 / 3.0)
        gain = Estimate(height, error, height - NINE_IN_TEN * error, height + NINE_IN_TEN * error)
        action: Action = "go back"
    else:
        gain = gain_at(fit, total)
        action = advice_kind(gain.mean, gain.high, limit, climbs=has_fallen(curve) or climbed(fit))
    countable = abs(total / last - COUNTED_BUDGET) < 1e-6 and not curve.training
    counted = count(action, limit / width) if countable else None
    best_at = math.nan if fall is None else fall.numbers["best_at"]
    spent = total - last if fall is None else last - best_at
    cost = cost_of(curve, spent, gain.mean if fall is None else math.nan, price)
    futures = both_futures(fit.posterior.wide_sample.gain(total), limit) if action == "open" else None
    advice = Advice(action, gain, limit, total, cost, futures, counted, best_at, "")
    return replace(advice, sentence=SENTENCES[action](advice, fit))


def advice_kind(gain: float, high: float, limit: float, *, climbs: bool) -> Action:
    """Return the advice for a run without a clear fall.

    Args:
        gain: Mean gain of the forecast.
        high: Upper end of the interval of the gain.
        limit: Smallest gain that is worth the compute, in the same unit.
        climbs: Whether the run has climbed, or has fallen since.
    """
    if not climbs and gain < limit and high >= OPEN_FACTOR * limit:
        return "open"
    if abs(gain - limit) <= ABOUT * limit * (1.0 + 1e-9):
        return "about"
    return "continue" if gain > limit else "stop"


def both_futures(gain_D: Array, limit: float) -> dict[str, Future]:
    """Return the draws of a run without a climb in two parts: it stays flat, or it rises by more than the limit."""
    parts = {"flat": gain_D[gain_D <= limit], "rises": gain_D[gain_D > limit]}
    return {name: Future(len(part_D) / len(gain_D), summarize(part_D)) for name, part_D in parts.items()}


def climbed(fit_result: Fit) -> bool:
    """Return whether the points show a climb, and the run probably rises; without a climb, it may still begin later.

    The prior odds alone are no evidence of a climb: with little noise they are against a run that stays.
    """
    return fit_result.posterior.stay_probability <= UNLAWFUL and fit_result.posterior.climb > VISIBLE_CLIMB


def clear_fall(fit_result: Fit) -> Symptom | None:
    """Return the fall of a run that fell by more than noise at two successive evaluations, or None."""
    curve = fit_result.curve
    if len(curve) <= MIN_POINTS:
        return None
    falls = [decline(part) if has_fallen(part) else None for part in (curve.first(len(curve) - 1), curve)]
    return falls[1] if falls[0] is not None else None


# ------------------------------------------------------------------------------------------------------- the sentences


def go_back_sentence(advice: Advice, fit: Fit) -> str:
    """Say how far the run has fallen, and what is lost."""
    fall = f"since then the run has fallen by {advice.gain:{fit.curve.level_format}}"
    lost = "the compute since then is" if advice.cost.unnamed else f"{advice.cost} are"
    record = in_cases(advice, "the run was never above its best again")
    return f"Go back to {fit.curve.text(advice.go_back_to)}: {fall}; {lost} lost.{record}"


def open_sentence(advice: Advice, fit: Fit) -> str:
    """Say what both futures gain."""
    assert advice.futures is not None
    flat, rises = advice.futures["flat"], advice.futures["rises"]
    return (
        f"Open: no climb so far. If it stays flat ({flat.probability:.2f}), {times(advice, fit)} gains nothing; if it "
        f"rises ({rises.probability:.2f}), {rises.gain:{fit.curve.level_format}}, for {another(advice, fit)}."
        f"{in_cases(advice, 'the run rose')}"
    )


def about_sentence(advice: Advice, fit: Fit) -> str:
    """Say that the gain is close to the limit, and what going on costs."""
    return (
        f"About what you ask for: {times(advice, fit)} should gain {advice.gain:{fit.curve.level_format}}, and you ask "
        f"for {advice.limit:g}. Going on costs {another(advice, fit, '')}.{in_cases(advice, 'the gain was larger')}"
    )


def gain_sentence(advice: Advice, fit: Fit) -> str:
    """Say that the gain is above or below the limit, and what it costs."""
    side = "more" if advice.action == "continue" else "less"
    gain = f"should gain {advice.gain:{fit.curve.level_format}}, {side} than the {advice.limit:g} you ask for"
    record = advice.counted
    right = f" Such advice was right in {record.right} of {record.of} cases of public runs." if record else ""
    return f"{advice.action.capitalize()}: {times(advice, fit)} {gain}, for {another(advice, fit)}.{right}"


SENTENCES = {
    "go back": go_back_sentence,
    "open": open_sentence,
    "about": about_sentence,
    "continue": gain_sentence,
    "stop": gain_sentence,
}
"""The sentence of each action."""


def times(advice: Advice, fit: Fit) -> str:
    """Return the budget as a multiple of the compute so far."""
    return factor_text(advice.budget / fit.last_compute)


def another(advice: Advice, fit: Fit, word: str = "another ") -> str:
    """Return the compute up to the budget with its price; without a unit as a multiple of the compute so far."""
    if not advice.cost.unnamed:
        return f"{word}{advice.cost}"
    more = advice.budget / fit.last_compute - 1.0
    return "as much compute again" if abs(more - 1.0) < 1e-9 else f"{number_text(more)} times as much compute again"


def in_cases(advice: Advice, what: str) -> str:
    """Return in how many cases of public runs something happened, as a sentence; empty without a count."""
    counted = advice.counted
    return f" In {counted.right} of {counted.of} such cases of public runs {what}." if counted else ""


# ------------------------------------------------------------------------------------------------- cases of public runs


class Case(NamedTuple):
    """One cut of a public run.

    Example: `Case(repository="3", clear_fall=False, fallen=False, stays=0.12, gain=0.011, high=0.19, actual=0.044)`
    """

    repository: str
    clear_fall: bool
    """Whether the advice was to go back; `gain` is then the fall since the best level."""
    fallen: bool
    stays: float
    """Probability of a run that stays where it is."""
    gain: float
    """Mean of the forecast gain at twice the compute."""
    high: float
    """Upper end of its 90% interval."""
    actual: float
    """Level around twice the compute minus the level before the cut."""

    def kind(self, limit: float) -> Action:
        """Return the advice for a limit; the file does not have the evidence for a climb that `climbed` uses too."""
        if self.clear_fall:
            return "go back"
        return advice_kind(self.gain, self.high, limit, climbs=self.fallen or self.stays <= UNLAWFUL)


def count(action: Action, limit: float) -> Counted | None:
    """Return how often public runs with this advice did what it says; None for few cases.

    A run that was told to go back did not exceed its best again. A run that was told to stop gained at most the limit;
    the others gained more.

    Args:
        action: The advice.
        limit: Smallest gain that is worth twice the compute, as a share of the metric's range.
    """
    alike = [case for case in public_cases() if action == case.kind(limit)]
    if len(alike) < FEW_CASES:
        return None
    more = sum(case.actual > (case.gain if action == "go back" else limit) for case in alike)
    right = len(alike) - more if action in ("go back", "stop") else more
    return Counted(right, len(alike), len({case.repository for case in alike}))


@lru_cache(maxsize=1)
def public_cases() -> tuple[Case, ...]:
    """Return the cases of `cases.csv`."""
    with Path(__file__).with_name("cases.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Case(
                row["repository"],
                row["action"] == "go back",
                row["fallen"] == "1",
                *(float(row[name]) for name in ("stays", "gain_mean", "gain_high", "actual")),
            )
            for row in csv.DictReader(file)
        )


FIFTHS = ((0.20, 0.24), (0.405, 0.31), (0.58, 0.59), (0.79, 0.71), (1.0, 0.84))
"""Of the cases in order of their forecast probability of a gain above 0.02 at twice the compute, the fifths: the end of
each, and the share of its 102 or 103 cases that gained more."""


def share_that_gained(probability: float) -> float:
    """Return the share of the public cases with about this probability of a gain above 0.02 that gained more."""
    return next(share for end, share in FIFTHS if probability <= end)
