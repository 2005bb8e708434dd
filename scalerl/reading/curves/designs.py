"""Designs the evaluations of a run before it starts: what its curve will tell, and what more evaluations would buy.

Runs are simulated with the noise of their evaluations and fitted like real ones (`fit`), so that every number is that
which a user would be shown. The same arguments always give the same numbers.

Axes in names: M evaluations, W simulated runs (worlds), S seeds of a recipe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from scalerl.reading.curves.comparison import ASSUMED_SEED_SD, MARGIN, MOST_SEEDS, TEST_LEVEL, seed_scatter
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import TAILS, as_json, percent, short_number
from scalerl.reading.curves.fit import Fit, fit
from scalerl.reading.curves.law import Array, Draws, joined_draws, plain_draws
from scalerl.reading.curves.noise import OTHER_NOISE, binomial, evaluations
from scalerl.reading.curves.price import Cost, checked_price, cost_of, with_hours_of
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.tables.errors import CurveError

WORLDS = 40
"""Runs that are simulated for each design."""

ENOUGH_PROBABILITY = 0.8
"""Probability from which a design is recommended, as for advice that is sure."""

COUNTS = (11, 26, 51, 101)
"""Numbers of evaluations that are tried, in this order, the one before training included."""

OTHERWISE = COUNTS[2]
"""Smallest number of evaluations that is recommended if no number is enough."""

MOST_EVALUATIONS = 10_000
"""Largest number of evaluations of a design."""

WITHIN_PROMPTS = 0.5
"""Share of the variance of an answer that is drawn again at each evaluation of fixed prompts.

The rest lies between prompts: some are easier. It shifts the whole curve, and is measured by no evaluation of them."""

DRIFT_SD = 0.005
"""Scatter of the level with the weights, beyond sampling, as a share of the range; assumed without past runs."""

DRIFT_LENGTH = 0.07
"""Compute over which this scatter is correlated, as a share of the budget; assumed without past runs."""

EXPECTED_CLIMB = {"asymptote": 0.61, "efficiency": 1.92, "midpoint": 2542 / 16_000, "initial": 0.2}
"""The climb that is assumed without past runs: that of arXiv 2510.13786, C_mid as a share of the budget."""

EXPECTED_SPREAD = {"asymptote": 0.1, "efficiency": 0.2, "midpoint": 0.3, "initial": 0.05}
"""Standard deviation of these assumptions between simulated runs; of ln B and ln C_mid."""

LEAST_CLIMB = 0.1
"""Smallest A - R0 of an assumed climb, as a share of the range."""

TOLD_APART = 2.0
"""Standard errors from which two designs differ over the simulated runs."""

RESAMPLED = 4000
"""Comparisons that are drawn from the simulated runs for the power of a number of seeds."""


@dataclass(frozen=True)
class Evaluations:
    """How a run is evaluated.

    Example: `Evaluations(count=51, prompts=200, samples=4)`
    """

    count: int
    """Number of evaluations, the one before training included."""

    prompts: int
    """Held-out prompts of one evaluation."""

    samples: int
    """Samples of each prompt."""

    def __post_init__(self) -> None:
        limits = {"count": (MIN_POINTS, MOST_EVALUATIONS), "prompts": (1, 10**7), "samples": (1, 10**5)}
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not (isinstance(value, int) and least <= value <= most):
                what = {"count": "the number of evaluations", "prompts": "prompts", "samples": "samples"}[name]
                raise CurveError(f"{what} must be a whole number from {least} to {most:,}; got {value}")

    @property
    def completions(self) -> int:
        """Completions of all evaluations."""
        return self.count * self.prompts * self.samples

    def __str__(self) -> str:
        return f"{self.count} x {self.prompts:,} prompts x {self.samples}"


@dataclass(frozen=True)
class EvaluationNoise:
    """The noise of an evaluation as a function of its size.

    Sampling noise falls with prompts x samples. The level also scatters with the weights: neighbors in compute scatter
    together, so that more evaluations of one run average less of it than their number says.
    """

    sampling: float = WITHIN_PROMPTS
    """Variance of one answer at fixed prompts, as a share of p(1 - p)."""

    drift_sd: float = DRIFT_SD
    """Standard deviation of the level with the weights, as a share of the range."""

    drift_length: float = math.nan
    """Compute over which this is correlated, in the unit of the axis; NaN: `DRIFT_LENGTH` of the budget."""

    source: str = "assumed"
    """Where the numbers are from."""

    def sampling_sd(self, level: Array, size: Evaluations, low: float, high: float) -> Array:
        """Return the standard deviation of the answers' mean at each level, in the metric's unit, of its shape."""
        answers = size.prompts * size.samples
        return np.asarray((high - low) * np.sqrt(self.sampling * binomial(level, low, high) / answers))

    def observed(
        self, levels_MW: Array, spacing: float, size: Evaluations, bounds: tuple[float, float], budget: float
    ) -> Array:
        """Return evaluations of the levels of simulated runs, shape (M, W), within the bounds of the metric."""
        rng, (low, high) = np.random.default_rng(5), bounds
        length = self.drift_length if math.isfinite(self.drift_length) else DRIFT_LENGTH * budget
        phi = math.exp(-spacing / max(length, 1e-9 * spacing))
        fresh_MW = rng.standard_normal(levels_MW.shape)
        drift_MW = fresh_MW.copy()
        for m in range(1, len(drift_MW)):
            drift_MW[m] = phi * drift_MW[m - 1] + math.sqrt(1.0 - phi * phi) * fresh_MW[m]
        moved_MW = np.clip(levels_MW + (high - low) * self.drift_sd * drift_MW, low, high)
        return evaluations(moved_MW, self.sampling_sd(levels_MW, size, low, high), low, high, rng)


@dataclass(frozen=True, eq=False)
class Expected:
    """The runs that are expected: draws of their curves, and the noise of their evaluations."""

    worlds: Draws
    """W curves."""

    noise: EvaluationNoise
    """Noise of their evaluations."""

    source: str
    """Where the curves are from, in words."""

    like: Curve
    """A curve with the axis, the bounds and the device-hours of the runs; its points are not used."""

    seed_sd: float
    """Scatter of the ceiling between seeds of one recipe, in the metric's unit."""

    seed_source: str
    """Where the scatter is from."""

    def text(self) -> str:
        """Return the middle of the expected curves as text."""
        a, b, r0 = (float(np.median(getattr(self.worlds, name))) for name in ("asymptote", "efficiency", "initial"))
        middle = self.like.text(float(np.median(self.worlds.midpoint)))
        return f"A {a:.3g}, B {b:.3g}, C_mid {middle}, R0 {r0:.3g} ({self.source})"


@dataclass(frozen=True, eq=False)
class Prospect:
    """What the curve of a run with one design will tell, over the simulated runs.

    Half widths are those of 90% intervals, and medians over the runs.
    """

    evaluations: Evaluations
    """The design."""

    budget: float
    """Compute of the run, unit of the axis."""

    identified: float
    """Share of the simulated runs whose ceiling is identified."""

    asymptote_within: float
    """90% of estimates of A are within this, in the metric's unit."""

    forecast_within: float
    """Half width of the interval of the level at twice the budget."""

    other_prompts_within: float
    """Half width of the level of other prompts of the same kind around that of these prompts."""

    noise_sd: float
    """Standard deviation of one evaluation at the end of the run."""

    share: float
    """Completions of the evaluations, as a share of those of training; NaN if unknown."""

    cost: Cost | None
    """What the evaluations cost; None if the share is unknown."""

    error_W: Array
    """Errors of A of each simulated run."""

    sd_W: Array
    """Standard deviations of A of each."""

    def narrows(self, other: Prospect) -> float:
        """Return by how much this design narrows A against another, in standard errors, over the same simulated runs.

        Below 2, the simulation does not tell them apart.
        """
        less_W = np.log(other.sd_W / self.sd_W)
        return float(less_W.mean() / (less_W.std() / math.sqrt(len(less_W)) + 1e-12))

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        values = {name: as_json(value) for name, value in vars(self).items() if name not in ("error_W", "sd_W")}
        return {**values, "completions": self.evaluations.completions, "simulated": len(self.error_W)}

    @property
    def count_text(self) -> str:
        """The probability that the ceiling is identified, with the number of runs behind it."""
        return f"{self.identified:.2f} ({round(self.identified * len(self.error_W))} of {len(self.error_W)} runs)"

    @property
    def price_text(self) -> str:
        """The cost of the evaluations in words."""
        share = f" ({percent(self.share)} of those of training)" if math.isfinite(self.share) else ""
        has_price = self.cost is not None and (math.isfinite(self.cost.device_hours) or math.isfinite(self.cost.money))
        return f"{self.evaluations.completions:,} completions{share}{f', about {self.cost}' if has_price else ''}"


@dataclass(frozen=True)
class Power:
    """How well two recipes are told apart with a number of seeds each.

    Example: `Power(seeds=4, budget=16000.0, power=0.83, false_alarms=0.04, cost=Cost(...))`
    """

    seeds: int
    """Runs of each recipe."""

    budget: float
    """Compute of each run, unit of the axis."""

    power: float
    """Probability that the better recipe is found to have the higher ceiling."""

    false_alarms: float
    """Probability that equal recipes are called different."""

    cost: Cost
    """What all runs and their evaluations cost."""


@dataclass(frozen=True)
class TwoRecipes:
    """What it takes to tell two recipes apart."""

    difference: float
    """Difference of their ceilings, in the metric's unit."""

    best: Power
    """The cheapest number of seeds and budget with enough power; without any, the most powerful."""

    options: tuple[Power, ...]
    """The number of seeds that each budget needs, the best one included."""

    sentence: str
    """What to do, with its probability and its cost."""


@dataclass(frozen=True, eq=False)
class RunDesign:
    """A design with its alternatives."""

    sentence: str
    """What to do, how sure its success is, and what it costs."""

    recommended: Prospect
    """The design to use."""

    alternatives: dict[str, Prospect]
    """What it was compared with, by name."""

    expected: Expected
    """The runs that are expected."""

    best_buy: str
    """What buys most for the cost of twice the evaluations."""

    two_recipes: TwoRecipes | None
    """What tells two recipes apart, if a difference was given."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        expected = self.expected
        middles = {
            name: float(np.median(getattr(expected.worlds, name)))
            for name in ("asymptote", "efficiency", "midpoint", "initial")
        }
        return {
            "sentence": self.sentence,
            "recommended": self.recommended.to_dict(),
            "alternatives": {name: option.to_dict() for name, option in self.alternatives.items()},
            "best_buy": self.best_buy,
            "expected": {**middles, "source": expected.source},
            "noise": as_json(expected.noise),
            "seed_sd": expected.seed_sd,
            "seed_source": expected.seed_source,
            "axis": expected.like.axis,
            "two_recipes": as_json(self.two_recipes),
        }

    def __str__(self) -> str:
        like, noise = self.expected.like, self.expected.noise
        rows: list[tuple[str, ...]] = [("", "A within", "2x within", "identified", "completions")]
        for name, option in {"recommended": self.recommended, **self.alternatives}.items():
            alike = option is not self.recommended and abs(option.narrows(self.recommended)) < TOLD_APART
            values = (f"±{option.asymptote_within:.3f}{' ~' if alike else ''}", f"±{option.forecast_within:.3f}")
            share = f" ({percent(option.share)})" if math.isfinite(option.share) else ""
            what = f"{name}: {option.evaluations} to {like.text(option.budget)}"
            rows.append((what, *values, f"{option.identified:.2f}", f"{option.evaluations.completions:,}{share}"))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines = [
            *([self.two_recipes.sentence] if self.two_recipes else []),
            self.sentence,
            f"expected  {self.expected.text()}",
            f"noise     {self.recommended.noise_sd:.4f} of one evaluation ({noise.source}); other prompts of this kind "
            f"differ by ±{self.recommended.other_prompts_within:.3f}, which more prompts reduce",
            *table,
            *(["~ the simulated runs do not tell this from the recommended design"] if "~" in "".join(table) else []),
            self.best_buy,
        ]
        if self.two_recipes:
            lines += [
                f"  {option.seeds} seeds of each recipe to {like.text(option.budget)}: power {option.power:.2f}, "
                f"false alarms {option.false_alarms:.2f}, for {option.cost}"
                for option in self.two_recipes.options
            ]
            lines.append(f"  scatter between seeds {self.expected.seed_sd:.3f} ({self.expected.seed_source})")
        return "\n".join(lines)


def expected_curve(budget: float, axis: str = "device_hours") -> Expected:
    """Return runs whose curves scatter around the climb of the paper's.

    Args:
        budget: Compute of the planned run, which sets C_mid.
        axis: Name of the compute axis.

    Raises:
        CurveError: The budget is not above 0.
    """
    check_positive("the budget", budget)
    rng = np.random.default_rng(6)
    # each quantile once
    deviates = {name: normal_deviate((rng.permutation(WORLDS) + 0.5) / WORLDS) for name in EXPECTED_CLIMB}
    a_W, b_W, c_W, r0_W = (EXPECTED_SPREAD[name] * deviate_W for name, deviate_W in deviates.items())
    asymptote, efficiency, midpoint, initial = EXPECTED_CLIMB.values()
    ceiling_W, none_W = np.clip(asymptote + a_W, 0.01, 1.0), np.zeros(WORLDS)
    worlds = plain_draws(
        asymptote=ceiling_W, efficiency=efficiency * np.exp(b_W), midpoint=budget * midpoint * np.exp(c_W),
        initial=np.minimum(np.clip(initial + r0_W, 0.01, 1.0), ceiling_W - LEAST_CLIMB).clip(0.0),
        autocorrelation=none_W, noise_sd=none_W, most=1.0,
    )  # fmt: skip
    like = Curve([0.0, budget], [0.0, 0.0], axis=axis)
    seeds = f"assumed: nine in ten within ±{MARGIN:g}"
    return Expected(worlds, EvaluationNoise(), "assumed like the paper's", like, ASSUMED_SEED_SD, seeds)


def normal_deviate(probability: Array) -> Array:
    """Return the normal deviates of probabilities."""
    from scipy.special import ndtri

    return np.asarray(ndtri(probability))


def expected_of_runs(
    fits: Sequence[Fit], sizes: Sequence[tuple[int, int] | None] = (), planned: tuple[int, int] = (1000, 4)
) -> Expected:
    """Return the runs that are expected from past ones: draws of their curves, and their noise.

    Args:
        fits: Fits of past runs.
        sizes: Prompts and samples of an evaluation of each; None, or no entry: unknown.
        planned: Prompts and samples of the planned evaluations, which unknown ones are assumed to have had.

    Raises:
        CurveError: There is no run, or the runs have different axes or bounds.
    """
    if not fits:
        raise CurveError("got no run; give past runs, or the numbers of a curve")
    like = fits[0].curve
    for f in fits[1:]:
        if (f.curve.axis, f.curve.bounds) != (like.axis, like.bounds):
            raise CurveError(
                f"all runs must share axis and bounds; got {like.axis} in {like.bounds} and {f.curve.axis} in "
                f"{f.curve.bounds}"
            )
    counts = np.diff(np.round(np.linspace(0, WORLDS, len(fits) + 1)).astype(int))
    worlds = joined_draws([f.draws.evenly(int(count)) for f, count in zip(fits, counts, strict=True) if count])
    seed_D, seed_source = seed_scatter([list(fits)], float(np.ptp(like.bounds)), np.random.default_rng(0))
    all_sizes = [*sizes, *[None] * (len(fits) - len(sizes))]
    assumed = "" if all(all_sizes) else f"; with {planned[0]:,} prompts x {planned[1]}, as planned"
    noise = noise_of_runs(fits, [size or planned for size in all_sizes], f"measured{assumed}")
    source = f"the fit{'s of' if len(fits) > 1 else ' of'} {len(fits)} run{'s' if len(fits) > 1 else ''}"
    like = with_hours_of([f.curve for f in fits])
    return Expected(worlds, noise, source, like, float(np.median(seed_D)), seed_source)


def noise_of_runs(fits: Sequence[Fit], sizes: Sequence[tuple[int, int]], source: str) -> EvaluationNoise:
    """Return the noise that runs have shown: what sampling explains, and the scatter with the weights."""
    sampling, drift, length = [], [], []
    for f, (prompts, samples) in zip(fits, sizes, strict=True):
        bounds = f.curve.bounds
        total = (f.noise_sd / float(np.ptp(bounds))) ** 2
        by_sampling = WITHIN_PROMPTS * float(binomial(f.curve.metric, *bounds).mean()) / (prompts * samples)
        # sampling may explain more than there is, because greedy answers do not vary
        explained = min(by_sampling, (1.0 - OTHER_NOISE) * total)
        sampling.append(WITHIN_PROMPTS * explained / by_sampling)
        drift.append(total - explained)
        # white sampling noise lowers the correlation of neighbors below that of the scatter
        phi = min(max(f.autocorrelation * total / (total - explained), 1e-3), 0.95)
        length.append(float(np.median(np.diff(f.curve.compute))) / -math.log(phi))
    return EvaluationNoise(float(np.mean(sampling)), math.sqrt(float(np.mean(drift))), float(np.median(length)), source)


def check_positive(name: str, value: float) -> None:
    """Raise if a number is not finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise CurveError(f"{name} must be a number above 0; got {value:g}")


def prospect(
    expected: Expected,
    budget: float,
    size: Evaluations,
    completions: float = math.nan,
    price: float | None = None,
) -> Prospect:
    """Simulate runs with a design, fit each, and return what their curves tell.

    Args:
        expected: The runs that are expected.
        budget: Compute of each run, unit of the axis.
        size: How the runs are evaluated, at equal distances.
        completions: Completions that this budget trains; NaN: unknown.
        price: Price of a device-hour.
    """
    like, bounds = expected.like, expected.like.bounds
    compute_M = np.linspace(0.0, budget, size.count)
    levels_MW = expected.worlds.levels(compute_M)
    metric_MW = expected.noise.observed(levels_MW, budget / (size.count - 1), size, bounds, budget)
    fits = [fit(Curve(compute_M, metric_M, bounds, axis=like.axis)) for metric_M in metric_MW.T]
    twice = [f.predict([2.0 * budget]) for f in fits]
    share = size.completions / completions
    last_W = levels_MW[-1]
    sd_W = expected.noise.sampling_sd(last_W, size, *bounds)
    drift = float(np.ptp(bounds)) * expected.noise.drift_sd
    between_W = np.ptp(bounds) * np.sqrt((1.0 - WITHIN_PROMPTS) * binomial(last_W, *bounds) / size.prompts)
    deviate = float(normal_deviate(np.array(TAILS[1])))
    return Prospect(
        evaluations=size,
        budget=budget,
        identified=float(np.mean([f.identified for f in fits])),
        # of this climb: the interval of A includes climbs that no evaluation can exclude
        asymptote_within=deviate * float(np.median([f.asymptote.sd for f in fits])),
        forecast_within=float(np.median([band.high[0] - band.low[0] for band in twice])) / 2,
        other_prompts_within=deviate * float(np.median(between_W)),
        noise_sd=float(np.sqrt(np.median(sd_W) ** 2 + drift**2)),
        share=share,
        cost=cost_of(like, share * budget, price=price) if math.isfinite(share) else None,
        error_W=np.array([f.asymptote.mean for f in fits]) - expected.worlds.asymptote,
        sd_W=np.array([f.asymptote.sd for f in fits]),
    )


def design(
    expected: Expected,
    budget: float,
    *,
    count: int | None = None,
    prompts: int = 1000,
    samples: int = 4,
    completions: float = math.nan,
    difference: float | None = None,
    price: float | None = None,
) -> RunDesign:
    """Return how to evaluate a run so that its ceiling will be identified, and what alternatives would tell.

    Args:
        expected: The runs that are expected, from `expected_curve` or `expected_of_runs`.
        budget: Compute of the run, unit of the axis.
        count: Evaluations of the run, the one before training included; None: the smallest number of `COUNTS` that is
            enough.
        prompts: Held-out prompts.
        samples: Samples of each prompt.
        completions: Completions that the budget trains; NaN: unknown, costs are then completions only.
        difference: Difference of the ceilings of two recipes that are to be told apart, in the metric's unit.
        price: Price of a device-hour.

    Raises:
        CurveError: A number is outside its range.
    """
    check_positive("the budget", budget)
    checked_price(price, expected.like)
    if not math.isnan(completions):
        check_positive("completions", completions)
    width = float(np.ptp(expected.like.bounds))
    if difference is not None and not 0 < difference < width:
        raise CurveError(f"the difference of the ceilings must lie between 0 and {width:g}; got {difference:g}")

    def look(size: Evaluations, factor: float = 1.0) -> Prospect:
        return prospect(expected, factor * budget, size, factor * completions, price)

    requested = None if count is None else look(Evaluations(count, prompts, samples))
    tried = [requested] if requested else []
    for number in COUNTS:
        if (tried and tried[-1].identified >= ENOUGH_PROBABILITY) or (count is not None and number <= count):
            continue
        tried.append(look(Evaluations(number, prompts, samples)))
    enough = tried[-1].identified >= ENOUGH_PROBABILITY
    best = tried[-1] if enough else next(option for option in tried if option.evaluations.count >= OTHERWISE)
    size = best.evaluations
    others = {"as asked": requested} if requested is not None and requested is not best else {}
    for name, change in alternatives_of(size).items():
        others[name] = look(change)
    others["twice the compute"] = longer = look(size, 2.0)
    apart = None
    if difference is not None:
        apart = two_recipes(expected, [look(size, 0.5), best, longer], difference, price)
    return RunDesign(
        sentence=design_sentence(best, tried, longer, expected.like, keep=requested is best),
        recommended=best,
        alternatives=others,
        expected=expected,
        best_buy=best_buy(best, others),
        two_recipes=apart,
    )


DOUBLED = ("twice the evaluations", "twice the prompts", "twice the samples")
"""The changes of a design that double its completions."""


def alternatives_of(size: Evaluations) -> dict[str, Evaluations]:
    """Return the designs that are compared with one: half and twice the evaluations, and as much in other ways."""
    half, twice = (size.count + 1) // 2, 2 * size.count - 1
    changes = {"half the evaluations": replace(size, count=half)} if half >= MIN_POINTS else {}
    if twice <= MOST_EVALUATIONS:
        changes[DOUBLED[0]] = replace(size, count=twice)
    changes[DOUBLED[1]] = replace(size, prompts=2 * size.prompts)
    return {**changes, DOUBLED[2]: replace(size, samples=2 * size.samples)}


def design_sentence(best: Prospect, tried: Sequence[Prospect], longer: Prospect, like: Curve, keep: bool) -> str:
    """Return what to do, how sure it is that this identifies the ceiling, and what it costs, as one sentence."""
    size, spacing = best.evaluations, like.text(best.budget / (best.evaluations.count - 1))
    how = f"{size.count} evaluations, one every {spacing}, of {size.prompts:,} prompts x {size.samples} samples"
    if best.identified >= ENOUGH_PROBABILITY:
        verb = "Keep" if keep else "Plan"
        return f"{verb} {how}: they identify the ceiling with probability {best.count_text}, for {best.price_text}."
    most = max(tried, key=lambda option: option.identified)
    reason = (
        f"{most.evaluations.count} evaluations to {like.text(most.budget)} identify it with probability "
        f"{most.count_text}"
    )
    if longer.identified >= ENOUGH_PROBABILITY:
        return (
            f"Train to {like.text(longer.budget)} to know the ceiling, with probability {longer.count_text} from "
            f"{longer.evaluations.count} evaluations: {reason}; {longer.price_text}."
        )
    return (
        f"Do not plan with the ceiling: {reason}. Plan {how}, and decide by the level at twice the compute, which they "
        f"give within ±{best.forecast_within:.3f}, for {best.price_text}."
    )


def best_buy(best: Prospect, others: dict[str, Prospect]) -> str:
    """Return which change at the cost of twice the evaluations narrows A most, as a sentence."""
    same = {name: option for name, option in others.items() if name in DOUBLED}
    most = min(same.values(), key=lambda option: option.asymptote_within)
    more = most.evaluations.completions - best.evaluations.completions
    if most.narrows(best) < TOLD_APART:
        return f"Another {more:,} completions narrow A by less than the simulation can tell."
    # what costs the same and is not told from the best
    equal = [other for other, option in same.items() if option is most or most.narrows(option) < TOLD_APART]
    return (
        f"For another {more:,} completions, {' or '.join(equal)} narrow A most, from ±{best.asymptote_within:.3f} to "
        f"±{most.asymptote_within:.3f}."
    )


def two_recipes(
    expected: Expected, prospects: Sequence[Prospect], difference: float, price: float | None
) -> TwoRecipes:
    """Return the cheapest seeds and budget with which two recipes are told apart, and what other budgets need.

    `prospects` are those of runs to several budgets; `difference` is that of the ceilings.
    """
    options = [needed_seeds(expected, option, difference, price) for option in prospects]
    enough = [option for option in options if option.power >= ENOUGH_PROBABILITY]
    best = (
        min(enough, key=lambda option: option.cost.compute) if enough else max(options, key=lambda option: option.power)
    )
    like = expected.like
    plural = "s" if best.seeds > 1 else ""
    how = f"{best.seeds} seed{plural} of each recipe to {like.text(best.budget)}"
    runs = f"{2 * best.seeds} runs and {best.cost}"
    effect = f"a difference of {short_number(difference)} in A with probability {best.power:.2f}"
    sentence = (
        f"Train {how}: they show {effect}, for {runs}."
        if enough
        else f"A difference of {short_number(difference)} in A needs more than {MOST_SEEDS} seeds: {how} show it with "
        f"probability {best.power:.2f}, for {runs}."
    )
    return TwoRecipes(difference, best, tuple(options), sentence)


def needed_seeds(expected: Expected, run: Prospect, difference: float, price: float | None) -> Power:
    """Return the smallest number of seeds with enough power, or `MOST_SEEDS`."""
    extra = run.share if math.isfinite(run.share) else 0.0
    for seeds in range(1, MOST_SEEDS + 1):
        power, false_alarms = (detection_power(run, expected.seed_sd, seeds, d) for d in (difference, 0.0))
        if power >= ENOUGH_PROBABILITY or seeds == MOST_SEEDS:
            break
    cost = cost_of(expected.like, 2 * seeds * run.budget * (1.0 + extra), price=price)
    return Power(seeds, run.budget, power, false_alarms, cost)


def detection_power(run: Prospect, seed_sd: float, seeds: int, difference: float) -> float:
    """Return the probability that two recipes are called different: the better one, or without a difference either.

    As in `compare`: zero lies outside the central 95% of the difference of the weighted means of both sides.
    """
    rng = np.random.default_rng(7)
    index = rng.integers(len(run.error_W), size=(2, seeds, RESAMPLED))
    scatter = seed_sd * rng.standard_normal(index.shape)
    ceiling, variance = run.error_W[index] + scatter, run.sd_W[index] ** 2 + seed_sd**2
    weight = (1.0 / variance) / (1.0 / variance).sum(axis=1, keepdims=True)
    mean, error = (weight * ceiling).sum(axis=1), (weight**2 * variance).sum(axis=1)
    t = (difference + mean[0] - mean[1]) / np.sqrt(error.sum(axis=0))
    limit = float(normal_deviate(np.array(1.0 - TEST_LEVEL / 2)))
    return float((t > limit).mean() if difference else (np.abs(t) > limit).mean())


@lru_cache(maxsize=64)
def usual_prospect(size: Evaluations) -> Prospect:
    """Return what the curve of a run like the paper's will tell, whatever its budget."""
    return prospect(expected_curve(1.0), 1.0, size)


def enough_evaluations(size: Evaluations) -> Prospect | None:
    """Return what the fewest evaluations tell that identify the ceiling of a usual run, not fewer than these.

    None: `COUNTS` has no number that is enough.
    """
    for count in sorted({size.count, *(count for count in COUNTS if count > size.count)}):
        if (result := usual_prospect(replace(size, count=count))).identified >= ENOUGH_PROBABILITY:
            return result
    return None


def prospect_line(size: Evaluations, share: float) -> str:
    """Return what the evaluations of a planned run will tell, as one line, with what would tell more.

    Args:
        size: Evaluations of the run.
        share: Completions of one evaluation, as a share of those of training.
    """
    now, enough = usual_prospect(size), enough_evaluations(size)
    line = (
        f"curve: {size.count} evaluations of {size.prompts:,} prompts x {size.samples} identify the ceiling of a run "
        f"like the paper's with probability {now.identified:.2f} and give its level at twice the compute within "
        f"±{now.forecast_within:.3f}, for {percent(size.count * share)} of the completions of training"
    )
    if enough is None or enough is now:
        return line
    count = enough.evaluations.count
    return f"{line}; {count} evaluations: {enough.identified:.2f}, for {percent(count * share)} (scalerl design)"
