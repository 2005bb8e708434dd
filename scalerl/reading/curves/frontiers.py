"""What a budget buys: the best setting by one law over many runs (`pool`), where settings cross, which run to buy next.

The law is used if it predicts the runs that are left out better than the nearest run does; otherwise the fit of each
run speaks for its own setting. As in `compare`, levels within `MARGIN` count as the same.

Axes in names: N runs, S settings, D draws, M amounts of compute, K parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.curves.comparison import ASSUMED_SEED_SD, MARGIN
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import TAILS, Estimate, as_json, short_number, summarize
from scalerl.reading.curves.fit import Fit
from scalerl.reading.curves.forecast import Reach, reach
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.pool import Check, Law, levels, pool, pooled
from scalerl.reading.curves.price import Cost, NextGain, checked_price, cost_of, with_hours_of
from scalerl.reading.curves.settings import Setting, check_added, distinct, setting_combinations, setting_text
from scalerl.reading.curves.units import compute_text
from scalerl.reading.tables.errors import CurveError

DECIDED_ABOVE = 0.8
"""Least probability that the best setting is within MARGIN of the true best; below, the answer is "cannot say yet"."""

AROUND = np.geomspace(0.01, 30.0, 41)
"""Amounts of compute at which settings are compared, in budgets."""

TOGETHER = 16
"""Settings whose draws at all amounts of compute are in memory together."""

AROUND_STEP = AROUND[1] / AROUND[0]
"""Ratio of neighboring amounts."""

CROSSING_RANGE = 10.0
"""Crossings are reported within this factor of the budget."""

PRINTED_OPTIONS = 5
"""Number of options that are printed."""

FAR_BUDGET = 8.0
"""Budget above which a note warns, in multiples of the longest run."""

CANDIDATE_LENGTHS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Lengths of the candidates for the next run, in budgets."""

LEAST_GAIN = 0.001
"""Smallest gain of the decision, as a share of the range, that justifies a run."""


@dataclass(frozen=True)
class Option:
    """A setting and the level that it reaches at the budget."""

    setting: dict[str, Any]
    level: Estimate
    """Level of a new run with this setting, including the scatter of runs."""
    probability_best: float
    """Probability that no other setting is better."""


LEAST_SETTINGS = 4
"""Smallest number of settings with which the best is decided: fewer neither show how the law bends nor check it."""


@dataclass(frozen=True)
class Crossing:
    """The compute above which one setting stays better than another."""

    better: dict[str, Any]
    than: dict[str, Any]
    compute: Reach


@dataclass(frozen=True)
class NextRun:
    """The run that improves the decision most per unit of compute."""

    setting: dict[str, Any]
    compute: float
    gain: float
    """Expected gain in the level of the chosen setting, in the metric's unit."""
    cost: Cost
    """Price of its compute."""
    reached: float = 0.0
    """Compute of the longest run with this setting; 0: there is none. The proposed run is another one, with its own
    scatter."""


class Envelope(NamedTuple):
    """The level of every setting at each compute, and of the best one."""

    compute_M: Array
    settings: list[dict[str, Any]]
    mean_SM: Array
    best_M: list[int]
    """Index of the best setting."""
    low_M: Array
    """Lower end of the 90% interval of the level of the best setting."""
    high_M: Array


@dataclass(frozen=True)
class Frontier:
    """The best setting for a budget, and its reasons."""

    budget: float
    unit: str
    decided: bool
    """Whether the best setting is within the margin of the true best with probability `DECIDED_ABOVE`; otherwise the
    answer is "cannot say yet"."""
    best: Option
    runner_up: Option
    probability_better: float
    """Probability that the best is better than the runner-up."""
    probability_close: float
    """Probability that the best is within the margin of the true best."""
    options: tuple[Option, ...]
    """All settings that were compared, the highest expected level first."""
    asked: tuple[dict[str, Any], ...]
    """Settings that the caller added."""
    crossings: tuple[Crossing, ...]
    next_run: NextRun | None
    next_setting: dict[str, Any]
    """The best setting for twice the budget."""
    next_gain: NextGain
    """What twice the budget gains with it over the best setting for the budget, and what it costs."""
    uses: str
    """"law" or "per-run fits"."""
    check: Check | None
    """None with fewer than four different settings."""
    slopes: dict[str, dict[str, Estimate]]
    """Change of logit A, ln C_mid, ln B and R0 per doubling of each number."""
    without_published: Option | None
    """The best setting without the published exponents; None if none was used."""
    envelope: Envelope
    """Not in the JSON."""
    notes: tuple[str, ...] = ()
    margin: float = field(default=MARGIN)
    few_settings: int = 0
    """Number of settings that were run, if it is below `LEAST_SETTINGS` and nothing is decided; otherwise 0."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON values."""
        values = {name: as_json(value) for name, value in vars(self).items() if name != "envelope"}
        return {**values, "sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """The decision as a sentence."""
        best, other = setting_text(self.best.setting), setting_text(self.runner_up.setting)
        for_budget = f"for {short_number(self.budget)} {self.unit}"
        if not self.decided and self.few_settings:
            return (
                f"Cannot say yet {for_budget}: only {self.few_settings} settings were run, and a choice needs "
                f"{LEAST_SETTINGS}; {best} leads with {self.best.level:.3f}, {other} has {self.runner_up.level:.3f}."
            )
        if not self.decided:
            return (
                f"Cannot say yet {for_budget}: {best} leads with {self.best.level:.3f}, but with probability "
                f"{1 - self.probability_close:.2f} another setting is better by more than {self.margin:g}; next is "
                f"{other} with {self.runner_up.level:.3f}."
            )
        return (
            f"Best {for_budget}: {best}, expected {self.best.level:.3f}; better than the runner-up {other} "
            f"({self.runner_up.level:.3f}) with probability {self.probability_better:.2f}, the best of all with "
            f"{self.best.probability_best:.2f}, within {self.margin:g} of it with {self.probability_close:.2f}."
        )

    def __str__(self) -> str:
        lines = [self.sentence]
        for rank, option in enumerate(self.options):
            if rank >= PRINTED_OPTIONS and option.setting not in self.asked:
                continue
            best = f"best with probability {option.probability_best:.2f}"
            lines.append(f"  {setting_text(option.setting)}: {option.level:.3f}, {best}")
        moved = "" if self.next_setting == self.best.setting else f", with {setting_text(self.next_setting)}"
        lines.append(f"  next gain: {self.next_gain}{moved}")
        for crossing in self.crossings:
            pair = f"{setting_text(crossing.better)} passes {setting_text(crossing.than)}"
            lines.append(f"  {pair}, in {self.unit}: {crossing.compute}")
        for name, slope in self.slopes.items():
            lines.append(f"  doubling {name}: " + ", ".join(f"{k} {v:+.2f}" for k, v in slope.items()))
        if self.check:
            lines.append(
                f"  left-out runs: error {self.check.law:.3f} by the law, {self.check.nearest:.3f} by the nearest run; "
                f"{self.check.covered:.0%} of {self.check.runs} in the 90% interval"
            )
        if self.uses != "law":
            lines.append("  the law does not predict them better, so every setting is judged by its own runs")
        if self.without_published:
            option = self.without_published
            lines.append(f"  without published exponents: {setting_text(option.setting)}, {option.level:.3f}")
        lines += [f"  note: {note}" for note in self.notes]
        if self.next_run is None:
            return "\n".join([*lines, f"Run next: no run up to the budget improves the choice by {LEAST_GAIN:g}."])
        run = self.next_run
        gain = f"raises the expected level of the choice by {run.gain:.2g}"
        spent = "" if str(run.cost) == compute_text(run.compute, run.cost.axis) else f", for {run.cost}"
        proposed = f"{setting_text(run.setting)} to {short_number(run.compute)} {self.unit}{spent}"
        if run.reached >= run.compute:
            proposed = f"another run of {proposed}, though one went to {short_number(run.reached)}"
        return "\n".join([*lines, f"Run next: {proposed}; it {gain}."])


MOST_LAW_RUNS = 1000
"""Most runs of a law, whose fits take 0.8 GB and half a minute."""


def check_number(runs: int) -> None:
    """Refuse more runs than a law is made of.

    Raises:
        CurveError: They are more than `MOST_LAW_RUNS`.
    """
    if runs > MOST_LAW_RUNS:
        raise CurveError(
            f"got {runs:,} runs; allowed: at most {MOST_LAW_RUNS:,}, whose fits take about 1 GB of memory; give those "
            "of the settings between which you choose, or fewer seeds of each"
        )


def frontier(
    runs: Sequence[Curve | Fit],
    settings: Sequence[Setting],
    budget: float,
    published: bool = True,
    also: Sequence[Setting] = (),
    price: float | None = None,
) -> Frontier:
    """Return the setting with the highest level at a budget, from runs with different settings.

    The choice is among all combinations of the values that were run.

    Args:
        runs: Curves or posterior fits, at least two.
        settings: Settings of each run by name: numbers, or text for categories.
        budget: Compute of one run, in the unit of the curves' axis.
        published: Whether exponents of ScaleRL's Table 1 are prior means of the slopes of batch size, generations and
            length. They need an axis of device-hours or FLOPs.
        also: More settings to predict and to choose from, which may lie outside the range of the runs.
        price: Price of a device-hour; None: costs are in device-hours.

    Raises:
        CurveError: The price cannot be used, or the runs cannot be pooled; the message has the reason and what to do.
    """
    check_number(len(runs))
    if not (np.isfinite(budget) and budget > 0):
        raise CurveError(f"the budget must be a positive amount of compute; got {budget!r}")
    checked_price(price, with_hours_of([run.curve if isinstance(run, Fit) else run for run in runs]))
    pooled_runs = pool(runs, settings, published)
    fits, law, notes, by_law = pooled_runs.fits, pooled_runs.law, list(pooled_runs.notes), pooled_runs.uses == "law"
    check_added(also, law.settings)
    longest = max(f.last_compute for f in fits)
    if budget > FAR_BUDGET * longest:
        notes.append(f"the budget is {budget / longest:.0f} times the longest run; the law was not tested that far")
    notes += [f"{setting_text(setting)} {note}" for setting in also for note in setting_notes(setting, law, by_law)]
    scene = of_law(law, fits[0], also) if by_law else of_fits(fits, law.settings)
    plain = None
    if pooled_runs.published and by_law:
        plain = of_law(pooled(pooled_runs.clouds, law.settings, False), fits[0], also)
    hours = with_hours_of([f.curve for f in fits])

    def cost(compute: float, gain: float = np.nan) -> Cost:
        return cost_of(hours, compute, gain, price)

    different = len(distinct(settings))
    few = different if different < LEAST_SETTINGS else 0
    best = decided(scene, budget, fits[0], cost, few, check=pooled_runs.check, uses=pooled_runs.uses,
                   asked=tuple(dict(setting) for setting in also), notes=tuple(notes), slopes=slopes_of(law),
                   without_published=plain.ranked(budget)[0][0] if plain else None)  # fmt: skip
    if best.next_run is None:
        return best
    again = [f.last_compute for f, setting in zip(fits, law.settings, strict=True) if setting == best.next_run.setting]
    return replace(best, next_run=replace(best.next_run, reached=max(again, default=0.0)))


def setting_notes(setting: Setting, law: Law, by_law: bool) -> Iterator[str]:
    """Yield notes on an added setting: it has no prediction, or one beyond the settings that were run."""
    if not by_law and setting not in law.settings:
        yield "has no prediction, because it was not run and the law is not used"
    for name in law.design.numbers if by_law else ():
        values = [float(run_setting[name]) for run_setting in law.settings]
        if not min(values) <= float(setting[name]) <= max(values):
            yield f"is outside the range of {name} in the runs, where intervals can be too narrow (docs/frontier.md)"


class Scene(NamedTuple):
    """Settings to choose from, and draws of their levels at a compute, shape (S, D)."""

    settings: list[dict[str, Any]]
    along: Callable[[Array, Sequence[int]], Array]
    """Levels of some settings at several amounts of compute without the scatter of single runs, shape (M, S, D)."""
    of_run: Callable[[float], Array]
    """Levels of a new run."""
    noise_sd: float
    by_run: bool
    """Whether the levels are those of each setting's own runs."""

    def typical(self, compute: float) -> Array:
        """Return the levels of all settings without the scatter of single runs."""
        return np.asarray(self.along(np.array([compute]), range(len(self.settings)))[0])

    def means(self, compute_M: Array) -> Array:
        """Return the mean levels at several amounts of compute, shape (M, S), from the draws of a few settings at once.

        Those of all would take 400 MB for 600 settings of 2,000 draws.
        """
        indices = range(len(self.settings))
        parts = [indices[start : start + TOGETHER] for start in indices[::TOGETHER]]
        return np.asarray(np.concatenate([self.along(compute_M, part).mean(axis=2) for part in parts], axis=1))

    def ranked(self, compute: float) -> tuple[list[Option], Array]:
        """Return the options at a compute, as `ranked`."""
        return ranked(self.settings, self.of_run(compute), self.typical(compute))


def of_law(law: Law, like: Fit, also: Sequence[Setting]) -> Scene:
    """Return the settings within the range of the runs, and the ones asked for, by the law."""
    settings, bounds = setting_combinations(law.settings), like.curve.bounds
    settings += [dict(setting) for setting in also if dict(setting) not in settings]
    theta_DSK = law.at(settings)
    run_DSK = law.new_run(theta_DSK)

    def along(compute_M: Array, which: Sequence[int]) -> Array:
        some_DSK = theta_DSK[:, list(which)]
        return np.stack([levels(some_DSK, float(compute), bounds).T for compute in compute_M])

    return Scene(settings, along, lambda c: levels(run_DSK, c, bounds).T, like.noise_sd, False)


def of_fits(fits: Sequence[Fit], settings: Sequence[Setting]) -> Scene:
    """Return the settings of the runs, each by the mean of its own runs."""
    setting_S = distinct(settings)
    of_S: list[list[Fit]] = [[] for _ in setting_S]
    index = {tuple(setting.items()): s for s, setting in enumerate(setting_S)}
    for f, setting in zip(fits, settings, strict=True):
        of_S[index[tuple(setting.items())]].append(f)
    rng = np.random.default_rng(0)
    # the draws of a run in the same order at every compute
    order_S = [[shuffled(rng, len(f.draws)) for f in of] for of in of_S]

    def along(compute_M: Array, which: Sequence[int]) -> Array:
        pairs = [zip(of_S[s], order_S[s], strict=True) for s in which]
        return np.stack([np.mean([f.levels(compute_M)[:, order] for f, order in of], axis=0) for of in pairs], axis=1)

    def of_run(compute: float) -> Array:
        level_SD, bounds = along(np.array([compute]), range(len(setting_S)))[0], fits[0].curve.bounds
        scatter_SD = ASSUMED_SEED_SD * np.ptp(bounds) * np.random.default_rng(1).standard_normal(level_SD.shape)
        return np.asarray(np.clip(level_SD + scatter_SD, *bounds))

    return Scene(setting_S, along, of_run, fits[0].noise_sd, True)


def shuffled(rng: np.random.Generator, count: int) -> NDArray[np.unsignedinteger]:
    """Return the numbers below a count in random order, in the smallest type."""
    return np.asarray(rng.permutation(count), dtype=np.min_scalar_type(count))


def slopes_of(law: Law) -> dict[str, dict[str, Estimate]]:
    """Return the change of each parameter per doubling of each number."""
    names = ("logit A", "ln C_mid", "ln B", "R0")
    return {setting: {name: summarize(np.log(2) * slope_DK[:, k]) for k, name in enumerate(names)} for setting, slope_DK
            in law.slopes().items()}  # fmt: skip


def ranked(settings: Sequence[dict[str, Any]], run_SD: Array, level_SD: Array) -> tuple[list[Option], Array]:
    """Return the options, the highest expected level first, and draws of their levels in this order.

    Args:
        settings: Setting of each option.
        run_SD: Draws of the level of a new run.
        level_SD: Draws of the level without the scatter of single runs, which decide which option is best.
    """
    order_S = np.argsort(-run_SD.mean(axis=1), kind="stable")
    wins_S = np.bincount(level_SD.argmax(axis=0), minlength=len(level_SD)) / level_SD.shape[1]
    options = [Option(settings[s], summarize(run_SD[s]), float(wins_S[s])) for s in order_S]
    return options, level_SD[order_S]


def decided(
    scene: Scene, budget: float, like: Fit, cost: Callable[..., Cost], few_settings: int, **fields: Any
) -> Frontier:
    """Return the decision for a budget with everything that follows from the levels; none with few settings."""
    width = float(np.ptp(like.curve.bounds))
    options, level_SD = scene.ranked(budget)
    # without the scatter of single runs, which would hide where settings cross
    compute_M = budget * AROUND
    mean_MS = scene.means(compute_M)
    close = float((level_SD[0] >= level_SD.max(axis=0) - MARGIN * width).mean())
    return Frontier(
        budget=budget, unit=like.curve.unit, decided=close >= DECIDED_ABOVE and not few_settings,
        best=options[0], runner_up=options[1],
        probability_better=float((level_SD[0] > level_SD[1]).mean()), probability_close=close,
        options=tuple(options), crossings=crossings(scene, compute_M, mean_MS, options, width),
        envelope=envelope(scene, compute_M, mean_MS, width),
        next_run=next_run(scene, budget, width, cost), **next_best(scene, budget, options[0], cost),
        margin=MARGIN * width, few_settings=few_settings, **fields,
    )  # fmt: skip


def envelope(scene: Scene, compute_M: Array, mean_MS: Array, width: float) -> Envelope:
    """Return the best level over settings at each compute."""
    best_M = leaders(mean_MS, width)
    level_MD = np.concatenate([scene.along(compute_M[m : m + 1], [s])[:, 0] for m, s in enumerate(best_M)])
    low_M, high_M = np.quantile(level_MD, TAILS, axis=1)
    return Envelope(compute_M, scene.settings, mean_MS.T, best_M, low_M, high_M)


def leaders(mean_MS: Array, width: float) -> list[int]:
    """Return the best setting at each compute; it changes only where the next is better by an amount that matters."""
    lead = int(mean_MS[0].argmax())
    best_M = []
    for mean_S in mean_MS:
        first = int(mean_S.argmax())
        lead = first if mean_S[first] > mean_S[lead] + 0.1 * MARGIN * width else lead
        best_M.append(lead)
    return best_M


def crossings(
    scene: Scene, compute_M: Array, mean_MS: Array, options: Sequence[Option], width: float
) -> tuple[Crossing, ...]:
    """Return where the best setting changes with compute near the budget, and where the best passes the runner-up."""
    near_M = (AROUND >= 1 / CROSSING_RANGE) & (AROUND <= CROSSING_RANGE)
    best_M = leaders(mean_MS[near_M], width)
    pairs = [(new, old) for old, new in pairwise(best_M) if new != old]
    best, other = (scene.settings.index(option.setting) for option in options[:2])
    if (best, other) not in pairs and (other, best) not in pairs:
        pairs.append((best, other))
    result = []
    for leader, rival in pairs:
        lead_MD = np.subtract(*np.moveaxis(scene.along(compute_M, [leader, rival]), 1, 0))
        draw_D = np.arange(lead_MD.shape[1])
        behind_MD = lead_MD <= 0
        last_D = len(compute_M) - 1 - behind_MD[::-1].argmax(axis=0)
        # linear in the log of compute between the last point behind and the next
        before_D, after_D = (lead_MD[np.minimum(last_D + n, len(compute_M) - 1), draw_D] for n in (0, 1))
        share_D = np.clip(before_D / np.minimum(before_D - after_D, -1e-12), 0.0, 1.0)
        ahead_D = np.where(last_D == len(compute_M) - 1, np.inf, compute_M[last_D] * AROUND_STEP**share_D)
        passed_D = np.where(behind_MD.any(axis=0), ahead_D, 0.0)
        if np.median(passed_D) >= compute_M[near_M][0]:  # else it leads from the start
            result.append(Crossing(scene.settings[leader], scene.settings[rival], reach(passed_D)))
    return tuple(result)


def next_best(scene: Scene, budget: float, best: Option, cost: Callable[..., Cost]) -> dict[str, Any]:
    """Return the best setting for twice the budget, and its gain over the best one for the budget, by field."""
    now_SD, then_SD = scene.typical(budget), scene.typical(2.0 * budget)
    then = int(then_SD.mean(axis=1).argmax())
    gain = summarize(then_SD[then] - now_SD[scene.settings.index(best.setting)])
    next_gain = NextGain(2.0 * budget, 2.0, gain, cost(budget, gain.mean))
    return {"next_setting": scene.settings[then], "next_gain": next_gain}


def next_run(scene: Scene, budget: float, width: float, cost: Callable[..., Cost]) -> NextRun | None:
    """Return the run with the largest expected gain of the decision per unit of compute, or None.

    The gain is the expected value of sample information by regression (Strong, Oakley and Brennan 2014): the levels
    at the budget are regressed on what the run would show, its levels at a quarter, half and all of its compute.
    """
    level_SD = scene.typical(budget)
    now = float(level_SD.mean(axis=1).max())
    if scene.by_run:
        others_S = np.array([np.delete(level_SD.mean(axis=1), s).max() for s in range(len(level_SD))])
        gain_S = np.maximum(level_SD, others_S[:, None]).mean(axis=1) - now
        s = int(gain_S.argmax())
        worth = gain_S[s] > LEAST_GAIN * width
        return NextRun(scene.settings[s], budget, float(gain_S[s]), cost(budget)) if worth else None
    rng = np.random.default_rng(3)
    best: NextRun | None = None
    shuffle_D = rng.permutation(level_SD.shape[1])
    for part in CANDIDATE_LENGTHS:
        compute = part * budget
        seen_MSD = np.stack([scene.of_run(share * compute) for share in (0.25, 0.5, 1.0)])
        seen_MSD = seen_MSD + scene.noise_sd * rng.standard_normal(seen_MSD.shape)
        for s, setting in enumerate(scene.settings):
            basis_DM, _ = np.linalg.qr(np.vstack([np.ones(len(shuffle_D)), seen_MSD[:, s]]).T)
            # a statistic without information gains a little by chance, which is subtracted
            real, chance = ((level_SD @ q @ q.T).max(axis=0).mean() - now for q in (basis_DM, basis_DM[shuffle_D]))
            gain = float(real - chance)
            if gain > LEAST_GAIN * width and (best is None or gain / compute > best.gain / best.compute):
                best = NextRun(setting, compute, gain, cost(compute))
    return best
