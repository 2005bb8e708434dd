"""Decides which arms of a study get the next slice of compute: those that may still be the best.

The level of an arm is uncertain, which gives it a chance to be the best. The present score is not used: an arm that is
behind continues if its ceiling is not known yet. The decision depends on the curves only, not on earlier decisions, so
an arm that was stopped can continue later if the other arms turn out worse.

Axes in names: A arms, D draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.reading.curves.comparison import (
    MARGIN,
    Runs,
    as_sides,
    check_alike,
    recipe_ceilings,
    run_weights,
    seed_scatter,
    side_mean,
)
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import Estimate, as_json
from scalerl.reading.curves.fit import Fit, fit
from scalerl.reading.curves.frontiers import ranked
from scalerl.reading.curves.law import Array
from scalerl.reading.tables.errors import CurveError

LEAST_PROBABILITY = 0.05
"""An arm continues while its probability of being the best is at least this share of the likeliest arm's.

The probability itself shrinks as similar arms are added. With a limit on it, all of twenty similar arms would stop."""

GAIN_TOLERANCE = MARGIN / 4
"""The study is over when more training would raise the chosen arm by less than this share of the metric's range."""

Fits = Mapping[str, list[Fit]]
"""Fits of the runs of each arm that can be judged."""

Levels = tuple[Array, Array]
"""Joint draws, each of shape (A, D): the level of each recipe, with the scatter between seeds, and the mean level of
its runs, which more training would determine."""


@dataclass(frozen=True)
class Continuation:
    """Whether one arm continues, and why."""

    arm: str
    go_on: bool
    level: Estimate | None
    """Level of the recipe; None if it could not be judged."""
    probability_best: float
    """Probability that no other judged arm is better; NaN if it could not be judged."""
    problem: str = ""
    """Reason why it could not be judged, or runs that were left out."""

    def __str__(self) -> str:
        judged = [f"{self.level}, best with probability {self.probability_best:.2f}"] if self.level else []
        words = "; ".join([*judged, *filter(None, [self.problem])])
        return f"{self.arm}: {'continue' if self.go_on else 'stop'} ({words})"


@dataclass(frozen=True)
class Allocation:
    """Which arms get the next slice of a study's compute."""

    verdicts: dict[str, Continuation]
    """One verdict for each arm, in the given order; no arm continues when the study is over."""
    best: str | None
    """The arm to choose if the study ended now; None while no arm can be judged, or if all have collapsed."""
    reason: str
    """Reason why the study is over or continues."""
    worth: float
    """Expected gain in the level of the chosen arm if the levels of all runs were known, in the metric's unit."""

    def __str__(self) -> str:
        return "\n".join([self.reason, *(f"  {verdict}" for verdict in self.verdicts.values())])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values, a line of allocation.jsonl."""
        return as_json(self)  # type: ignore[no-any-return]


def own_ceilings(fits: Fits) -> Levels:
    """Return the ceiling of each arm, by its own runs."""
    return own_levels({name: [recipe_ceilings(f) for f in runs] for name, runs in fits.items()}, fits)


def own_levels(drawn: Mapping[str, list[Array]], fits: Fits) -> Levels:
    """Return the levels of arms from draws of the level of each of their runs."""
    rng = np.random.default_rng(0)
    seed_D, _ = seed_scatter(list(fits.values()), float(np.ptp(next(iter(fits.values()))[0].curve.bounds)), rng)
    mixed = [[rng.permutation(level_D) for level_D in runs] for runs in drawn.values()]
    trained = [(run_weights(runs, seed_D) * np.stack(runs)).sum(axis=0) for runs in mixed]
    return np.stack([side_mean(runs, seed_D, rng) for runs in mixed]), np.stack(trained)


def allocate(
    arms: Mapping[str, Runs], levels_of: Callable[[Fits], Levels] = own_ceilings, tolerance: float = GAIN_TOLERANCE
) -> Allocation:
    """Decide for each arm whether its runs get the next slice of compute.

    Args:
        arms: One or several runs (seeds) of each arm by its name, as curves or posterior fits, at any compute.
        levels_of: Function that returns the levels by which arms are judged.
        tolerance: The study is over when more training would gain less, as a share of the metric's range; 0: it is not
            over before its last slice.

    Raises:
        CurveError: There are fewer than two arms, an arm has no runs, the runs do not share axis and bounds, or a fit
            is not a posterior.
    """
    runs = {name: as_sides(runs_of_arm) for name, runs_of_arm in arms.items()}
    if len(runs) < 2 or not all(runs.values()):
        counts = {name: len(runs_of_arm) for name, runs_of_arm in runs.items()}
        raise CurveError(
            f"an allocation needs at least two arms, and a run of each; got these numbers of runs: {counts}"
        )
    check_alike([run.curve if isinstance(run, Fit) else run for runs_of_arm in runs.values() for run in runs_of_arm])
    judged = {name: usable_fits(runs_of_arm) for name, runs_of_arm in runs.items()}
    fits = {name: fits_of_arm for name, (fits_of_arm, _, stopped) in judged.items() if fits_of_arm and not stopped}
    early = [name for name, (fits_of_arm, _, stopped) in judged.items() if not fits_of_arm and not stopped]
    verdicts = {
        name: Continuation(name, name in early, None, math.nan, problem) for name, (_, problem, _) in judged.items()
    }
    if not fits:
        reason = "Continue: too early to judge any arm." if early else "Over: all arms have collapsed."
        return Allocation(verdicts, None, reason, math.nan)
    recipe_AD, trained_AD = levels_of(fits)
    options, _ = ranked([{"arm": name} for name in fits], recipe_AD, recipe_AD)
    most = max(option.probability_best for option in options)
    in_play = [o.setting["arm"] for o in options if o is options[0] or o.probability_best >= LEAST_PROBABILITY * most]
    worth = float(trained_AD.max(axis=0).mean() - trained_AD.mean(axis=1).max())
    over, reason = ending(early, in_play, worth, tolerance * float(np.ptp(next(iter(fits.values()))[0].curve.bounds)))
    for option in options:
        name = option.setting["arm"]
        on = name in in_play and not over
        verdicts[name] = Continuation(name, on, option.level, option.probability_best, verdicts[name].problem)
    return Allocation(verdicts, in_play[0], reason, worth)


def usable_fits(runs: list[Curve | Fit]) -> tuple[list[Fit], str, bool]:
    """Return the fits of the runs that can be judged, the reason why others cannot, and whether half have collapsed."""
    fits, fallen, short = [], 0, ""
    for run in runs:
        try:
            fit_result = run if isinstance(run, Fit) else fit(run)
        except CurveError as error:  # too few points
            short = str(error)
            continue
        if np.ptp(fit_result.curve.metric) == 0:
            short = f"every metric value is {fit_result.curve.metric[0]:g}"
        elif fit_result.posterior.fallen and fit_result.posterior.stay_probability > 0.5:
            fallen += 1
        else:
            fits.append(fit_result)
    collapsed = [f"{fallen} of its {len(runs)} runs have collapsed"] if fallen else []
    return fits, "; ".join([*collapsed, *([f"too early to judge: {short}"] if short else [])]), 2 * fallen >= len(runs)


def ending(early: list[str], in_play: list[str], worth: float, needed: float) -> tuple[bool, str]:
    """Return whether the study is over, and the reason."""
    if early:
        return False, f"Continue: too early to judge {', '.join(early)}."
    if needed and len(in_play) == 1:
        return True, f"Over: no other arm has a chance to be better than {in_play[0]}."
    gain = f"more training raises the level of the chosen arm by {worth:.2g} on average"
    if worth < needed:
        return True, f"Over: {gain}, less than {needed:.2g}. Choose {in_play[0]}; more seeds would give more certainty."
    stopped = (
        f"Others stop: each has less than {LEAST_PROBABILITY:g} of the probability of the likeliest arm to be the best."
    )
    return False, f"Continue {', '.join(in_play)}: {gain}. {stopped}"
