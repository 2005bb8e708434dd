"""The warnings about a run: truncated rollouts, empty slots, engine mismatch, failures, and a curve that falls."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from scalerl.core.rows import number
from scalerl.core.run_files import active_warnings
from scalerl.core.types import EvalPoint
from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.curves.health import decline
from scalerl.reading.pages.outlook import curve_of
from scalerl.training.config.recipe import Recipe
from scalerl.training.loop.catalog import (
    LEAST_EFFECTIVE,
    LOW,
    METRICS,
    MISMATCH_WARNING,
    UNSTABLE_TRUNCATION,
    WARN_TRUNCATION,
)

MetricRows = Sequence[Mapping[str, Any]]
"""The last rows of metrics.jsonl, oldest first; values may be missing."""

KEPT_ROWS = 400
"""Number of latest rows of metrics by which a run is judged."""

AVERAGED_STEPS = 20
"""Number of steps over which occupancy and truncation are averaged."""

FAILURE_COUNTERS = [name for name, metric in METRICS.items() if metric.above == (0.0,)]
"""Counters that are 0 in a healthy run."""

WATCHED = {
    "entropy": "entropy",
    "log_ratio_mean": "log ratio",
    "truncation_rate": "truncation",
    "staleness_mean": "staleness",
}
"""Columns of metrics.jsonl to check if a run declines, and their names in text."""

RECENT = 0.2
"""Share of the kept rows that count as recent."""

MOVED = 3.0
"""A metric has moved if its recent mean is this many standard deviations away from the earlier one."""

LEAST_STEPS = 20

FALLING = "falling "
"""Start of the keys of warnings about falling curves; the task follows."""


class Event(NamedTuple):
    """A row of events.jsonl: a warning, its end, or a note.

    Example: Event(120, "warning", "truncated", "12% of the rollouts are truncated: ...")
    """

    step: int
    kind: str
    """warning; over: it no longer holds; note: what holds from a start on."""
    key: str
    """The same while the numbers of a warning change."""
    text: str


class RunWarnings:
    """Judges a run after each step and evaluation."""

    def __init__(self, recipe: Recipe, slots: int, tasks: Sequence[str], axis: str) -> None:
        """Begin.

        Args:
            recipe: Recipe of the run.
            slots: Sequences decoded together.
            tasks: Tasks with a forecast.
            axis: Unit of compute of their curves.
        """
        self._recipe, self._slots, self._tasks, self._axis = recipe, slots, tuple(tasks), axis
        self.go_on((), ())

    def go_on(self, rows: MetricRows, events: Iterable[Mapping[str, Any]]) -> None:
        """Take over the rows of metrics.jsonl and events.jsonl of a resumed run."""
        self._rows = deque(rows, maxlen=KEPT_ROWS)
        self._active = active_warnings(events)
        self._falls: dict[str, str] = {key: text for key, text in self._active.items() if key.startswith(FALLING)}
        self._told = {*FAILURE_COUNTERS, *self._active}

    def step(self, row: Mapping[str, Any]) -> list[Event]:
        """Return the warnings that begin and end with a step, a row of metrics.jsonl."""
        self._rows.append(row)
        return self._changes(int(row["step"]))

    def evaluated(self, points: Sequence[EvalPoint]) -> list[Event]:
        """Return the warnings that begin and end with an evaluation, given all points of the run."""
        self._falls = {}
        for task in self._tasks:
            of_task = [point for point in points if point.task == task]
            with suppress(CurveError):  # the points are not a curve
                self._falls |= falling(curve_of(of_task, self._axis), list(self._rows))
        return self._changes(points[-1].step) if points else []

    def news(self, events: Sequence[Event]) -> list[str]:
        """Return the texts to print: each warning once, and that of a falling curve again if it recovered.

        Failures are left out, because the run prints them when they happen.
        """
        self._told -= {event.key for event in events if event.kind == "over" and event.key.startswith(FALLING)}
        fresh = [event for event in events if event.kind == "warning" and event.key not in self._told]
        self._told |= {event.key for event in fresh}
        return [event.text for event in fresh]

    def _changes(self, step: int) -> list[Event]:
        now = {**self._falls, **warnings(list(self._rows), self._recipe, self._slots)}
        over = [Event(step, "over", key, "") for key in self._active if key not in now]
        begun = [Event(step, "warning", key, text) for key, text in now.items() if key not in self._active]
        self._active = now
        return [*over, *begun]


def warnings(rows: MetricRows, recipe: Recipe, slots: int) -> dict[str, str]:
    """Return the warnings about the last rows of a run by key; a key stays the same while its numbers change."""
    of_rates = {**truncation(rows), **empty_slots(rows, recipe, slots), **mismatch(rows, recipe)}
    last = rows[-1] if rows else {}
    return of_rates | {
        name: f"{number(last[name]):.0f} {METRICS[name].meaning}"
        for name in FAILURE_COUNTERS
        if number(last.get(name)) > 0
    }


def truncation(rows: MetricRows) -> dict[str, str]:
    """Return a warning if the share of truncated rollouts over the last steps is high."""
    rate = _mean(row.get("truncation_rate") for row in rows[-AVERAGED_STEPS:])
    if rate > UNSTABLE_TRUNCATION:
        return {"unstable": f"{rate:.0%} of the rollouts are truncated: above 10% training usually becomes unstable"}
    if rate > WARN_TRUNCATION:
        words = "training may become unstable if the share exceeds 10%"
        return {"truncated": f"{rate:.0%} of the rollouts are truncated: {words}"}
    return {}


def settled(rows: MetricRows, max_lag: int) -> MetricRows:
    """Return the rows of the last steps after the ramp-up of the pipeline."""
    return [row for row in rows[-AVERAGED_STEPS:] if number(row.get("step")) > max_lag + 1]


def occupancy(rows: MetricRows, max_lag: int) -> float:
    """Return the mean occupancy of the slots over the last steps; NaN if it is unknown."""
    return _mean(row.get("occupancy") for row in settled(rows, max_lag))


def empty_slots(rows: MetricRows, recipe: Recipe, slots: int) -> dict[str, str]:
    """Return a warning with a remedy if many slots are empty."""
    max_lag = recipe.off_policy.max_lag
    recent, mean = settled(rows, max_lag), occupancy(rows, max_lag)
    if len(recent) < AVERAGED_STEPS or not mean < LOW:
        return {}
    text = f"only {mean:.0%} of the {slots} slots were busy over the last {AVERAGED_STEPS} steps"
    return {"slots": f"{text}: {_remedy(recent, recipe, slots)}"}


def _remedy(rows: MetricRows, recipe: Recipe, slots: int) -> str:
    off_policy = recipe.off_policy
    if not off_policy.streams:
        return "every round waits for its longest sequence; set recipe.off_policy.kind to pipeline to avoid this"
    if off_policy.max_lag == 0:
        return "every batch waits for its longest sequence; set recipe.off_policy.max_lag above 0 to avoid this"
    mean = _mean(row.get("completion_tokens_mean") for row in rows)
    longest = max(number(row.get("completion_tokens_max")) for row in rows)
    # number of slots that the rule `wait` keeps busy
    fed = (off_policy.max_lag + 1) * mean / longest * recipe.completions_per_step
    if off_policy.waits and fed < 0.9 * slots:
        return (
            f"updates wait for long sequences ({longest:.0f} tokens, mean {mean:.0f}); set rollouts.slots to "
            f"{max(1, int(fed))} or fewer, or recipe.off_policy.stale to mask (old tokens then carry no loss)"
        )
    return (
        "generation is ahead of training and waits for it; increase hardware.trainer_threads or "
        f"learner.micro_batch_tokens, or set rollouts.slots below {slots}, which makes decode steps faster"
    )


def mismatch(rows: MetricRows, recipe: Recipe) -> dict[str, str]:
    """Return a warning with the cure that fits if the ratios of the last steps are far from 1.

    A large log ratio for equal weights comes from the engine; one that only older tokens have, from staleness.
    """
    stale, effective = (
        _mean(row.get(name) for row in rows[-AVERAGED_STEPS:]) for name in ("log_ratio_stale", "effective_samples")
    )
    fresh = _mean(row.get("log_ratio_fresh") for row in rows)  # an asynchronous run has few such tokens
    if fresh > MISMATCH_WARNING:
        cures = [] if recipe.fp32_head else ["recipe.fp32_head = true"]
        if any("router_disagreement" in row for row in rows[-AVERAGED_STEPS:]) and recipe.routing_replay == "off":
            cures.append("recipe.routing_replay = 'on'")
        if recipe.mismatch.kind == "none":
            cures.append("recipe.mismatch = 'token-mask'")
        cure = " or ".join(cures) or "check the numerics of the engine (docs/mismatch.md)"
        return {"mismatch": f"trainer and engine differ by {fresh:.2g} nats per token for the same weights: {cure}"}
    if effective < LEAST_EFFECTIVE:
        ratio_text = f"{fresh:.2g} for the same weights" if math.isfinite(fresh) else "no token is of the same weights"
        ratios = f"|log ratio|: {ratio_text}, {stale:.2g} for older ones"
        text = f"the ratios make {effective:.0%} of the trained tokens effective ({ratios})"
        lag, off_policy = "max_lag" if recipe.off_policy.streams else "batches", recipe.off_policy
        return {"stale": f"{text}: lower recipe.off_policy.{lag}, now {getattr(off_policy, lag)}"}
    return {}


def falling(curve: Curve, rows: MetricRows) -> dict[str, str]:
    """Return a warning if a curve has fallen, with the metrics that moved."""
    symptom = decline(curve)
    if symptom is None:
        return {}
    changes = moved(rows)
    text = f"the held-out metric of {curve.label} has fallen by {symptom.numbers['fall']:.3f} since its best"
    if changes:
        return {FALLING + curve.label: f"{text}; metrics that moved: {', '.join(changes)}"}
    words = "entropy, log ratio, truncation and staleness in metrics.jsonl did not move clearly"
    return {FALLING + curve.label: f"{text}; {words}"}


def moved(rows: MetricRows) -> list[str]:
    """Return the watched metrics whose recent mean differs from the earlier one by more than their scatter."""
    recent = int(RECENT * len(rows))
    changes = []
    for column, name in WATCHED.items():
        values = [value for row in rows if math.isfinite(value := number(row.get(column)))]
        if len(values) < LEAST_STEPS:
            continue
        before, now = values[:-recent], values[-recent:]
        mean, level = _mean(before), _mean(now)
        scatter = math.sqrt(_mean((value - mean) ** 2 for value in before))
        # with the standard error of the mean, any slow drift would count as moved
        if abs(level - mean) > MOVED * max(scatter, 1e-3 * abs(mean), 1e-9):
            changes.append(f"{name} from {mean:.3g} to {level:.3g}")
    return changes


def _mean(values: Iterable[Any]) -> float:
    numbers = [value for value in map(number, values) if math.isfinite(value)]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
