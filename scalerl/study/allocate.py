"""Decides from the curves of a study's arms (recipes) which arms get the next slice of compute.

An arm continues while the posterior gives it a chance to be the best. The present score is not used: an arm that is
behind continues if its ceiling is not known yet. The decision depends on the curves only, not on earlier decisions, so
an arm that was stopped can continue later if the other arms turn out worse.

`recipe_AD` is the posterior of a recipe's ceiling and includes the scatter between seeds. `trained_AD` is the posterior
of the mean ceiling of the arm's runs. More training of these runs narrows `trained_AD` to a point; the scatter between
seeds in `recipe_AD` stays.

Axes in names: A arms, D draws, S runs (seeds) of an arm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from scalerl.scaling.compare import (
    MARGIN,
    Runs,
    check_alike,
    check_posterior,
    listed,
    run_weights,
    seed_scatter,
    side_mean,
)
from scalerl.scaling.curve import Curve
from scalerl.scaling.estimate import Estimate, as_json, short, summarize
from scalerl.scaling.fit import fit
from scalerl.scaling.forecast import Fit
from scalerl.scaling.health import Symptom, decline
from scalerl.scaling.law import Array
from scalerl.scaling.readers import CurveError

COLLAPSE_SD = 5.0
"""Size from which a decline counts as a collapse, in standard deviations of the noise before it."""


class FittedArm(NamedTuple):
    """One arm with the fits of its runs."""

    arm: str
    spent_S: tuple[float, ...]
    """Compute of each run so far."""
    fits: tuple[Fit, ...]
    """Fits of the runs that could be fitted and have not collapsed."""
    unfitted: str
    """Reason why a run could not be fitted; empty if all could."""
    fallen: tuple[Symptom, ...]
    """Decline of each run that has collapsed."""

    @property
    def collapsed(self) -> bool:
        """Whether at least half of the runs have collapsed."""
        return 2 * len(self.fallen) >= len(self.spent_S)

    @property
    def spent(self) -> float:
        """Compute of all runs."""
        return sum(self.spent_S)

    @property
    def left_out(self) -> str:
        """The runs that the verdict does not use, as the end of a sentence."""
        too_short = len(self.spent_S) - len(self.fits) - len(self.fallen)
        counts = {"collapsed": len(self.fallen), "too short to fit": too_short}
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        return f"; runs left out: {', '.join(parts)}" if parts else ""

    @property
    def problem(self) -> str:
        """Reason why the arm could not be judged."""
        if self.collapsed:
            return f"{len(self.fallen)} of its {len(self.spent_S)} runs have collapsed: {self.fallen[0].message}"
        return f"too early to judge: {self.unfitted}"


def checked_arms(arms: Mapping[str, Runs]) -> list[Curve]:
    """Return the curves of all arms; raise an error if the arms cannot be compared."""
    counts = {name: len(listed(runs)) for name, runs in arms.items()}
    if len(arms) < 2 or not all(counts.values()):
        raise CurveError(
            f"an allocation needs at least two arms, and a run of each; got these numbers of runs: {counts}. For a "
            "single run, use advise()"
        )
    every = [run for runs in arms.values() for run in listed(runs)]
    check_posterior([run for run in every if isinstance(run, Fit)])
    curves = [run.curve if isinstance(run, Fit) else run for run in every]
    check_alike(curves)
    return curves


def fitted_arm(arm: str, runs: list[Curve | Fit]) -> FittedArm:
    """Fit the runs of one arm; runs that cannot be fitted are listed with the reason."""
    fits, fallen, unfitted = [], [], ""
    for run in runs:
        try:
            fitted = run if isinstance(run, Fit) else fit(run)
        except CurveError as error:  # too few points; the arm continues
            unfitted = str(error)
            continue
        if np.ptp(fitted.curve.metric) == 0:
            unfitted = f"every metric value is {fitted.curve.metric[0]:g}"
            continue
        symptom = collapse(fitted.curve)
        if symptom is None:
            fits.append(fitted)
        else:
            fallen.append(symptom)
    return FittedArm(arm, tuple(run.last_compute for run in runs), tuple(fits), unfitted, tuple(fallen))


def collapse(curve: Curve) -> Symptom | None:
    """Return a decline that autocorrelated noise does not explain; None if there is none.

    The noise is estimated from a fit of the part before the decline; a fit of the whole would count the decline as
    noise.
    """
    symptom = decline(curve)
    if symptom is None:
        return None
    try:
        before = fit(curve.between(most=symptom.numbers["best_at"]))
    except CurveError:  # this part is too short for a fit, so only the size of the decline counts
        return symptom
    return symptom if symptom.numbers["fall"] >= COLLAPSE_SD * before.noise_sd else None


class ArmDraws(NamedTuple):
    """Joint draws of the ceilings of all arms that can be judged; the values in one column belong together."""

    trained_AD: Array
    """Mean ceiling of an arm's runs, in the metric's unit."""

    recipe_AD: Array
    """Ceiling of the recipe, which also includes the scatter between seeds."""


def draws_of_arm(ceiling_SD: list[Array], seed_D: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return an arm's rows of `trained_AD` and `recipe_AD`, each of shape (D,).

    Args:
        ceiling_SD: Draws of the ceiling of each run.
        seed_D: Draws of the standard deviation between seeds.
        rng: Random generator that shuffles the draws of each run, so that runs are independent.
    """
    mixed_SD = [rng.permutation(ceiling_D) for ceiling_D in ceiling_SD]
    trained_D = (run_weights(mixed_SD, seed_D) * np.stack(mixed_SD)).sum(axis=0)
    return trained_D, side_mean(mixed_SD, seed_D, rng)


def leader(draws: ArmDraws) -> int:
    """Return the arm with the highest mean; choosing it now minimizes the expected regret."""
    return int(draws.trained_AD.mean(axis=1).argmax())


def probability_best(draws: ArmDraws) -> Array:
    """Return the probability that each arm has the highest ceiling, shape (A,), summing to one."""
    count_A = np.bincount(draws.recipe_AD.argmax(axis=0), minlength=len(draws.recipe_AD))
    return np.asarray(count_A / draws.recipe_AD.shape[1])


def relative_probability_best(draws: ArmDraws) -> Array:
    """Return the probability of being the best divided by that of the likeliest arm, shape (A,), in [0, 1].

    The probability itself shrinks as similar arms are added. With a limit on it, all of twenty similar arms would stop.
    """
    probability_A = probability_best(draws)
    return np.asarray(probability_A / probability_A.max())


def worth_of_all(draws: ArmDraws) -> float:
    """Return the expected gain in the chosen arm's ceiling if all runs were trained until their ceilings are known.

    This is the expected value of perfect information about the runs (Raiffa and Schlaifer, Applied Statistical Decision
    Theory, 1961). It is an upper bound on the gain from more training of these runs, in the metric's unit.
    """
    return float(draws.trained_AD.max(axis=0).mean() - draws.trained_AD.mean(axis=1).max())


def worth_of_each(draws: ArmDraws) -> Array:
    """Return for each arm the gain of `worth_of_all` if only its ceiling were known, shape (A,)."""
    mean_A = draws.trained_AD.mean(axis=1)
    others_A = np.array([np.delete(mean_A, i).max(initial=-np.inf) for i in range(len(mean_A))])
    return np.asarray(np.maximum(draws.trained_AD, others_A[:, None]).mean(axis=1) - mean_A.max())


LEAST = 0.05
"""An arm continues while its probability of being the best is at least this share of the likeliest arm's.

Chosen on 120 simulated studies, with different random numbers from those of `benchmarks/allocation.py`.
"""

TOLERANCE = MARGIN / 4
"""The study is over when more training would raise the chosen arm by less than this share of the metric's range."""


@dataclass(frozen=True)
class Verdict:
    """Whether one arm continues, and why."""

    arm: str
    """Name of the arm, as given by the caller."""

    go_on: bool
    """Whether to spend the next slice of compute on it."""

    reason: str
    """Reason, as text."""

    probability_best: float
    """Probability that it has the highest ceiling of all judged arms; NaN if it could not be judged."""

    evidence: float
    """`probability_best` divided by that of the likeliest arm; NaN if it could not be judged."""

    worth: float
    """Expected gain in the ceiling of the chosen arm from training this arm alone, in the metric's unit; NaN if it
    could not be judged. If arms are trained one after the other, train the one with the largest worth first.
    """

    reach: Estimate | None
    """The recipe's ceiling; None if it could not be judged."""

    spent: float
    """Compute of all its runs so far, unit of the curves' axis."""

    def __str__(self) -> str:
        judged = "" if self.reach is None else f"{self.reach}, best with probability {self.probability_best:.2f}; "
        return f"{self.arm}: {'continue' if self.go_on else 'stop'} ({judged}{self.reason})"


@dataclass(frozen=True)
class Allocation:
    """Which arms get the next slice of a study's compute."""

    verdicts: dict[str, Verdict]
    """One verdict for each arm, in the given order."""

    best: str | None
    """The arm to choose if the study ended now; None while no arm can be judged, or if all have collapsed."""

    over: bool
    """Whether the study is over; then no arm continues."""

    reason: str
    """Reason why it is over or continues, as text."""

    worth: float
    """Upper bound on the expected gain in the ceiling of the chosen arm from more training, in the metric's unit."""

    seed_sd: float
    """Standard deviation between seeds of one recipe, in the metric's unit; NaN while no arm can be judged."""

    seed_source: str
    """Source of `seed_sd`."""

    spent: float
    """Compute of all runs of all arms so far."""

    def __str__(self) -> str:
        return "\n".join([self.reason, *(f"  {verdict}" for verdict in self.verdicts.values())])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values, a line of allocation.jsonl."""
        return as_json(self)  # type: ignore[no-any-return]


def allocate(arms: Mapping[str, Runs]) -> Allocation:
    """Decide for each arm whether its runs get the next slice of compute.

    The seeds of an arm count as independent of those of other arms. If seeds are paired (the same data order in every
    arm), the arms differ by less than assumed, so arms are stopped later than necessary, not earlier.

    Args:
        arms: One or several runs (seeds) of each arm by its name, as curves or posterior fits, at any compute.

    Raises:
        CurveError: There are fewer than two arms, an arm has no runs, the runs do not share axis and bounds, or a fit
            is not a posterior.

    Returns:
        A verdict for each arm, the arm to choose if the study ended now, and whether the study is over.
    """
    width = float(np.ptp(checked_arms(arms)[0].bounds))
    fitted = [fitted_arm(name, listed(runs)) for name, runs in arms.items()]
    judgeable = [f for f in fitted if f.fits and not f.collapsed]
    verdicts = {f.arm: unjudged(f) for f in fitted}
    early = [f.arm for f in fitted if not f.fits and not f.collapsed]
    spent = sum(f.spent for f in fitted)
    if not judgeable:
        reason = "Continue: too early to judge any arm." if early else "Over: all arms have collapsed."
        return Allocation(verdicts, None, not early, reason, math.nan, math.nan, "no arm could be judged", spent)
    draws, seed_sd, source = arm_draws(judgeable, width)
    judgments, chosen = judged(draws, judgeable)
    verdicts |= judgments
    in_play = [name for name, verdict in verdicts.items() if verdict.go_on]
    worth = worth_of_all(draws)
    over, reason = ending(early, in_play, chosen, worth, TOLERANCE * width)
    if over:
        for name in in_play:
            kept = verdicts[name]
            verdicts[name] = replace(kept, go_on=False, reason=f"the study is over; {kept.reason}")
    return Allocation(verdicts, chosen, over, reason, worth, seed_sd, source, spent)


def arm_draws(judgeable: list[FittedArm], width: float) -> tuple[ArmDraws, float, str]:
    """Return the draws of all arms, the standard deviation between their seeds, and its source."""
    rng = np.random.default_rng(0)
    seed_D, source = seed_scatter([f.fits for f in judgeable], width, rng)
    rows = [draws_of_arm([run.draws.asymptote for run in f.fits], seed_D, rng) for f in judgeable]
    trained_AD, recipe_AD = (np.stack(part) for part in zip(*rows, strict=True))
    return ArmDraws(trained_AD, recipe_AD), float(np.median(seed_D)), source


def ending(early: list[str], in_play: list[str], first: str, worth: float, needed: float) -> tuple[bool, str]:
    """Return whether the study is over, and the reason."""
    if early:
        return False, f"Continue: too early to judge {', '.join(early)}."
    if len(in_play) == 1:
        return True, f"Over: no other arm has a chance to be better than {first}."
    gain = f"more training raises the ceiling of the chosen arm by {worth:.2g} on average"
    if worth < needed:
        return True, f"Over: {gain}, less than {needed:.2g}. Choose {first}; only more seeds would give more certainty."
    return False, f"Continue {', '.join(in_play)}: {gain}."


def judged(draws: ArmDraws, judgeable: list[FittedArm]) -> tuple[dict[str, Verdict], str]:
    """Return the verdicts on arms with a posterior, by name, while the study continues, and the name of the leader."""
    first = leader(draws)
    numbers_3A = (probability_best(draws), relative_probability_best(draws), worth_of_each(draws))
    verdicts = {}
    for a, fitted in enumerate(judgeable):
        best, evidence, worth = (float(values_A[a]) for values_A in numbers_3A)
        enough = evidence >= LEAST
        words = (
            f"probability of being the best, relative to the likeliest arm: {short(evidence)}, "
            f"{'at least' if enough else 'below'} {LEAST:g}"
        )
        if a == first:
            words = "the leader: highest expected ceiling"
        reason, reach = words + fitted.left_out, summarize(draws.recipe_AD[a])
        on = enough or a == first
        verdicts[fitted.arm] = Verdict(fitted.arm, on, reason, best, evidence, worth, reach, fitted.spent)
    return verdicts, judgeable[first].arm


def unjudged(fitted: FittedArm) -> Verdict:
    """Return the verdict on an arm without a posterior: it continues unless it has collapsed."""
    return Verdict(fitted.arm, not fitted.collapsed, fitted.problem, math.nan, math.nan, math.nan, None, fitted.spent)
