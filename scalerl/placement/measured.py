"""Speeds and lengths of a run that was made, read from its metrics.jsonl, for plans of runs like it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.config.base import ConfigError
from scalerl.config.overrides import parse_config
from scalerl.config.recipe import LengthControl
from scalerl.config.run import RunConfig
from scalerl.files import parse_json, read_bytes, trouble
from scalerl.placement.lengths import lognormal
from scalerl.placement.speed import Lengths, StepSeconds, UpdateSeconds, steps_from_line

WARM_UP = 0.2
"""Share of a run's rows that is left out: processes get warm, and slots fill."""

SPREAD = 0.2
"""Running sequences must vary by this share of their mean before a line through the steps' seconds means anything."""

SIGMAS = tuple(round(0.1 * i, 1) for i in range(1, 21))


@dataclass(frozen=True, slots=True)
class Measured:
    """What runs showed.

    Example: Measured(base_s=0.004, slope_s=3e-5, trainer_seconds_per_token=(5.8e-5, ...), step_ratios=(1.02,
                      ...), trained_share=0.93, tokens_mean=28.8, tokens_max=68.1, batch=256, swap_s=0.0014, ranks=1)
    """

    base_s: float
    """Seconds of a decode step without sequences."""
    slope_s: float
    """Seconds that each running sequence of an engine adds; 0 where they did not vary enough to tell."""
    trainer_seconds_per_token: tuple[float, ...]
    """Of each step, by trained tokens."""
    step_ratios: tuple[float, ...]
    """Seconds of each step's decode steps, over those that base and slope give; as many as trainer seconds."""
    trained_share: float
    """Trained tokens over a batch's completion tokens."""
    tokens_mean: float
    """Of the completions."""
    tokens_max: float
    """Longest completion of a batch, mean over batches."""
    batch: int
    """Completions of a batch."""
    swap_s: float
    ranks: int
    """Trainer ranks that were measured."""

    @property
    def step_seconds(self) -> StepSeconds:
        """Seconds of a decode step of one engine, in the mean."""
        return steps_from_line(self.base_s, self.slope_s)

    def replay(self, ranks: int) -> tuple[StepSeconds, UpdateSeconds]:
        """Return the seconds of decode steps and updates as they were measured, step by step and from the start again.

        Both sides follow the same step, so that a slow phase of the machine is slow for both. An update's seconds fall
        with the ranks in proportion.
        """
        line, share = self.step_seconds, self.trained_share * self.ranks / ranks
        trainer, ratios, done = self.trainer_seconds_per_token, self.step_ratios, [0]

        def step_seconds(running: float, context: float) -> float:
            return line(running, context) * ratios[done[0] % len(ratios)]

        def update_seconds(lengths: Lengths) -> float:  # called once a batch, when it is complete
            done[0] += 1
            return float(lengths.sum()) * share * trainer[(done[0] - 1) % len(trainer)]

        return step_seconds, update_seconds

    @property
    def trainer_tokens_per_s(self) -> float:
        """Trained tokens over the trainer's time without waiting."""
        return len(self.trainer_seconds_per_token) / math.fsum(self.trainer_seconds_per_token)


@dataclass(frozen=True, slots=True)
class RunRows:
    """A run's configuration and the rows that are looked at.

    Example: RunRows(config=RunConfig(...), rows=[{"step": 25, ...}, ...])
    """

    config: RunConfig
    rows: list[dict[str, Any]]


def read_run(path: Path) -> RunRows:
    """Read a run directory; the first fifth of its steps is left out.

    Raises:
        ConfigError: no run there, or too few steps.
    """
    try:
        config = parse_config(read_bytes(path / "config.toml").decode(), str(path / "config.toml"))
        lines = read_bytes(path / "metrics.jsonl").decode().split("\n")
    except OSError as error:
        raise ConfigError(
            f"{path}: not a run directory with config.toml and metrics.jsonl ({trouble(error)})"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: config.toml or metrics.jsonl is not UTF-8 text; give an undamaged run") from None
    # the last line of a run that is training, or was killed, may be half of one
    rows = [_row(line, f"{path / 'metrics.jsonl'} line {n}") for n, line in enumerate(lines, 1) if line.endswith("}")]
    kept = rows[math.ceil(WARM_UP * len(rows)) :]
    if len(kept) < 5:
        raise ConfigError(f"{path}: got {len(rows)} steps; at least 7 are needed to read speeds from")
    return RunRows(
        config,
        [{**row, "before": before["tokens"]} for before, row in zip(rows[-len(kept) - 1 : -1], kept, strict=True)],
    )


NUMBERS = (
    "tokens", "trained_tokens", "prompts", "completion_tokens_mean", "completion_tokens_max", "generator_idle",
    "step_s", "trainer_tokens_per_s", "swap_ms",
)  # fmt: skip
"""Columns that every row must have; `occupancy` and `generator_tokens_per_s` may be null."""


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON ({error}); give an undamaged run") from None
    odd = [name for name in NUMBERS if not isinstance(row, dict) or not isinstance(row.get(name), int | float)]
    odd += [name for name in ("occupancy", "generator_tokens_per_s") if name not in odd and name not in row]
    if odd:
        raise ConfigError(f"{where}: no number in {', '.join(odd[:3])}; give a run of this version")
    return dict(row)


def generator_steps(run: RunRows) -> list[tuple[float, float, float] | None]:
    """Return (running sequences of an engine, seconds of a decode step, decode steps) of each row; None without them.

    `generator_tokens_per_s` is over the generator's busy and idle time, `occupancy` over its decode steps: busy seconds
    are tokens / rate x (1 - idle), decode steps tokens / (occupancy x slots). What the generator did besides, handling
    messages, is neither busy nor idle in the metrics; here it is spread over the decode steps.
    """
    found: list[tuple[float, float, float] | None] = []
    slots, engines = run.config.slots, run.config.placement.engines
    besides = handling(run)
    for row in run.rows:
        tokens, occupancy, rate = row["tokens"] - row["before"], row["occupancy"], row["generator_tokens_per_s"]
        if not occupancy or not rate or tokens <= 0:
            found.append(None)  # two batches were complete at one step
            continue
        steps = tokens / (occupancy * slots)
        busy = tokens / rate * (1 - row["generator_idle"]) * besides
        found.append((occupancy * slots / engines, busy / steps, steps))
    return found


def generator_seconds(run: RunRows) -> tuple[float, float]:
    """Return the generator's busy and idle seconds."""
    lived = [
        ((row["tokens"] - row["before"]) / row["generator_tokens_per_s"], row["generator_idle"])
        for row in run.rows
        if row["generator_tokens_per_s"]
    ]
    idle = math.fsum(seconds * share for seconds, share in lived)
    return math.fsum(seconds for seconds, _ in lived) - idle, idle


def handling(run: RunRows) -> float:
    """Return the seconds in which the generator was not idle, over those that its metrics call busy; at least 1."""
    busy, idle = generator_seconds(run)
    wall = math.fsum(row["step_s"] for row in run.rows)
    return max(1.0, (wall - idle) / busy) if busy > 0 else 1.0


def line_through(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return (base, slope), neither negative, of the seconds of a step over its running sequences.

    Weighted least squares; where sequences varied little, the mean seconds and 0.
    """
    n, seconds, weight = (np.asarray(column) for column in zip(*points, strict=True))
    mean_n, mean_s = float(np.average(n, weights=weight)), float(np.average(seconds, weights=weight))
    if float(n.max() - n.min()) < SPREAD * mean_n:
        return mean_s, 0.0
    slope = float(np.average((n - mean_n) * (seconds - mean_s), weights=weight))
    slope /= float(np.average((n - mean_n) ** 2, weights=weight))
    slope = min(max(slope, 0.0), mean_s / mean_n)  # a base below 0 would be a line through the origin
    return mean_s - slope * mean_n, slope


def measure(paths: Sequence[Path]) -> Measured:
    """Read one run, or several that differ in slots, which shows how a step's seconds depend on its sequences.

    Raises:
        ConfigError: a path is no run, or its generators reported no decode steps.
    """
    runs = [read_run(path) for path in paths]
    points = [point for run in runs for point in generator_steps(run)]
    steps = [point for point in points if point is not None]
    if not steps:
        raise ConfigError(f"{', '.join(map(str, paths))}: no step has an occupancy, so decode steps cannot be told")
    base, slope = line_through(steps)
    rows = [row for run in runs for row in run.rows]
    # a step without trained tokens took no time that a token could be charged with
    trainer, ratios = zip(
        *[
            (1.0 / row["trainer_tokens_per_s"], 1.0 if point is None else point[1] / (base + slope * point[0]))
            for row, point in zip(rows, points, strict=True)
            if row["trained_tokens"]
        ],
        strict=True,
    )
    recipe = runs[0].config.recipe
    completions = [row["prompts"] * recipe.generations_per_prompt * row["completion_tokens_mean"] for row in rows]
    return Measured(
        base_s=base,
        slope_s=slope,
        trainer_seconds_per_token=trainer,
        step_ratios=ratios,
        trained_share=sum(row["trained_tokens"] for row in rows) / math.fsum(completions),
        tokens_mean=math.fsum(row["completion_tokens_mean"] for row in rows) / len(rows),
        tokens_max=math.fsum(row["completion_tokens_max"] for row in rows) / len(rows),
        batch=recipe.completions_per_step,
        swap_s=float(np.median([row["swap_ms"] for row in rows])) / 1e3,
        ranks=runs[0].config.placement.trainer_ranks,
    )


def lengths_like(mean: float, longest: float, batch: int, control: LengthControl) -> Lengths:
    """Return lognormal lengths of a mean whose longest in a batch is `longest` in the mean.

    Metrics hold no more than these two; sigma is the best of 0.1, 0.2 ... 2.

    Args:
        mean: tokens.
        longest: of a batch, mean over batches.
        batch: completions of a batch.
        control: the recipe's.
    """
    best = min(SIGMAS, key=lambda sigma: abs(_mean_longest(lognormal(mean, sigma, control, 1 << 12), batch) - longest))
    return lognormal(mean, best, control)


def _mean_longest(lengths: Lengths, batch: int) -> float:
    """Return the expected maximum of `batch` draws: sum over x of x ((F(x))^B - F(x-)^B)."""
    ordered = np.sort(lengths)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    return float((ordered * np.diff(share**batch, prepend=0.0)).sum())
