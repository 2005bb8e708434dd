"""Compares two recipes by one or several runs each: which is ahead, which is cheaper, which has the higher ceiling.

The answer is first what was measured at the compute that both have reached, then the cost of a level that both have
reached, then the forecast at twice that compute, then the ceilings. As in the paper (arXiv 2510.13786), if the ceilings
A are the same within the scatter between seeds, the steepness B at one common A is compared. A run that has fallen or
is flat counts with the level at which it stays, in proportion to the probability that it stays there (`futures`).

Axes in names: D draws, S runs (seeds) of a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from scalerl.reading.curves.curve import Curve, checked_curve
from scalerl.reading.curves.estimate import NINE_IN_TEN, TAILS, Estimate, as_json, summarize
from scalerl.reading.curves.families import LEVEL
from scalerl.reading.curves.fit import Band, Fit, fit
from scalerl.reading.curves.forecast import amount
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.notebook import InNotebooks
from scalerl.reading.curves.price import NextGain, checked_price, next_gain, with_hours_of
from scalerl.reading.curves.sampling import held_at
from scalerl.reading.tables.errors import CurveError

MARGIN = 0.02
"""Share of the metric's range within which ceilings count as the same; the paper's margin from three seeds."""

ASSUMED_SEED_SD = MARGIN / NINE_IN_TEN
"""Assumed scatter of the ceiling between seeds if too few were run to estimate it: nine in ten within the margin."""

SEEDS_TO_ESTIMATE = 3
"""Number of runs on a side from which the scatter is estimated."""

PRIOR_SEEDS = 3.0
"""Weight of the assumed scatter in the estimate, in degrees of freedom."""

Verdict = Literal[
    "higher ceiling", "same ceiling and more efficient", "same ceiling, steeper but later", "ahead where measured",
    "too close to call",
]  # fmt: skip
HIGHER: Verdict = "higher ceiling"
EFFICIENT: Verdict = "same ceiling and more efficient"
LATER: Verdict = "same ceiling, steeper but later"
AHEAD: Verdict = "ahead where measured"
UNDECIDED: Verdict = "too close to call"

Winner = Literal["first", "second"]

LEAD = 0.9
"""Probability from which a side is called ahead."""

PROBABLE = 0.75
"""Probability from which a side is called probably ahead."""

GRID = 8
"""Number of amounts of compute at which the levels measured so far are compared."""

MOST_SEEDS = 10
"""Largest number of seeds per side that is suggested."""

TEST_LEVEL = 0.05
"""Two sides differ if zero lies outside the central 1 - TEST_LEVEL of the posterior of their difference."""

SHARED_CLIMB = 0.8
"""Share of the climb at which compute is compared if no level is given."""

OWN_CEILINGS = np.array([-1.463, -0.599, 0.0, 0.599, 1.463])
"""Five equally weighted deviates that represent a normal distribution, with mean 0 and variance 1."""


ALIKE = {
    "bounds": ("bounds", "Read them again with one bounds"),
    "axis": ("axis", "Read them again with one axis"),
    "measured": (
        "held-out set and their rule for FLOPs",
        "Evaluate on one held-out set, and on the axis flops compare runs counted by one rule",
    ),
}
"""Fields of curves that must be equal: in words, and what to do if they are not."""

Run = Curve | Fit
"""One run as given by the caller: its curve or its fit."""

Runs = Run | Sequence[Run]
"""One side as given by the caller."""

Sides = tuple[tuple[Fit, ...], tuple[Fit, ...]]
"""Both sides as fits."""


@dataclass(frozen=True)
class Lead:
    """How far the first side is ahead at one amount of compute.

    Example: `Lead(compute=310.0, difference=Estimate(0.051, 0.012, 0.031, 0.071), probability=0.99)`
    """

    compute: float
    """Amount of compute, unit of the axis."""

    difference: Estimate
    """Level of the first side minus level of the second, including the scatter between seeds."""

    probability: float
    """Probability that the first side is ahead there."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(InNotebooks):
    """Differences between the first and the second side, with probabilities, a verdict and advice."""

    verdict: Verdict
    """"higher ceiling", "same ceiling and more efficient", `LATER`, `AHEAD` or "too close to call".

    `LATER` means that the side with the larger B needs more compute for `level`; `AHEAD` that the ceilings are open,
    and one side is ahead at the compute that both have reached, or needs less compute for `level`.
    """

    winner: Winner | None
    """"first" or "second"; None if neither is better."""

    names: tuple[str, str]
    """Names of both sides, as in the sentence."""

    measured: Lead
    """The lead at the compute that both sides have reached."""

    ahead_everywhere: bool
    """Whether the side that is ahead there was never behind at less compute."""

    forecast: Lead
    """The forecast of the lead at the compute that was asked for; by default, twice the compute of `measured`."""

    asymptote_difference: Estimate
    """A of the first side minus A of the second, including the scatter between seeds."""

    probability_higher: float
    """Probability that the first side has the higher ceiling."""

    efficiency_ratio: Estimate
    """B of the first side divided by B of the second, both at `common_asymptote`."""

    probability_more_efficient: float
    """Probability that the first side has the larger B at the common ceiling."""

    common_asymptote: float
    """Mean of all ceilings, weighted by their precision; B is compared at this ceiling."""

    compute_ratio: Estimate
    """Compute of the first side for `level` divided by that of the second; below 1, the first needs less. A run that
    has reached the level did so at one of its points; a draw that stays below it never does. `mean` is the median."""

    probability_less_compute: float
    """Probability that the first side needs less compute for `level`."""

    level: float
    """Metric level at which compute is compared."""

    seed_sd: float
    """Standard deviation of the ceiling between seeds of one recipe."""

    seed_source: str
    """Source of `seed_sd`."""

    next_gains: tuple[NextGain, NextGain]
    """What twice the compute should gain for a run of each side, and what it costs."""

    sides: Sides
    """Fits of both sides."""

    sentence: str
    """The verdict as a sentence with its numbers."""

    advice: str
    """Advice on how to distinguish the sides; empty if they are distinguished."""

    def __str__(self) -> str:
        first, _ = self.names
        curve = self.sides[0][0].curve
        lines = [
            self.sentence,
            *([self.advice] if self.advice else []),
            *(
                f"  lead of {first} {what:<9} {lead.difference} at {curve.text(lead.compute)}, ahead with probability "
                f"{lead.probability:.2f}"
                for what, lead in (("measured", self.measured), ("forecast", self.forecast))
            ),
            f"  ratio of compute needed  {self.compute_ratio} for level {self.level:.3f}",
            f"  difference of ceilings   of these climbs {self.asymptote_difference}, {first} higher with probability "
            f"{self.probability_higher:.2f}",
            f"  ratio of steepness B     {self.efficiency_ratio} at common ceiling {self.common_asymptote:.3f}",
            f"  scatter between seeds    {self.seed_sd:.3f} ({self.seed_source})",
            *(f"  next gain of {name}: {gain}" for name, gain in zip(self.names, self.next_gains, strict=True)),
        ]
        for name, side in zip(self.names, self.sides, strict=True):
            lines += [f"  a run of {name}: {f.posterior.sentences()[0]}" for f in side if f.posterior.stay_probability]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Comparison({self.sentence!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values, with the fits of each side."""
        first, second = ([f.to_dict() for f in side] for side in self.sides)
        numbers = {name: as_json(value) for name, value in vars(self).items() if name != "sides"}
        return {**numbers, "first": first, "second": second}


def compare(
    first: Runs,
    second: Runs,
    level: float | None = None,
    siblings: Sequence[Runs] = (),
    names: tuple[str, str] = ("the first", "the second"),
    price: float | None = None,
    at: float | str | None = None,
) -> Comparison:
    """Compare two recipes by their runs.

    Args:
        first: One or several seeds of one recipe, as curves or fits.
        second: One or several seeds of the other recipe.
        level: Metric level at which compute is compared; None: four fifths of the climb to the level that both sides
            have reached.
        siblings: Runs of other recipes with the same scatter between seeds, such as the other arms of a study; used
            only to estimate this scatter.
        names: Names of both sides in the sentence.
        price: Price of a device-hour; None: costs are in device-hours.
        at: Compute at which the lead is forecast: in the unit of the axis, or as a multiple of the compute that both
            sides have reached, "4x". None: twice that, and the sentence does not mention it.

    Raises:
        CurveError: A side is empty, the curves have different metrics or compute axes, the level is outside the
            metric's bounds, or `at` or the price cannot be used.
    """
    sides = as_fits(first), as_fits(second)
    others = tuple(as_fits(runs) for runs in siblings)
    check_alike([f.curve for side in (*sides, *others) for f in side])
    for side in sides:
        checked_price(price, with_hours_of([f.curve for f in side]))
    rng = np.random.default_rng(0)
    width = float(np.ptp(sides[0][0].curve.bounds))
    seed_D, source = seed_scatter((*sides, *others), width, rng)
    # shuffled, so that the draws of different runs are independent
    asymptote_D = [side_mean([rng.permutation(recipe_ceilings(f)) for f in side], seed_D, rng) for side in sides]
    difference_D = asymptote_D[0] - asymptote_D[1]
    seed_sd = float(np.median(seed_D))
    common = common_ceiling([f for side in sides for f in side], seed_sd)
    log_b_D = [np.mean([log_efficiency(f.curve, common, seed_sd, rng) for f in side], axis=0) for side in sides]
    ratio_D = log_b_D[0] - log_b_D[1]
    common_level = shared_level(sides) if level is None else float(level)
    first_D, second_D = (log_compute_needed(side, common_level, seed_D, rng) for side in sides)
    needed_D = first_D - second_D
    shorter = min((max(side, key=lambda f: f.last_compute) for side in sides), key=lambda f: f.last_compute)
    common_compute = shorter.last_compute
    measured = lead_at(sides, common_compute, seed_D, rng)
    at_twice = lead_at(sides, 2 * common_compute, seed_D, rng)
    verdict, winner = verdict_of(difference_D, ratio_D, needed_D, MARGIN * width)
    if verdict == UNDECIDED:
        verdict, winner = measured_verdict(measured, needed_D)
    result = Comparison(
        verdict=verdict,
        winner=winner,
        names=names,
        measured=measured,
        ahead_everywhere=never_behind(sides, common_compute, measured.difference.mean, MARGIN * width),
        forecast=at_twice if at is None else lead_at(sides, amount(at, shorter), seed_D, rng),
        asymptote_difference=summarize(difference_D),
        probability_higher=float((difference_D > 0).mean()),
        efficiency_ratio=summarize_ratio(ratio_D),
        probability_more_efficient=float((ratio_D > 0).mean()),
        common_asymptote=common,
        compute_ratio=replace(summarize_ratio(needed_D), mean=float(np.exp(np.median(needed_D)))),
        probability_less_compute=float((needed_D < 0).mean()),
        level=common_level,
        seed_sd=seed_sd,
        seed_source=source,
        next_gains=(next_gain(sides[0], price), next_gain(sides[1], price)),
        sides=sides,
        sentence="",
        advice="" if verdict not in (UNDECIDED, AHEAD) else what_would_decide(sides, at_twice, seed_sd, MARGIN * width),
    )
    same = float((np.abs(difference_D) < MARGIN * width).mean())
    return replace(result, sentence=comparison_sentence(result, same, MARGIN * width, at is not None))


def side_levels(side: Sequence[Fit], compute: ArrayLike, rng: np.random.Generator) -> Array:
    """Return draws of the mean level of the runs of a side at amounts of compute, shape (M, D)."""
    return np.asarray(np.mean([rng.permutation(f.levels(compute), axis=1) for f in side], axis=0))


def side_band(side: Sequence[Fit], compute_M: Array, seed_sd: float) -> Band:
    """Return the mean level of the runs of a side and its 90% band, as `lead_at` has them, at amounts of compute."""
    rng = np.random.default_rng(0)
    levels_MD = side_levels(side, compute_M, rng)
    scatter_D = seed_sd / np.sqrt(len(side)) * rng.standard_normal(levels_MD.shape[1])
    around_MD = np.clip(levels_MD + scatter_D, *side[0].curve.bounds)
    low_M, high_M = np.quantile(around_MD, TAILS, axis=1)
    return Band(compute_M, levels_MD.mean(axis=1), low_M, high_M, around_MD.std(axis=1))


def lead_at(sides: Sides, compute: float, seed_D: Array, rng: np.random.Generator) -> Lead:
    """Return the lead of the first side at one amount of compute, with the scatter between seeds."""
    (difference_D,) = side_levels(sides[0], compute, rng) - side_levels(sides[1], compute, rng)
    per_side = sum(1.0 / len(side) for side in sides)
    difference_D = difference_D + seed_D * np.sqrt(per_side) * rng.standard_normal(len(seed_D))
    return Lead(compute, summarize(difference_D), float((difference_D > 0).mean()))


def never_behind(sides: Sides, compute: float, lead: float, margin: float) -> bool:
    """Return whether the side that leads at a compute was never behind before, by more than a quarter of the margin."""
    least = max(f.curve.compute[f.curve.compute > 0][0] for side in sides for f in side)
    grid_M = np.geomspace(min(least, compute), compute, GRID)
    first_M, second_M = (np.mean([f.mean(grid_M) for f in side], axis=0) for side in sides)
    return bool((np.sign(lead) * (first_M - second_M) > -margin / 4).all())


def measured_verdict(measured: Lead, needed_D: Array) -> tuple[Verdict, Winner | None]:
    """Return the verdict and the winner by what was measured, if the ceilings are open."""
    for above in (measured.probability, float((needed_D < 0).mean())):
        if max(above, 1.0 - above) >= LEAD:
            return AHEAD, "first" if above > 0.5 else "second"
    return UNDECIDED, None


def as_sides(runs: Runs) -> list[Curve | Fit]:
    """Return one side as a list of curves and fits."""
    several = list(runs) if isinstance(runs, list | tuple) else [runs]
    return [run if isinstance(run, Fit) else checked_curve(run) for run in several]


def as_fits(runs: Runs) -> tuple[Fit, ...]:
    """Return one side as fits."""
    items = as_sides(runs)
    if not items:
        raise CurveError("each side of a comparison needs at least one run; got none")
    return tuple(run if isinstance(run, Fit) else fit(run) for run in items)


def check_alike(curves: Sequence[Curve]) -> None:
    """Check that curves have the same metric and compute axis, and the same held-out set and FLOPs rule if known."""
    for name, (words, cure) in ALIKE.items():
        values = {getattr(curve, name) for curve in curves} - {""}
        if len(values) > 1:
            raise CurveError(f"all runs must share their {words}; got {sorted(map(str, values))}. {cure}")


def recipe_ceilings(f: Fit) -> Array:
    """Return draws of the level at which a run ends, shape (D,): A if it rises, the last level if it stays there."""
    return f.posterior.mean_sample.ends_D


def seed_scatter(sides: Sequence[Sequence[Fit]], width: float, rng: np.random.Generator) -> tuple[Array, str]:
    """Return draws of the standard deviation between seeds, shape (D,), and its source, for any number of sides.

    With three or more seeds on a side, this is the posterior on a grid of values, given each run's ceiling and its
    uncertainty; the prior counts as `PRIOR_SEEDS` seeds with the assumed scatter. Otherwise the scatter is assumed.
    """
    num_draws = len(sides[0][0].draws)
    assumed = ASSUMED_SEED_SD * width
    if max(len(side) for side in sides) < SEEDS_TO_ESTIMATE:
        return np.full(num_draws, assumed), f"assumed: nine in ten seeds within ±{MARGIN * width:g}"
    grid = assumed * np.exp(np.linspace(np.log(0.1), np.log(20), 120))
    # prior: scaled inverse chi-square on the variance, on a grid even in the logarithm
    log_weight = -PRIOR_SEEDS * np.log(grid) - 0.5 * PRIOR_SEEDS * (assumed / grid) ** 2
    for side in sides:
        mean_S = np.array([recipe_ceilings(f).mean() for f in side])
        total_S = np.array([recipe_ceilings(f).var() for f in side])[:, None] + grid**2
        precision = (1 / total_S).sum(axis=0)
        center = (mean_S[:, None] / total_S).sum(axis=0) / precision
        log_weight -= 0.5 * (np.log(total_S) + (mean_S[:, None] - center) ** 2 / total_S).sum(axis=0) + 0.5 * np.log(
            precision
        )
    weight = np.exp(log_weight - log_weight.max())
    draws = rng.choice(grid, size=num_draws, p=weight / weight.sum())
    counts = " and ".join(str(len(side)) for side in sides)
    return draws, f"estimated from {counts if len(sides) == 2 else sum(map(len, sides))} seeds"


def run_weights(asymptote_SD: list[Array], seed_D: Array) -> Array:
    """Return the weight of each run in the mean of its recipe, by its precision, summing to one, shape (S, D)."""
    weight_SD = np.stack([1.0 / (draws.var() + seed_D**2) for draws in asymptote_SD])
    return np.asarray(weight_SD / weight_SD.sum(axis=0))


def side_mean(asymptote_SD: list[Array], seed_D: Array, rng: np.random.Generator) -> Array:
    """Return draws of a recipe's ceiling: the weighted mean of its runs with the scatter between seeds, shape (D,)."""
    recipe_SD = np.stack([draws + seed_D * rng.standard_normal(len(draws)) for draws in asymptote_SD])
    return np.asarray((run_weights(asymptote_SD, seed_D) * recipe_SD).sum(axis=0))


def common_ceiling(fits: Sequence[Fit], seed_sd: float) -> float:
    """Return the mean of the ceilings, weighted by precision; with equal precision it is the paper's plain mean."""
    weights = [1.0 / (recipe_ceilings(f).var() + seed_sd**2) for f in fits]
    return float(np.average([recipe_ceilings(f).mean() for f in fits], weights=weights))


def log_efficiency(curve: Curve, common: float, seed_sd: float, rng: np.random.Generator) -> Array:
    """Return draws of ln B of one run with its ceiling fixed at the common one, shape (D,).

    The ceiling of a run differs from that of its recipe by the scatter between seeds, and B depends strongly on A (a
    shift of A by 0.005 changes B by 5%). The ceiling is therefore fixed at several values around the common one.
    """
    parts = [np.log(held_at(curve, common + seed_sd * deviate)[1].efficiency) for deviate in OWN_CEILINGS]
    return rng.permutation(np.concatenate(parts))


def shared_level(sides: Sides) -> float:
    """Return the level at four fifths of the climb to the level that both sides have reached.

    Closer to a ceiling, the compute for a level is very uncertain.
    """
    start = float(np.mean([f.initial.mean for side in sides for f in side]))
    reached = min(float(np.mean([f.mean(f.last_compute) for f in side])) for side in sides)
    return start + SHARED_CLIMB * (reached - start)


def highest_level(f: Fit) -> float:
    """Return the highest level of the fitted curve so far."""
    return float(f.mean([*f.curve.compute, f.last_compute]).max())


def summarize_ratio(log_D: Array) -> Estimate:
    """Return the estimate of a ratio from draws of its logarithm: geometric mean and quantiles."""
    log = summarize(log_D)
    mean = float(np.exp(log.mean))
    return Estimate(mean, mean * log.sd, float(np.exp(log.low)), float(np.exp(log.high)))


def log_compute_needed(side: Sequence[Fit], level: float, seed_D: Array, rng: np.random.Generator) -> Array:
    """Return draws of the mean ln compute that the runs of a side need for a level, shape (D,)."""
    return np.asarray(np.mean([log_compute_of_run(f, level, seed_D, rng) for f in side], axis=0))


def log_compute_of_run(f: Fit, level: float, seed_D: Array, rng: np.random.Generator) -> Array:
    """Return draws of ln compute that a recipe needs for a level, shape (D,), from one of its runs.

    A run that has reached the level needed no more than its own compute. A draw that stays below the level never
    reaches it. A draw that stays above the level has reached it before.
    """
    low, high = f.curve.bounds
    if not low < level < high:
        raise CurveError(f"level must lie within the metric's bounds ({low:g}, {high:g}); got {level:g}")
    drawn = f.posterior.mean_sample.selected(rng.permutation(len(seed_D)))
    draws, stays_D = drawn.draws, drawn.of(LEVEL.name)
    # a seed scales the whole climb
    share_D = np.clip((level - draws.initial) / np.maximum(draws.asymptote - draws.initial, 1e-9), 0, 1)
    target_D = level + share_D * seed_D * rng.standard_normal(len(seed_D))
    needed_D = draws.compute_for(target_D)
    needed_D = np.where(stays_D & (target_D <= draws.asymptote), f.last_compute, needed_D)
    if level <= highest_level(f):
        needed_D = np.minimum(needed_D, f.last_compute)
    return np.asarray(np.log(np.clip(needed_D, 1e-3 * f.last_compute, 1e6 * f.last_compute)))


def verdict_of(difference_D: Array, ratio_D: Array, needed_D: Array, margin: float) -> tuple[Verdict, Winner | None]:
    """Return the verdict and the winner: ceilings first, efficiency only if they are the same within the margin."""
    if surely_not_zero(difference_D):
        return HIGHER, "first" if difference_D.mean() > 0 else "second"
    if (np.abs(difference_D) < margin).mean() > 0.5 and surely_not_zero(ratio_D):
        if surely_not_zero(needed_D) and ratio_D.mean() * needed_D.mean() > 0:
            return LATER, None
        return EFFICIENT, "first" if ratio_D.mean() > 0 else "second"
    return UNDECIDED, None


def surely_not_zero(values_D: Array) -> bool:
    """Return whether zero lies outside the central 1 - TEST_LEVEL of the draws."""
    above = float((values_D > 0).mean())
    return min(above, 1 - above) < TEST_LEVEL / 2


def comparison_sentence(result: Comparison, same: float, margin: float, with_forecast: bool) -> str:
    """Return the comparison as one sentence: measured lead, the lead that was asked for, cost, ceiling.

    `same` is the probability that the ceilings are within the margin of each other; `margin` is in the metric's unit.
    What decides stands first if it is not the measured lead.
    """
    curve, compute = result.sides[0][0].curve, compute_clause(result)
    lead, p = result.measured, max(result.measured.probability, 1.0 - result.measured.probability)
    leader, other = result.names if lead.probability > 0.5 else result.names[::-1]
    by, at = abs(lead.difference.mean), curve.text(lead.compute)
    if p >= LEAD:
        place = f"at every compute measured, at {at} by" if result.ahead_everywhere else f"at {at}, by"
        head = f"{leader} is ahead of {other} {place} {by:.3f} ({p:.2f})"
    elif p >= PROBABLE:
        head = f"{leader} is probably ahead of {other} at {at}, by {by:.3f} ({p:.2f})"
    else:
        both = f"{result.names[0]} and {result.names[1]}"
        close = "about level" if result.winner else "too close to call"
        head = f"{both} are {close} at {at} ({p:.2f} for {leader} to be ahead)"
    asked = forecast_clause(result) if with_forecast else ""
    clauses = [head, asked, compute, ceiling_clause(result, same, margin)]
    if result.winner and p < PROBABLE:
        decides = compute if result.verdict == AHEAD else clauses[-1]
        clauses.sort(key=lambda clause: clause != decides)
    text = "; ".join(filter(None, clauses))
    # the name of a run is written as it is
    return (text[0].upper() + text[1:] if text.startswith("the ") else text) + "."


def forecast_clause(result: Comparison) -> str:
    """Return who is forecast to be ahead at the compute that was asked for."""
    lead, curve = result.forecast, result.sides[0][0].curve
    first = lead.probability > 0.5
    of = lead.difference if first else reversed_of(lead.difference)
    return (
        f"at {curve.text(lead.compute)}, {result.names[0 if first else 1]} should be ahead by "
        f"{of:{curve.level_format}} with probability {max(lead.probability, 1.0 - lead.probability):.2f}"
    )


def reversed_of(difference: Estimate) -> Estimate:
    """Return a difference with its sides in the other order."""
    return Estimate(-difference.mean, difference.sd, -difference.high, -difference.low)


def compute_clause(result: Comparison) -> str:
    """Return what the cheaper side needs for the level that both have reached; empty if that is open."""
    p, ratio = result.probability_less_compute, result.compute_ratio
    if max(p, 1.0 - p) < LEAD:
        return ""
    cheaper = result.names[0] if p > 0.5 else result.names[1]
    values = (ratio.mean, ratio.low, ratio.high) if p > 0.5 else (1 / ratio.mean, 1 / ratio.high, 1 / ratio.low)
    middle, low, high = (f"{value:.2f}" for value in values)
    unit = result.sides[0][0].curve.unit
    return f"{cheaper} needs {middle} ({low} to {high}) of the {unit} to {result.level:.3f}"


def ceiling_clause(result: Comparison, same: float, margin: float) -> str:
    """Return which ceiling is higher, or that they are the same, or that it is open."""
    p = result.probability_higher
    higher = result.names[0] if p > 0.5 else result.names[1]
    if result.verdict == HIGHER:
        return f"{higher} has the higher ceiling of its climb, by {abs(result.asymptote_difference.mean):.3f}"
    if result.verdict in (EFFICIENT, LATER):
        ratio = result.efficiency_ratio.mean
        steeper, factor = (result.names[0], ratio) if ratio > 1 else (result.names[1], 1 / ratio)
        but = ", but later" if result.verdict == LATER else ""
        steep = f"{steeper} is steeper (B {factor:.2f} times as large){but}"
        return f"the ceilings of these climbs are the same within ±{margin:g} ({same:.2f}), and {steep}"
    if same >= PROBABLE:
        return f"the ceilings of these climbs are the same within ±{margin:g} ({same:.2f})"
    return f"which climb has the higher ceiling is open ({max(p, 1.0 - p):.2f} for {higher})"


def what_would_decide(sides: Sides, at_twice: Lead, seed_sd: float, margin: float) -> str:
    """Return what would decide which ceiling is higher: more compute, or more seeds."""
    fallen = [f for side in sides for f in side if f.posterior.fallen]
    if fallen:
        return f"To decide it: {len(fallen)} of the runs have fallen; find the cause and repeat those runs."
    unknown = [f for side in sides for f in side if not f.identified]
    goal = max(abs(at_twice.difference.mean), margin)
    fit_variance = float(np.mean([f.asymptote.sd**2 for side in sides for f in side if f.identified] or [0.0]))
    needed = int(np.ceil(2 * (seed_sd**2 + fit_variance) * (1.96 / goal) ** 2))
    seeds = min(len(side) for side in sides)
    if seeds < needed <= MOST_SEEDS:
        compute = "twice the compute, or " if unknown else ""
        return f"To decide it: {compute}about {needed} seeds per side, for a difference of {goal:.3f}."
    if seeds >= needed and unknown:
        return "To decide which ceiling is higher: twice the compute; more seeds alone would not."
    return f"If the ceilings differ, it is by less than {goal:.3f} at twice the compute. Choose by cost."
