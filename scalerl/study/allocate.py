"""Which arms (recipes) of a study to train on, by what their curves forecast. Knows no trainer, no file and no clock.

An arm goes on as long as its posterior still lets it be the best. The present score is never looked at: an arm that is
behind now and whose ceiling is not known yet goes on. The answer depends on the curves alone, not on earlier answers,
so an arm that was stopped may be called back when the others disappoint.

Axes in names: A arms, D draws, S runs (seeds) of an arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from scalerl.config.base import nearest
from scalerl.scaling.compare import MARGIN, Runs, listed, seed_scatter
from scalerl.scaling.estimate import Estimate, or_none, short, summarise
from scalerl.scaling.fit import Fit
from scalerl.scaling.law import Array
from scalerl.scaling.readers import CurveError
from scalerl.study.best_arm import (
    RULES,
    Contest,
    Rule,
    entry,
    leader,
    probability_best,
    shortfall,
    worth_of_all,
    worth_of_each,
)
from scalerl.study.entrants import Entrant, checked_arms, judged

TOLERANCE = MARGIN / 4
"""The study is over when training on would raise the chosen arm by less than this share of the metric's range."""


@dataclass(frozen=True)
class Verdict:
    """Whether one arm goes on, and why."""

    arm: str
    """Name, as the caller gave it."""

    go_on: bool
    """Whether to spend the next slice of compute on it."""

    reason: str
    """Why, in words."""

    probability_best: float
    """That it is the best of the arms judged, in [0, 1]; not a number where it could not be judged."""

    evidence: float
    """What the rule looks at, see ``RULES``; not a number where it could not be judged."""

    shortfall: float
    """How far it is expected to lie below the best, in the metric's unit; not a number where it could not be judged."""

    worth: float
    """Gain in the chosen arm expected from learning of this one alone, in the metric's unit; not a number where it
    could not be judged. Where arms are trained in turn, the largest goes first.
    """

    reach: Estimate | None
    """The recipe's ceiling, or its level at the target; None where it could not be judged."""

    spent: float
    """Compute of all its runs so far, unit of the curves' axis."""

    def __str__(self) -> str:
        judged = "" if self.reach is None else f"{self.reach}, best with probability {self.probability_best:.2f}; "
        return f"{self.arm}: {'go on' if self.go_on else 'stop'} ({judged}{self.reason})"

    def to_dict(self) -> dict[str, Any]:
        """A dict of JSON values; what is not a number becomes None."""
        numbers = {
            name: or_none(getattr(self, name)) for name in ("probability_best", "evidence", "shortfall", "worth")
        }
        return {**asdict(self), **numbers, "reach": None if self.reach is None else self.reach.to_dict()}


@dataclass(frozen=True)
class Allocation:
    """Where the next slice of a study's compute goes."""

    verdicts: dict[str, Verdict]
    """One for each arm, in the order given."""

    best: str | None
    """The arm to choose if the study ended now; None while no arm can be judged, or when all have collapsed."""

    over: bool
    """Whether the study is over; then no arm goes on."""

    reason: str
    """Why it is over, or what is still open, in words."""

    worth: float
    """Gain in the chosen arm that training on can bring at most, in the metric's unit, expected."""

    seed_sd: float
    """Standard deviation between seeds of one recipe, in the metric's unit; not a number while no arm can be judged."""

    seed_source: str
    """Where ``seed_sd`` comes from."""

    rule: str
    """Key of ``RULES``."""

    target: float | None
    """Compute at which levels are judged, unit of the curves' axis; None for ceilings."""

    spent: float
    """Compute of all runs of all arms so far."""

    def __str__(self) -> str:
        return "\n".join([self.reason, *(f"  {verdict}" for verdict in self.verdicts.values())])

    def to_dict(self) -> dict[str, Any]:
        """A dict of JSON values."""
        numbers = {name: or_none(getattr(self, name)) for name in ("worth", "seed_sd")}
        return {**asdict(self), **numbers, "verdicts": {name: v.to_dict() for name, v in self.verdicts.items()}}


def allocate(
    arms: Mapping[str, Runs],
    target: float | None = None,
    budget: float | None = None,
    rule: str = "best",
    least: float | None = None,
    tolerance: float | None = None,
) -> Allocation:
    """Says for each arm whether its runs deserve the next slice of compute.

    The seeds of an arm count as independent of those of other arms. Where seeds are paired (the same data order in
    every arm) the arms differ by less than assumed, so that they are stopped later than they could be, not earlier.

    Args:
        arms: by name one or several runs (seeds) each, as curves or posterior fits, at any compute.
        target: judge levels at this compute, unit of the curves' axis, > 0; None judges ceilings.
        budget: compute of a whole run, > 0; an arm all of whose runs have spent it cannot go on. None takes ``target``,
            and no limit without one.
        rule: key of ``RULES``.
        least: evidence an arm needs to go on; None takes the rule's own.
        tolerance: in the metric's unit, >= 0: the study is over when training on is worth less. None takes
            ``TOLERANCE`` of the metric's range.

    Raises:
        CurveError: fewer than two arms, an arm without runs, runs that do not share axis and bounds, a fit that is not
            a posterior, an argument out of range.

    Returns:
        A verdict for each arm, the arm to choose if the study ended now, and whether it should.
    """
    width = float(np.ptp(checked_arms(arms)[0].bounds))
    checked_numbers(target, budget, rule, least, tolerance)
    entrants = [judged(name, listed(runs)) for name, runs in arms.items()]
    limit = budget if budget is not None else target
    contenders = [e for e in entrants if e.fits and not e.collapsed]
    if not contenders:
        return unjudged(entrants, limit, rule, target)
    contest, seed_sd, source = contest_of(contenders, target, limit, width)
    standings, chosen = standings_of(contest, contenders, limit, scaled(RULES[rule], least, width))
    in_play = {arm for arm, standing in standings.items() if standing.in_play}
    can_go = [e.arm for e in entrants if not e.done(limit) and (e.arm in in_play or not e.fits)]
    early = [e.arm for e in entrants if not e.done(limit) and not e.fits]
    worth = worth_of_all(contest)
    over, reason = ending(early, in_play, can_go, chosen, worth, TOLERANCE * width if tolerance is None else tolerance)
    verdicts = {e.arm: verdict(e, standings.get(e.arm), e.arm in can_go, over, limit) for e in entrants}
    spent = sum(e.spent for e in entrants)
    return Allocation(verdicts, chosen, over, reason, worth, seed_sd, source, rule, target, spent)


def checked_numbers(
    target: float | None, budget: float | None, rule: str, least: float | None, tolerance: float | None
) -> None:
    """Refuses what no study can mean."""
    for name, value in {"target": target, "budget": budget}.items():
        if value is not None and not 0 < value < np.inf:
            raise CurveError(
                f"{name} must be a positive amount of compute; got {value!r}. Leave it out if there is none"
            )
    for name, value in {"least": least, "tolerance": tolerance}.items():
        if value is not None and not 0 <= value < np.inf:
            raise CurveError(f"{name} must be a number of at least 0; got {value!r}. Leave it out for the default")
    if rule not in RULES:
        raise CurveError(f"rule must be one of {', '.join(map(repr, RULES))}; got {rule!r}{nearest(rule, RULES)}")


def contest_of(
    contenders: list[Entrant], target: float | None, limit: float | None, width: float
) -> tuple[Contest, float, str]:
    """The contenders side by side, the scatter between their seeds, and where it comes from."""
    rng = np.random.default_rng(0)
    seed_D, source = seed_scatter([e.fits for e in contenders], width, rng)
    rows = [entry([reach(f, target) for f in e.fits], seed_D * climbed(e.fits, target), rng) for e in contenders]
    trained_AD, recipe_AD = (np.stack(part) for part in zip(*rows, strict=True))
    open_A = np.array([not e.done(limit) for e in contenders])
    return Contest(trained_AD, recipe_AD, open_A), float(np.median(seed_D)), source


def reach(fitted: Fit, target: float | None) -> Array:
    """Draws of what a run will be worth: its ceiling, or its level at the target; shape (D,)."""
    return fitted.draws.asymptote if target is None else np.asarray(fitted.levels(target)[0])


def climbed(fits: tuple[Fit, ...], target: float | None) -> float:
    """Share of the climb done at the target: a seed lifts or lowers the whole climb in proportion."""
    if target is None:
        return 1.0
    rise = [f.asymptote.mean - f.initial.mean for f in fits]
    done = [float(f.levels(target).mean()) - f.initial.mean for f in fits]
    return float(np.clip(sum(done) / max(sum(rise), 1e-9), 0.0, 1.0))


def ending(
    early: list[str], in_play: set[str], can_go: list[str], first: str, worth: float, needed: float
) -> tuple[bool, str]:
    """Whether the study is over, and why."""
    if early:
        return False, f"Go on: too early to judge {', '.join(early)}."
    if len(in_play) == 1:
        return True, f"Over: no other arm may still be better than {first}."
    if not can_go:
        return True, f"Over: the whole budget is spent on the arms still in play. Choose {first}."
    gain = f"training on raises the arm that is chosen by {worth:.2g} on average"
    if worth < needed:
        return True, f"Over: {gain}, less than {needed:.2g}. Choose {first}; only more seeds would tell more."
    return False, f"Go on with {', '.join(can_go)}: {gain}."


class Standing(NamedTuple):
    """Where one contender stands among the others."""

    in_play: bool
    """Whether its evidence suffices, or it leads."""
    words: str
    probability_best: float
    evidence: float
    shortfall: float
    worth: float
    reach: Estimate | None


UNKNOWN = float("nan")

NO_STANDING = Standing(False, "", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, None)
"""Of an arm that could not be judged."""


def scaled(rule: Rule, least: float | None, width: float) -> Rule:
    """The rule with the caller's limit, or with its own in the metric's unit."""
    own = rule.least * (width if rule.in_metric else 1.0)
    return rule._replace(least=own if least is None else least)


def standings_of(
    contest: Contest, contenders: list[Entrant], limit: float | None, rule: Rule
) -> tuple[dict[str, Standing], str]:
    """The standing of each contender by name, and the name of the leader."""
    first = leader(contest)
    numbers_4A = (probability_best(contest), rule.evidence(contest), shortfall(contest), worth_of_each(contest))
    found = {}
    for a, e in enumerate(contenders):
        best, evidence, short_of, worth = (float(values_A[a]) for values_A in numbers_4A)
        enough = evidence >= rule.least
        words = f"{rule.words}: {short(evidence)}, {'at least' if enough else 'below'} {rule.least:g}"
        if a == first:
            words = "the leader: highest expected value"
        if (enough or a == first) and e.done(limit):
            words = f"whole budget spent; {words}"
        words += e.left_out
        estimate = summarise(contest.recipe_AD[a])
        found[e.arm] = Standing(enough or a == first, words, best, evidence, short_of, worth, estimate)
    return found, contenders[first].arm


def verdict(e: Entrant, standing: Standing | None, can_go: bool, over: bool, limit: float | None) -> Verdict:
    """The verdict on one arm."""
    at = NO_STANDING if standing is None else standing
    words = at.words or e.problem(limit)
    if over and can_go:
        words = f"the study is over; {words}"
    return Verdict(
        arm=e.arm,
        go_on=can_go and not over,
        reason=words,
        probability_best=at.probability_best,
        evidence=at.evidence,
        shortfall=at.shortfall,
        worth=at.worth,
        reach=at.reach,
        spent=e.spent,
    )


def unjudged(entrants: list[Entrant], limit: float | None, rule: str, target: float | None) -> Allocation:
    """The answer where no arm can be judged: all too early, or collapsed."""
    verdicts = {e.arm: verdict(e, None, not e.done(limit), False, limit) for e in entrants}
    over = not any(v.go_on for v in verdicts.values())
    reason = "Over: no arm is left that can be judged or trained." if over else "Go on: too early to judge any arm."
    spent, nan = sum(e.spent for e in entrants), float("nan")
    return Allocation(verdicts, None, over, reason, nan, nan, "no arm could be judged", rule, target, spent)
