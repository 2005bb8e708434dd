"""Speeds and lengths of earlier runs, read from metrics.jsonl, for plans of similar runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.cluster.lengths import lognormal
from scalerl.cluster.speed import Lengths, StepSeconds, UpdateSeconds, steps_from_line
from scalerl.config.overrides import parse_config
from scalerl.config.recipe import LengthControl
from scalerl.config.run import RunConfig
from scalerl.core.errors import ConfigError
from scalerl.core.files import parse_json, read_bytes, trouble

WARM_UP = 0.2
"""Share of a run's rows that is ignored, while processes warm up and slots fill."""

SPREAD = 0.2
"""Minimum range of the number of running sequences, relative to its mean, for a fit of the slope."""

SIGMAS = tuple(round(0.1 * i, 1) for i in range(1, 21))


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of runs.

    Example: Measured(base_s=0.004, slope_s=3e-5, trainer_seconds_per_token=(5.8e-5, ...), step_ratios=(1.02,
                      ...), trained_share=0.93, tokens_mean=28.8, tokens_max=68.1, batch=256, swap_s=0.0014, ranks=1)
    """

    base_s: float
    """Seconds of a decode step without sequences."""
    slope_s: float
    """Seconds that each running sequence of an engine adds; 0 if their number did not vary enough."""
    trainer_seconds_per_token: tuple[float, ...]
    """Trainer seconds per trained token, for each step."""
    step_ratios: tuple[float, ...]
    """Measured over predicted (base and slope) seconds of the decode steps, for each entry of
    `trainer_seconds_per_token`."""
    trained_share: float
    """Trained tokens divided by completion tokens."""
    tokens_mean: float
    """Mean length of completions."""
    tokens_max: float
    """Longest completion of a batch, mean over batches."""
    batch: int
    """Completions per batch."""
    swap_s: float
    ranks: int
    """Trainer ranks of the measured runs."""

    @property
    def step_seconds(self) -> StepSeconds:
        """Mean seconds of a decode step of one engine."""
        return steps_from_line(self.base_s, self.slope_s)

    def replay(self, ranks: int) -> tuple[StepSeconds, UpdateSeconds]:
        """Return the measured seconds of decode steps and updates, step by step; after the last step they repeat.

        Both follow the same step, so that a slow phase of the machine is slow for both. The seconds of an update are
        inversely proportional to the number of ranks.
        """
        line, share = self.step_seconds, self.trained_share * self.ranks / ranks
        trainer, ratios, done = self.trainer_seconds_per_token, self.step_ratios, [0]

        def step_seconds(running: float, context: float) -> float:
            return line(running, context) * ratios[done[0] % len(ratios)]

        def update_seconds(lengths: Lengths) -> float:  # called once per batch, when it is complete
            done[0] += 1
            return float(lengths.sum()) * share * trainer[(done[0] - 1) % len(trainer)]

        return step_seconds, update_seconds

    @property
    def trainer_tokens_per_s(self) -> float:
        """Trained tokens per second of the trainer's time without waiting."""
        return len(self.trainer_seconds_per_token) / math.fsum(self.trainer_seconds_per_token)


@dataclass(frozen=True, slots=True)
class RunRows:
    """A run's configuration and the rows used.

    Example: RunRows(config=RunConfig(...), rows=[{"step": 25, ...}, ...])
    """

    config: RunConfig
    rows: list[dict[str, Any]]


def read_run(path: Path) -> RunRows:
    """Read a run directory without the first fifth of its steps.

    Raises:
        ConfigError: It is not a run, or has too few steps.
    """
    try:
        config = parse_config(read_bytes(path / "config.toml").decode(), str(path / "config.toml"))
        lines = read_bytes(path / "metrics.jsonl").decode().split("\n")
    except OSError as error:
        raise ConfigError(
            f"{path}: not a run directory with config.toml and metrics.jsonl ({trouble(error)}); give one"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: config.toml or metrics.jsonl is not UTF-8 text; give an undamaged run") from None
    # the last line may be incomplete if the run is training or was killed
    rows = [_row(line, f"{path / 'metrics.jsonl'} line {n}") for n, line in enumerate(lines, 1) if line.endswith("}")]
    kept = rows[math.ceil(WARM_UP * len(rows)) :]
    if len(kept) < 5:
        raise ConfigError(f"{path}: got {len(rows)} steps; allowed: at least 7, to measure speeds; give a longer run")
    return RunRows(
        config,
        [{**row, "before": before["tokens"]} for before, row in zip(rows[-len(kept) - 1 : -1], kept, strict=True)],
    )


NUMBERS = (
    "tokens", "trained_tokens", "prompts", "completion_tokens_mean", "completion_tokens_max", "generator_idle",
    "step_s", "trainer_tokens_per_s", "swap_ms",
)  # fmt: skip
"""Columns that must be numbers in every row; `occupancy` and `generator_tokens_per_s` may be null."""


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line, finite=True)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON ({error}); give an undamaged run") from None
    odd = [name for name in NUMBERS if not isinstance(row, dict) or not isinstance(row.get(name), int | float)]
    odd += [name for name in ("occupancy", "generator_tokens_per_s") if name not in odd and name not in row]
    if odd:
        raise ConfigError(
            f"{where}: no number in the columns {', '.join(odd[:3])}; give a run of this version of scalerl"
        )
    return dict(row)


def generator_steps(run: RunRows) -> list[tuple[float, float, float] | None]:
    """Return (running sequences per engine, seconds per decode step, decode steps) for each row, None if unknown.

    `generator_tokens_per_s` refers to the generator's busy and idle time, `occupancy` to its decode steps. Therefore
    busy seconds = tokens / rate x (1 - idle), and decode steps = tokens / (occupancy x slots). The time for handling
    messages is neither busy nor idle in the metrics; here it is distributed over the decode steps.
    """
    found: list[tuple[float, float, float] | None] = []
    slots, engines = run.config.slots, run.config.placement.engines
    besides = handling(run)
    for row in run.rows:
        tokens, occupancy, rate = row["tokens"] - row["before"], row["occupancy"], row["generator_tokens_per_s"]
        if not occupancy or not rate or tokens <= 0:
            found.append(None)  # two batches were complete at the same step
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
    """Return the generator's non-idle seconds divided by its busy seconds in the metrics; at least 1."""
    busy, idle = generator_seconds(run)
    wall = math.fsum(row["step_s"] for row in run.rows)
    return max(1.0, (wall - idle) / busy) if busy > 0 else 1.0


def line_through(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Fit seconds of a step = base + slope x running sequences; return (base, slope), both non-negative.

    Weighted least squares; if the number of sequences varied little, the mean seconds and 0.
    """
    n, seconds, weight = (np.asarray(column) for column in zip(*points, strict=True))
    mean_n, mean_s = float(np.average(n, weights=weight)), float(np.average(seconds, weights=weight))
    if float(n.max() - n.min()) < SPREAD * mean_n:
        return mean_s, 0.0
    slope = float(np.average((n - mean_n) * (seconds - mean_s), weights=weight))
    slope /= float(np.average((n - mean_n) ** 2, weights=weight))
    # at most the line through the origin, so that the base is not negative
    slope = min(max(slope, 0.0), mean_s / mean_n)
    return mean_s - slope * mean_n, slope


def measure(paths: Sequence[Path]) -> Measured:
    """Read one run, or several with different slots to fit how a step's seconds depend on its sequences.

    Raises:
        ConfigError: A path is not a run, or its metrics have no decode steps.
    """
    runs = [read_run(path) for path in paths]
    points = [point for run in runs for point in generator_steps(run)]
    steps = [point for point in points if point is not None]
    if not steps:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no step has an occupancy, so the decode steps are unknown; give another run"
        )
    base, slope = line_through(steps)
    rows = [row for run in runs for row in run.rows]
    # steps without trained tokens have no seconds per token
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
    """Return lognormal lengths that match a mean and a mean batch maximum.

    Metrics contain only these two statistics; sigma is the best of 0.1, 0.2, ..., 2.

    Args:
        mean: Mean length, tokens.
        longest: Longest completion of a batch, mean over batches.
        batch: Completions per batch.
        control: The recipe's length control.
    """
    best = min(SIGMAS, key=lambda sigma: abs(_mean_longest(lognormal(mean, sigma, control, 1 << 12), batch) - longest))
    return lognormal(mean, best, control)


def _mean_longest(lengths: Lengths, batch: int) -> float:
    """Return the expected maximum of `batch` draws: sum over x of x ((F(x))^B - F(x-)^B)."""
    ordered = np.sort(lengths)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    return float((ordered * np.diff(share**batch, prepend=0.0)).sum())
