"""Speeds of earlier runs, read from metrics.jsonl, and lengths of completions: like those of runs, or lognormal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scalerl.core.errors import ConfigError, short
from scalerl.core.rows import read_rows
from scalerl.training.config.base import chosen
from scalerl.training.config.length import Interruption, LengthControl
from scalerl.training.config.overrides import read_config
from scalerl.training.config.run import RunConfig
from scalerl.training.machines.speed import Lengths, StepSeconds, UpdateSeconds, updates_from_rate

WARM_UP = 0.2
"""Share of a run's rows that is ignored, while processes warm up and slots fill."""

SPREAD = 0.2
"""Minimum range of the number of running sequences, relative to its mean, for a fit of the slope."""

SIGMAS = tuple(round(0.1 * i, 1) for i in range(1, 21))

POPULATION = 1 << 16
"""Number of lengths that a simulation draws from."""

NUMBERS = (
    "tokens", "trained_tokens", "prompts", "completion_tokens_mean", "completion_tokens_max", "generator_idle",
    "step_s", "trainer_tokens_per_s", "swap_ms",
)  # fmt: skip
"""Columns that must be numbers; rows without them are not used."""
COLUMNS = {"occupancy", "generator_tokens_per_s"}
"""Columns that may be null."""
SHARES, LARGEST = {"generator_idle": 1.0 + 1e-9}, 1e15
"""Upper limits of columns that are shares, and of the others."""
POSITIVE = {"prompts", "completion_tokens_mean", "completion_tokens_max"}
"""Columns that are above 0."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of runs.

    Example: Measured(base_s=0.004, slope_s=3e-5, trainer_tokens_per_s=17200.0, drift=((1.02, 0.97), ...),
                      trained_share=0.93, tokens_mean=28.8, tokens_max=68.1, batch=256, swap_s=0.0014, ranks=1)
    """

    base_s: float
    """Seconds of a decode step without sequences."""
    slope_s: float
    """Seconds that each running sequence of an engine adds; 0 if their number did not vary enough."""
    trainer_tokens_per_s: float
    """Trained tokens per second of the trainer's time without waiting."""
    drift: tuple[tuple[float, float], ...]
    """For each training step: the seconds of its decode steps divided by base + slope x sequences, and its trainer
    seconds per token divided by their mean. Both sides follow the same step, so that a slow phase of the machine is
    slow for both."""
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
        return lambda running, context: self.base_s + self.slope_s * running

    def update_seconds(self, ranks: int) -> UpdateSeconds:
        """Return the mean seconds of an update, inversely proportional to the number of ranks."""
        return updates_from_rate(self.trainer_tokens_per_s * ranks / self.ranks / self.trained_share)


class RunRows(NamedTuple):
    """A run's configuration and the rows used; `sampled` is the number of tokens since the row before.

    Example: RunRows(config=RunConfig(...), rows=[{"step": 25, "sampled": 7310, ...}, ...])
    """

    config: RunConfig
    rows: list[dict[str, Any]]


def read_speeds(path: Path) -> RunRows:
    """Read a run directory without the first fifth of its steps.

    Raises:
        ConfigError: It is not a run, or has too few steps.
    """
    config, all_rows = read_config(path / "config.toml", []), read_rows(path / "metrics.jsonl")
    rows = [
        row for row in all_rows if row.keys() >= COLUMNS and all(isinstance(row.get(n), int | float) for n in NUMBERS)
    ]
    for row in rows:
        _check_speeds(path, row)
    first = math.ceil(WARM_UP * len(rows))
    if len(rows) - first < 5:
        raise ConfigError(
            f"{path}: got {len(rows)} complete steps in metrics.jsonl; allowed: at least 7, to measure speeds; give a "
            "longer or undamaged run"
        )
    return RunRows(
        config, [{**rows[i], "sampled": rows[i]["tokens"] - rows[i - 1]["tokens"]} for i in range(first, len(rows))]
    )


def _check_speeds(path: Path, row: Mapping[str, Any]) -> None:
    """Check the numbers of a row; raises ConfigError."""
    for name in (*NUMBERS, *sorted(COLUMNS)):
        most = SHARES.get(name, LARGEST)
        least = int(name in POSITIVE or (name == "trainer_tokens_per_s" and row["trained_tokens"] != 0)) * 1e-15
        if row[name] is not None and not (_is_number(row[name]) and least <= row[name] <= most):
            raise ConfigError(
                f"{path}/metrics.jsonl: step {row.get('step')} has {name} = {short(row[name])}; allowed: a number "
                f"{'above' if least else 'from'} 0, at most {most:g}; give an undamaged run"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def generator_seconds(run: RunRows) -> tuple[float, float]:
    """Return the generator's busy and idle seconds."""
    lived = [
        (row["sampled"] / row["generator_tokens_per_s"], row["generator_idle"])
        for row in run.rows
        if row["generator_tokens_per_s"]
    ]
    idle = math.fsum(seconds * share for seconds, share in lived)
    return math.fsum(seconds for seconds, _ in lived) - idle, idle


def generator_steps(run: RunRows) -> list[tuple[float, float, float] | None]:
    """Return (running sequences per engine, seconds per decode step, decode steps) for each row, None if unknown.

    `generator_tokens_per_s` refers to the generator's busy and idle time, `occupancy` to its decode steps. Therefore
    busy seconds = tokens / rate x (1 - idle), and decode steps = tokens / (occupancy x slots). The time for handling
    messages is neither busy nor idle in the metrics; here it is distributed over the decode steps.
    """
    slots, engines = chosen(run.config.rollouts.slots), run.config.placement.engines
    busy, idle = generator_seconds(run)
    handling = max(1.0, (math.fsum(row["step_s"] for row in run.rows) - idle) / busy) if busy > 0 else 1.0
    steps_of_rows: list[tuple[float, float, float] | None] = []
    for row in run.rows:
        tokens, occupancy, rate = row["sampled"], row["occupancy"], row["generator_tokens_per_s"]
        busy_share = 1 - row["generator_idle"]
        if not occupancy or not rate or tokens <= 0 or busy_share <= 0:
            steps_of_rows.append(None)  # two batches were complete at the same step
            continue
        steps = tokens / (occupancy * slots)
        seconds = tokens / rate * busy_share * handling
        steps_of_rows.append((occupancy * slots / engines, seconds / steps, steps))
    return steps_of_rows


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
    runs = [read_speeds(path) for path in paths]
    pairs = [pair for run in runs for pair in zip(run.rows, generator_steps(run), strict=True)]
    rows, steps = [row for row, _ in pairs], [point for _, point in pairs if point]
    trained = [(row, point) for row, point in pairs if row["trained_tokens"]]  # others have no seconds per token
    if not steps or not trained:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no step has an occupancy and trained tokens, so the speeds are unknown; "
            "give another run"
        )
    base, slope = line_through(steps)
    rate = len(trained) / math.fsum(1.0 / row["trainer_tokens_per_s"] for row, _ in trained)
    recipe = runs[0].config.recipe
    completions = [row["prompts"] * recipe.generations_per_prompt * row["completion_tokens_mean"] for row in rows]
    return Measured(
        base_s=base,
        slope_s=slope,
        trainer_tokens_per_s=rate,
        drift=tuple(
            (point[1] / (base + slope * point[0]) if point else 1.0, rate / row["trainer_tokens_per_s"])
            for row, point in trained
        ),
        trained_share=sum(row["trained_tokens"] for row in rows) / math.fsum(completions),
        tokens_mean=math.fsum(row["completion_tokens_mean"] for row in rows) / len(rows),
        tokens_max=math.fsum(row["completion_tokens_max"] for row in rows) / len(rows),
        batch=recipe.completions_per_step,
        swap_s=float(np.median([row["swap_ms"] for row in rows])) / 1e3,
        ranks=runs[0].config.placement.trainer_ranks,
    )


# ------------------------------------------------------------------------------------------------------------- lengths


def cut(raw: npt.NDArray[np.float64], control: LengthControl, seed: int = 0) -> Lengths:
    """Apply the recipe's length control to lengths.

    Without interruption, longer completions end at the limit. With interruption, a completion that reaches its thinking
    limit, uniform over [low, high], continues with an answer of 1 to `answer_tokens` tokens, uniform.
    """
    rng = np.random.default_rng(seed)
    if isinstance(control, Interruption):
        low, high = control.thinking_tokens
        limit = rng.integers(low, high + 1, len(raw))
        answer = rng.integers(1, control.answer_tokens + 1, len(raw))
        raw = np.where(raw > limit, limit + answer, raw)
    lengths: Lengths = np.clip(np.rint(raw), 1, control.max_tokens).astype(np.int64)
    return lengths


def lognormal(mean: float, sigma: float, control: LengthControl, count: int = POPULATION) -> Lengths:
    """Return lognormal lengths whose mean is `mean` after length control.

    Args:
        mean: Mean length after length control, tokens.
        sigma: Standard deviation of the logarithm, before length control.
        control: The recipe's length control.
        count: Number of lengths.

    Raises:
        ConfigError: No lognormal distribution has that mean after length control.
    """
    shape = np.exp(sigma * np.random.default_rng(1).standard_normal(count))
    low, high = -10.0, 25.0  # bounds on the logarithm of the scale; the mean increases with it
    if not float(cut(shape * np.exp(low), control).mean()) <= mean <= float(cut(shape * np.exp(high), control).mean()):
        most = float(cut(shape * np.exp(high), control).mean())
        raise ConfigError(
            f"mean length: got {mean:g} tokens; allowed: 1 to {most:,.0f} with this recipe.length. Change "
            "rollouts.expected_tokens"
        )
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if cut(shape * np.exp(middle), control).mean() < mean else (low, middle)
    return cut(shape * np.exp(high), control)


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
