"""The results of a study as records that convert to JSON: its runs, its arms, and the whole study."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.scaling import Comparison, Curve, Estimate, Fit
from scalerl.study.plan import RunKey
from scalerl.study.verdicts import EFFECTS

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
    path: Path
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
        found: Estimate | float | None = getattr(self, name) if hasattr(self, name) else self.metric(name)
        return found

    def metric(self, name: str) -> float | None:
        """Return a metric's mean over the runs that have it."""
        values = [run.metrics[name] for run in self.runs if name in run.metrics]
        return statistics.fmean(values) if values else None


@dataclass(frozen=True, eq=False)
class StudyResult:
    """All arms of a study."""

    name: str
    about: str
    path: Path
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

    def headlines(self) -> list[str]:
        """Return the verdicts as sentences, the most important first."""
        excluded = self.exclusion()
        return [*(arm.sentence for arm in self.ranked()), *([excluded] if excluded else [])]

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON values; docs/json.md has the keys."""
        return {
            "study": self.name,
            "reference": self.reference,
            "axis": self.axis,
            "common_asymptote": self.common_asymptote,
            "seed_sd": self.seed_sd,
            "seed_source": self.seed_source,
            "notes": list(self.notes),
            "headlines": self.headlines(),
            "arms": [_arm_dict(arm) for arm in self.arms],
        }


def _arm_dict(arm: ArmResult) -> dict[str, Any]:
    estimates = {name: getattr(arm, name) for name in ("asymptote", "efficiency", "midpoint")}
    estimates |= {name: getattr(arm.comparison, name, None) for name in AGAINST}
    return {
        "name": arm.name,
        "about": arm.about,
        "effect": arm.effect,
        "sentence": arm.sentence,
        **{name: found.to_dict() if found else None for name, found in estimates.items()},
        "excluded": arm.excluded,
        "metrics": {name: arm.metric(name) for name in (*METRICS, "device_hours", "flops", "tokens")},
        "runs": [
            {
                "seed": run.key.seed,
                "step": run.step,
                "steps": run.steps,
                "last": run.last,
                "problem": run.problem,
                "failure": run.failure,
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
