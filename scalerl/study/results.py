"""What a study found: fits of every run, each arm against the candidate, verdicts in words. It draws and runs nothing.

Axes in names: D draws.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalerl.scaling import Comparison, Curve, CurveError, Estimate, Fit, compare, fit
from scalerl.scaling.compare import (
    MARGIN,
    common_ceiling,
    log_efficiency,
    seed_scatter,
    shuffled,
    side_mean,
    summarise_ratio,
)
from scalerl.scaling.estimate import summarise
from scalerl.scaling.law import Array
from scalerl.study.directory import StudyDirectory, rows
from scalerl.study.execute import STOPPED
from scalerl.study.notes import notes
from scalerl.study.plan import Arm, RunKey
from scalerl.study.verdicts import EFFECTS, effect_of, sentence_of

METRICS = {
    "truncation_rate": "share of rollouts truncated",
    "interruption_rate": "share of rollouts interrupted",
    "staleness_mean": "updates between the weights that sampled a token and the update it trains",
    "entropy": "of the policy, nats a token",
    "completion_tokens_mean": "tokens a completion",
    "generator_idle": "share of the generator's time",
    "trainer_idle": "share of the trainer's time",
}
"""Columns of metrics.jsonl that a study shows as means over the run (entropy: over its last tenth)."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run."""

    key: RunKey
    path: Path
    step: int
    """Of the last evaluation; -1 before the first."""
    steps: int
    """The whole budget."""
    curve: Curve | None
    fit: Fit | None
    problem: str
    """Why there is no fit; empty if there is one."""
    metrics: dict[str, float]
    """Means of ``METRICS``, with ``device_hours``, ``flops`` and ``tokens`` of the last step."""
    failure: str = ""
    """The last words of its process, if that failed the last time; what was measured until then counts."""

    @property
    def last(self) -> float | None:
        """The last evaluation."""
        return None if self.curve is None else float(self.curve.metric[-1])


@dataclass(frozen=True, eq=False)
class ArmResult:
    """One arm: all its seeds, and what distinguishes it from the candidate."""

    name: str
    about: str
    runs: tuple[RunResult, ...]
    asymptote: Estimate | None
    """A of the arm, the scatter of seeds included; None where nothing could be fitted."""
    efficiency: Estimate | None
    """B at the study's common ceiling."""
    midpoint: Estimate | None
    """Cmid, the geometric mean over seeds."""
    comparison: Comparison | None
    """The arm (first) against the candidate (second); None for the candidate, and where a side has no fit."""
    effect: str
    """Key of ``EFFECTS``."""
    sentence: str
    """The verdict in words."""

    @property
    def fits(self) -> list[Fit]:
        """Fits of the runs that have one."""
        return [run.fit for run in self.runs if run.fit is not None]

    @property
    def done(self) -> int:
        """How many runs have had their whole budget."""
        return sum(run.step >= run.steps for run in self.runs)

    @property
    def excluded(self) -> float | None:
        """Differences in A from the candidate beyond this, either way, are outside the 90 % interval."""
        if self.comparison is None:
            return None
        difference = self.comparison.asymptote_difference
        return max(abs(difference.low), abs(difference.high))

    @property
    def problems(self) -> list[str]:
        """What is wrong with its runs, a line each: no fit yet, a failure."""
        return [f"seed {run.key.seed}: {words}" for run in self.runs for words in _problems(run)]

    @property
    def reason(self) -> str:
        """Why it has no fit, each reason once; empty where nothing went wrong."""
        return _reasons(self.runs)

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
    candidate: str
    axis: str
    """Compute axis that all fits share, as in ``Curve``."""
    arms: tuple[ArmResult, ...]
    """In the order of the plan."""
    common_asymptote: float | None
    """The ceiling at which all B are compared; None before the first fit."""
    seed_sd: float | None
    """Standard deviation of A between seeds of one arm."""
    seed_source: str
    notes: tuple[str, ...]
    """What a reader must know."""

    def arm(self, name: str) -> ArmResult:
        """Return an arm by name."""
        return next(arm for arm in self.arms if arm.name == name)

    def ranked(self) -> list[ArmResult]:
        """Return all arms but the candidate by effect, what matters most first, the larger difference in A first."""
        order = list(EFFECTS)

        def place(arm: ArmResult) -> tuple[int, float]:
            against = arm.comparison
            return order.index(arm.effect), -abs(against.asymptote_difference.mean) if against else 0.0

        return sorted((arm for arm in self.arms if arm.name != self.candidate), key=place)

    def exclusion(self) -> str:
        """Return how large a difference could have been missed where none showed; empty where one showed everywhere."""
        widest = [arm.excluded for arm in self.arms if arm.effect == "none" and arm.excluded is not None]
        if not widest:
            return ""
        if len(widest) == 1:
            return f"Where nothing showed, differences in A beyond ±{widest[0]:.3f} are excluded (90 % interval)."
        return (
            f"Where nothing showed, differences in A beyond ±{max(widest):.3f} are excluded for every such arm, "
            f"beyond ±{statistics.median(widest):.3f} for half of them (90 % intervals)."
        )

    def headlines(self) -> list[str]:
        """Return the verdicts in words, what matters most first."""
        excluded = self.exclusion()
        return [*(arm.sentence for arm in self.ranked()), *([excluded] if excluded else [])]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; docs/json.md has the keys."""
        return {
            "study": self.name,
            "candidate": self.candidate,
            "axis": self.axis,
            "common_asymptote": self.common_asymptote,
            "seed_sd": self.seed_sd,
            "seed_source": self.seed_source,
            "notes": list(self.notes),
            "headlines": self.headlines(),
            "arms": [_arm_dict(arm) for arm in self.arms],
        }


AGAINST = ("asymptote_difference", "efficiency_ratio", "compute_ratio")
"""What is told of an arm's comparison with the candidate."""


def _arm_dict(arm: ArmResult) -> dict[str, Any]:
    estimates = {name: getattr(arm, name) for name in ("asymptote", "efficiency", "midpoint")}
    against = arm.comparison
    return {
        "name": arm.name,
        "about": arm.about,
        "effect": arm.effect,
        "sentence": arm.sentence,
        **{name: found.to_dict() if found else None for name, found in estimates.items()},
        **{name: getattr(against, name).to_dict() if against else None for name in AGAINST},
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


def study_results(study: StudyDirectory, axis: str | None = None, task: str | None = None) -> StudyResult:
    """Fit all runs as far as they are, and compare every arm with the candidate.

    Args:
        study: finished or not.
        axis: compute axis; None for the runs' default.
        task: which task's curve, where runs have several; None for the base's (first) task.

    Raises:
        ConfigError: no run of the study has that axis or task.
    """
    study.check_view(axis, task)
    plan, axis, task = study.plan, axis or study.axis(), task or study.task()
    runs: dict[str, list[RunResult]] = defaultdict(list)
    failures = _failures(study)
    for key in study.runs():
        runs[key.arm].append(_run(study, key, axis, task, failures.get(key, "")))
    fits = {name: [run.fit for run in found if run.fit is not None] for name, found in runs.items()}
    everything = [f for found in fits.values() for f in found]
    scatter = _scatter(everything, list(fits.values())) if everything else None
    arms = [_arm(arm, plan.candidate, runs[arm.name], fits, scatter) for arm in plan.arms]
    return StudyResult(
        name=plan.name,
        about=plan.about,
        path=study.path,
        candidate=plan.candidate,
        axis=axis,
        arms=tuple(arms),
        common_asymptote=scatter.common if scatter else None,
        seed_sd=scatter.sd if scatter else None,
        seed_source=scatter.source if scatter else "",
        notes=tuple(notes(study, arms)),
    )


class _Scatter(NamedTuple):
    """What all arms share: how much seeds differ, and the ceiling at which B is compared."""

    draws: Array
    sd: float
    source: str
    common: float


def _scatter(everything: Sequence[Fit], by_arm: Sequence[Sequence[Fit]]) -> _Scatter:
    width = float(np.ptp(everything[0].curve.bounds))
    draws, source = seed_scatter([fits for fits in by_arm if fits], width, np.random.default_rng(0))
    sd = float(np.median(draws))
    return _Scatter(draws, sd, source, common_ceiling(everything, sd))


def _arm(
    arm: Arm, candidate: str, runs: Sequence[RunResult], fits: Mapping[str, Sequence[Fit]], scatter: _Scatter | None
) -> ArmResult:
    """Compare one arm with the candidate."""
    mine, rng = fits[arm.name], np.random.default_rng(0)
    against = None
    if arm.name != candidate and mine and fits[candidate]:
        siblings = [found for name, found in fits.items() if found and name not in (arm.name, candidate)]
        against = compare(mine, fits[candidate], siblings=siblings)
    effect = "candidate" if arm.name == candidate else effect_of(against)
    estimates: dict[str, Estimate | None] = dict.fromkeys(("asymptote", "efficiency", "midpoint"))
    if mine and scatter is not None:
        estimates = {
            "asymptote": summarise(side_mean([shuffled(f.draws.asymptote, rng) for f in mine], scatter.draws, rng)),
            "efficiency": _geometric([log_efficiency(f.curve, scatter.common, scatter.sd, rng) for f in mine]),
            "midpoint": _geometric([np.log(shuffled(f.draws.midpoint, rng)) for f in mine]),
        }
    return ArmResult(
        name=arm.name,
        about=arm.about,
        runs=tuple(runs),
        comparison=against,
        effect=effect,
        sentence=sentence_of(arm.name, candidate, effect, against, "" if mine else _reasons(runs)),
        **estimates,
    )


def _reasons(runs: Sequence[RunResult]) -> str:
    return "; ".join(sorted({words for run in runs for words in _problems(run)}))


def _geometric(log_SD: Sequence[Array]) -> Estimate:
    """The geometric mean over seeds, from draws of logarithms."""
    return summarise_ratio(np.mean(log_SD, axis=0))


def _failures(study: StudyDirectory) -> dict[RunKey, str]:
    """The last words of runs whose process failed the last time it ran."""
    last = {RunKey(row["arm"], row["seed"]): row for row in study.journal()}
    return {key: row["said"] for key, row in last.items() if row["code"] and row["code"] not in STOPPED}


def _problems(run: RunResult) -> list[str]:
    return list(filter(None, dict.fromkeys((run.problem, _failed(run.failure)))))


def _failed(words: str) -> str:
    return f"failed: {words}" if words else ""


def _run(study: StudyDirectory, key: RunKey, axis: str, task: str | None, failure: str) -> RunResult:
    path, config = study.run(key), study.config(key)
    curve, found, problem = None, None, ""
    if (path / "points.jsonl").exists():
        try:
            curve = Curve.read(path, axis=axis, task=task)
            found = fit(curve)
        except CurveError as error:  # too short yet, or it learned nothing: the other runs count all the same
            problem = str(error)
    else:
        problem = _failed(failure) or "not started"
    step = study.step(key)
    return RunResult(key, path, step, config.steps, curve, found, problem, _metrics(path), failure)


def _metrics(path: Path) -> dict[str, float]:
    listed = rows(path / "metrics.jsonl")
    if not listed:
        return {}
    late = listed[-max(1, len(listed) // 10) :]
    found = {}
    for name in METRICS:
        values = [row[name] for row in (late if name == "entropy" else listed) if row.get(name) is not None]
        if values:
            found[name] = statistics.fmean(values)
    return found | {name: float(listed[-1][name]) for name in ("device_hours", "flops", "tokens")}


__all__ = [
    "EFFECTS",
    "MARGIN",
    "METRICS",
    "ArmResult",
    "RunResult",
    "StudyResult",
    "effect_of",
    "study_results",
]
