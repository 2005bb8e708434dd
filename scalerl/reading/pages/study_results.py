"""The results of a study as records that convert to JSON: its runs, its arms with their verdicts, the whole."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scalerl.core.run_files import RunKey
from scalerl.reading.curves import Comparison, Curve, Estimate, Fit, Frontier
from scalerl.reading.curves.comparison import EFFICIENT, HIGHER, LATER, TEST_LEVEL
from scalerl.reading.curves.estimate import as_json
from scalerl.reading.curves.price import NextGain
from scalerl.reading.curves.settings import Setting


class Effect(NamedTuple):
    """An effect of an arm relative to the reference."""

    words: str
    short: str
    """Text for a narrow column."""
    color: str
    """Color on the pages, a name as in `report.drawing`."""


EFFECTS = {
    "raises": Effect("raises the ceiling", "higher ceiling", "@s2"),
    "lowers": Effect("lowers the ceiling", "lower ceiling", "@s7"),
    "more_efficient": Effect("same ceiling, more efficient", "more efficient", "@s5"),
    "less_efficient": Effect("same ceiling, less efficient", "less efficient", "@s1"),
    "later": Effect(
        "same ceiling; steeper but needs more compute, or flatter but needs less", "B and compute disagree", "@s6"
    ),
    "less_compute": Effect(
        "needs less compute for the same level so far; A and B not distinguished", "less compute so far", "@s5"
    ),
    "more_compute": Effect(
        "needs more compute for the same level so far; A and B not distinguished", "more compute so far", "@s1"
    ),
    "none": Effect("no difference that this much compute can show", "no difference seen", "@muted"),
    "unknown": Effect("not measured yet", "not measured", "@muted"),
    "reference": Effect("the reference", "the reference", "@s0"),
}
"""Effects by name, sorted by importance."""


def effect_of(against: Comparison | None) -> str:
    """Return the effect of an arm (the first side), compared with the reference (the second); a key of `EFFECTS`."""
    if against is None:
        return "unknown"
    if against.verdict == LATER:
        return "later"
    kinds = {HIGHER: ("raises", "lowers"), EFFICIENT: ("more_efficient", "less_efficient")}
    if against.verdict not in kinds:
        # a shift along the compute axis changes neither A nor B, but it changes the cost for the user
        probability = against.probability_less_compute
        sure = min(probability, 1 - probability) < TEST_LEVEL / 2
        return ("less_compute" if probability > 0.5 else "more_compute") if sure else "none"
    better, worse = kinds[against.verdict]
    return better if against.winner == "first" else worse


def arm_sentence(name: str, reference: str, effect: str, against: Comparison | None, problems: str) -> str:
    """Return an arm's verdict as a sentence with its numbers.

    Args:
        name: Name of the arm.
        reference: Name of the reference.
        effect: Result of `effect_of`.
        against: Comparison of the arm with the reference; None if there is none.
        problems: Reasons why the arm has no fit; empty if it has one.
    """
    if effect == "reference":
        return f"{name} is the reference."
    if against is None:
        reasons = problems or f"{reference} has no fit yet"
        return f"{name}: not measured yet ({reasons})."
    difference, ratio = f"A differs by {against.asymptote_difference:+.3f}", against.efficiency_ratio
    if effect in ("raises", "lowers"):
        return f"{name} {EFFECTS[effect].words}: {difference} from {reference}."
    needed, level = f"{_times(against.compute_ratio)} the compute", f"for the level {against.level:.3f}"
    efficiency = f"its B is {_times(ratio)} that of {reference}, and it needs {needed} {level}"
    if effect == "later":
        which = "steeper but needs more compute" if ratio.mean > 1 else "flatter but needs less compute"
        return f"{name}: same ceiling, {which}: {efficiency}."
    if effect in ("less_compute", "more_compute"):
        amount = "less" if effect == "less_compute" else "more"
        return (
            f"{name} needs {amount} compute so far: {needed} of {reference} {level}; "
            f"{difference}, and its B is {_times(ratio)} that of {reference}."
        )
    if effect == "none":
        return f"{name}{NO_DIFFERENCE}: {difference}, {efficiency}."
    return f"{name}: {EFFECTS[effect].words}: {efficiency}."


NO_DIFFERENCE = " makes no difference that this much compute can show"
"""Text that a list omits from its sentences, because the heading already contains it."""


def _times(estimate: Estimate) -> str:
    values = (estimate.mean, estimate.low, estimate.high)
    mean, low, high = (f"{value:.2f}" if 0.01 <= value < 100 else f"{value:.1g}" for value in values)
    return f"{mean} times ({low} to {high})"


METRICS = (
    "truncation_rate",
    "interruption_rate",
    "staleness_mean",
    "entropy",
    "completion_tokens_mean",
    "generator_idle",
    "trainer_idle",
)
"""Columns of metrics.jsonl whose means over the run are shown (entropy: over the last tenth)."""

AGAINST = ("asymptote_difference", "efficiency_ratio", "compute_ratio")
"""Estimates of an arm's comparison with the reference."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run."""

    key: RunKey
    step: int
    """Step of the last evaluation; -1 before the first."""
    steps: int
    """Budget of the run in steps."""
    curve: Curve | None
    fit: Fit | None
    problem: str
    """Reason why there is no fit; empty if there is one."""
    metrics: dict[str, float]
    """Means of `METRICS`, with `device_hours`, `flops` and `tokens` of the last step."""
    failure: str = ""
    """Last message of the run's latest process if it failed; earlier points are still used."""

    @property
    def last(self) -> float | None:
        """The last evaluation."""
        return None if self.curve is None else float(self.curve.metric[-1])


@dataclass(frozen=True, eq=False)
class ArmResult:
    """One arm: all its seeds, and its comparison with the reference."""

    name: str
    about: str
    runs: tuple[RunResult, ...]
    asymptote: Estimate | None
    """A of the arm, including the scatter between seeds; None if nothing could be fitted."""
    efficiency: Estimate | None
    """B at the study's common ceiling."""
    midpoint: Estimate | None
    """C_mid, the geometric mean over seeds."""
    comparison: Comparison | None
    """The arm (first) compared with the reference (second); None for the reference, or if a side has no fit."""
    effect: str
    """Key of `EFFECTS`."""
    sentence: str
    """The verdict as a sentence."""
    next_gain: NextGain | None = None
    """What twice the compute should gain for a run of the arm, and what it costs; None without a fit."""

    @property
    def fits(self) -> list[Fit]:
        """Fits of the runs that have one."""
        return [run.fit for run in self.runs if run.fit is not None]

    @property
    def done(self) -> int:
        """Number of runs that have reached their budget."""
        return sum(run.step >= run.steps for run in self.runs)

    @property
    def excluded(self) -> float | None:
        """Smallest absolute difference in A from the reference that the 90% interval excludes; None if not compared."""
        if self.comparison is None:
            return None
        difference = self.comparison.asymptote_difference
        return max(abs(difference.low), abs(difference.high))

    @property
    def problems(self) -> list[str]:
        """Problems of the arm's runs, one line each: no fit yet, or a failure."""
        return [f"seed {run.key.seed}: {words}" for run in self.runs for words in _problems(run)]

    def quantity(self, name: str) -> Estimate | float | None:
        """Return an estimate of the arm or of its comparison, or the mean of a metric; None if it is unknown."""
        if name in AGAINST:
            return getattr(self.comparison, name, None)
        value: Estimate | float | None = getattr(self, name) if hasattr(self, name) else self.metric(name)
        return value

    def metric(self, name: str) -> float | None:
        """Return a metric's mean over the runs that have it."""
        values = [run.metrics[name] for run in self.runs if name in run.metrics]
        return statistics.fmean(values) if values else None


@dataclass(frozen=True, eq=False)
class StudyResult:
    """All arms of a study."""

    name: str
    about: str
    reference: str
    axis: str
    """Compute axis that all fits share, as in `Curve`."""
    arms: tuple[ArmResult, ...]
    """The arms, in the order of the plan."""
    common_asymptote: float | None
    """The ceiling at which all B are compared; None before the first fit."""
    seed_sd: float | None
    """Standard deviation of A between seeds of one arm."""
    seed_source: str
    notes: tuple[str, ...]
    """Notes for the reader, in addition to the verdicts."""
    frontier: Frontier | None = None
    """The best setting for the compute of a whole run of the reference; None for plans without `vary`."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """Settings of each arm by its name."""
    predicted: tuple[dict[str, Any], ...] = ()
    """Predicted against observed, for each held-out run that is finished."""

    def arm(self, name: str) -> ArmResult:
        """Return an arm by name."""
        return next(arm for arm in self.arms if arm.name == name)

    def ranked(self) -> list[ArmResult]:
        """Return all arms but the reference, sorted by effect and then by the difference in A, the largest first."""
        order = list(EFFECTS)

        def place(arm: ArmResult) -> tuple[int, float]:
            against = arm.comparison
            return order.index(arm.effect), -abs(against.asymptote_difference.mean) if against else 0.0

        return sorted((arm for arm in self.arms if arm.name != self.reference), key=place)

    def exclusion(self) -> str:
        """Return a sentence with the differences in A that are excluded; empty if every arm shows a difference."""
        widest = [arm.excluded for arm in self.arms if arm.effect == "none" and arm.excluded is not None]
        if not widest:
            return ""
        if len(widest) == 1:
            return f"One arm shows no difference: differences in A beyond ±{widest[0]:.3f} are excluded (90% interval)."
        return (
            f"{len(widest)} arms show no difference: differences in A beyond ±{max(widest):.3f} are excluded for all "
            f"of them, beyond ±{statistics.median(widest):.3f} for half of them (90% intervals)."
        )

    def of_law(self) -> list[str]:
        """Return sentences about the best setting and the predictions of held-out runs, as far as there are any."""
        best = [self.frontier.sentence] if self.frontier else []
        rows = self.predicted
        if not rows:
            return best
        by_law, by_nearest = (
            statistics.fmean((row[name] - row["observed"]) ** 2 for row in rows) ** 0.5 for name in ("law", "nearest")
        )
        count = f"{sum(row['inside'] for row in rows)} of {len(rows)} held-out runs ended in the 90% interval"
        error = f"error {by_law:.3f} by the law, {by_nearest:.3f} by the nearest run"
        return [*best, f"Predicted before they were run: {count}; {error}."]

    def headlines(self) -> list[str]:
        """Return the verdicts as sentences, the most important first."""
        return [*self.of_law(), *(arm.sentence for arm in self.ranked()), *filter(None, [self.exclusion()])]

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON values; docs/json.md has the keys."""
        names = ("reference", "axis", "common_asymptote", "seed_sd", "seed_source")
        return {
            "study": self.name,
            **{name: getattr(self, name) for name in names},
            "notes": list(self.notes),
            "headlines": self.headlines(),
            "frontier": self.frontier.to_dict() if self.frontier else None,
            "predicted": list(self.predicted),
            "arms": [_arm_dict(arm) for arm in self.arms],
        }


def _arm_dict(arm: ArmResult) -> dict[str, Any]:
    of_run = ("step", "steps", "last", "problem", "failure")
    return {
        **{name: getattr(arm, name) for name in ("name", "about", "effect", "sentence")},
        **{name: as_json(getattr(arm, name)) for name in ("asymptote", "efficiency", "midpoint")},
        **{name: as_json(getattr(arm.comparison, name, None)) for name in AGAINST},
        "excluded": arm.excluded,
        "next_gain": as_json(arm.next_gain),
        "metrics": {name: arm.metric(name) for name in (*METRICS, "device_hours", "flops", "tokens")},
        "runs": [
            {
                "seed": run.key.seed,
                **{name: getattr(run, name) for name in of_run},
                "fit": run.fit.to_dict() if run.fit else None,
            }
            for run in arm.runs
        ],
    }


def reasons(runs: Sequence[RunResult]) -> str:
    """Return the reasons why runs have no fit, each once; empty if there was no problem."""
    return "; ".join(sorted({words for run in runs for words in _problems(run)}))


def _problems(run: RunResult) -> list[str]:
    return list(filter(None, dict.fromkeys((run.problem, failed(run.failure)))))


def failed(words: str) -> str:
    """Return the last message of a failed process as a reason; empty if there is none."""
    return f"failed: {words}" if words else ""
