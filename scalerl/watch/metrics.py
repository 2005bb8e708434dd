"""The columns of metrics.jsonl for a reader: groups, names, meanings, units, and where a value is a warning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.config import RunConfig
from scalerl.report.display import UNSTABLE_TRUNCATION, WARN_TRUNCATION, truncation_warning
from scalerl.report.falling import moved
from scalerl.report.occupancy import LOW, WINDOW, OccupancyWatch
from scalerl.scaling import Curve
from scalerl.scaling.health import decline
from scalerl.watch.series import number

GROUPS = ("learning", "staleness", "lengths", "speed", "occupancy")


@dataclass(frozen=True, slots=True)
class Metric:
    """What a column means.

    Example: Metric("learning", "Entropy", "mean entropy of the policy at trained tokens", "nats")
    """

    group: str
    label: str
    meaning: str
    unit: str = ""
    above: tuple[float, ...] = ()
    """Values above the first ask for caution; above the second training is usually unstable."""
    below: tuple[float, ...] = ()
    """The same for values below."""
    share: bool = False
    """It is a share, shown in percent."""


METRICS = {
    "pass_rate": Metric("learning", "Pass rate of the batch", "share of the batch's rollouts that passed", share=True),
    "reward": Metric("learning", "Reward", "mean reward of the batch, length penalty included"),
    "kept_prompts": Metric("learning", "Kept prompts", "prompts whose rewards had variance; only they are trained on"),
    "prompts": Metric("learning", "Prompts", "prompts in the batch"),
    "entropy": Metric(
        "learning", "Entropy", "mean entropy of the policy at trained tokens; near 0 it no longer explores", "nats"
    ),
    "grad_norm": Metric("learning", "Gradient norm", "L2 norm before clipping; 0 for a skipped step"),
    "loss": Metric("learning", "Loss", "the aggregated loss; its level means little, its finiteness much"),
    "learning_rate": Metric("learning", "Learning rate", "the step's rate; 0 for a skipped step"),
    "trained_tokens": Metric("learning", "Trained tokens", "tokens that entered the loss", "tokens"),
    "epoch": Metric("learning", "Epoch", "epochs of the prompt pool begun"),
    "retired_prompts": Metric("learning", "Retired prompts", "prompts that were solved and are drawn no more, so far"),
    "staleness_mean": Metric(
        "staleness", "Staleness, mean", "updates between the weights that sampled a token and the update that takes it",
        "updates",
    ),
    "staleness_max": Metric("staleness", "Staleness, largest", "age of the weights of the oldest token", "updates"),
    "stale_share": Metric(
        "staleness", "Too old", "share of sampled tokens that are older than k and carry no loss", share=True
    ),
    "log_ratio_mean": Metric(
        "staleness", "Log ratio, mean", "log of the probability ratio trainer / generator over trained tokens", "nats"
    ),
    "log_ratio_min": Metric(
        "staleness", "Log ratio, least", "least log ratio of one token: the trainer finds it less likely", "nats"
    ),
    "log_ratio_max": Metric(
        "staleness", "Log ratio, greatest", "greatest log ratio of one token: the trainer finds it more likely", "nats"
    ),
    "capped_share": Metric(
        "staleness", "Capped", "share of trained tokens whose ratio was capped or clipped", share=True
    ),
    "router_disagreement": Metric(
        "staleness", "Router disagreement",
        "mixtures of experts: share of tokens and layers whose experts differ between generation and training",
        share=True,
    ),
    "dropped_groups": Metric("staleness", "Dropped groups", "groups that no update could train in time, so far"),
    "replay_difference": Metric(
        "staleness", "Replay difference",
        "largest difference between log-probabilities of the engine and of the trainer at the last evaluation", "nats",
    ),
    "completion_tokens_mean": Metric("lengths", "Length, mean", "mean length of the batch's completions", "tokens"),
    "completion_tokens_max": Metric("lengths", "Length, longest", "length of the batch's longest completion", "tokens"),
    "truncation_rate": Metric(
        "lengths", "Truncated", "share of rollouts that ran into their length limit and so failed",
        above=(WARN_TRUNCATION, UNSTABLE_TRUNCATION), share=True,
    ),
    "interruption_rate": Metric(
        "lengths", "Interrupted", "share of rollouts whose thinking was ended by the phrase", share=True
    ),
    "step_s": Metric("speed", "Step", "wall-clock time of the step", "s"),
    "generator_tokens_per_s": Metric("speed", "Generator", "tokens sampled a second", "tokens/s"),
    "trainer_tokens_per_s": Metric("speed", "Trainer", "tokens trained a second, without waiting", "tokens/s"),
    "swap_ms": Metric("speed", "Weight swap", "how long the generator's last weight swap took", "ms"),
    "scoring_wait_s": Metric("speed", "Wait for scores", "how long the step waited for verifiers", "s"),
    "device_hours": Metric("speed", "Device-hours", "devices held times training time, so far", "h"),
    "flops": Metric("speed", "FLOPs", "floating-point operations of training and generation, so far"),
    "tokens": Metric("speed", "Tokens", "tokens generated for training, so far", "tokens"),
    "occupancy": Metric(
        "occupancy", "Busy slots", "share of the engines' slots that were decoding", below=(LOW,), share=True
    ),
    "generator_idle": Metric(
        "occupancy", "Generator idle", "share of its time that it waited for weights or prompts", share=True
    ),
    "trainer_idle": Metric(
        "occupancy", "Trainer idle", "share of the step's time that it waited for the batch", share=True
    ),
    "engine_restarts": Metric(
        "occupancy", "Engine restarts", "engines that died and were started again, so far", above=(0.0,)
    ),
    "resampled": Metric("occupancy", "Resampled", "sequences sampled again because their engine died, so far"),
    "verifier_timeouts": Metric(
        "occupancy", "Verifier timeouts", "completions whose verifier had to be stopped, so far", above=(0.0,)
    ),
    "reward_failures": Metric(
        "occupancy", "Reward failures", "completions without a reward because the verifier itself failed, so far",
        above=(0.0,),
    ),
}  # fmt: skip
"""Every column but `step`, in the order in which it is shown."""


TROUBLE = {
    "engine_restarts": "engine restarts so far: the notes of the run say why",
    "verifier_timeouts": "completions so far whose verifier had to be stopped",
    "reward_failures": "completions so far got no reward, because the reward function or verifier itself failed",
}
"""Counters that are 0 in a healthy run, and what to say of them."""


def level_of(name: str, value: float) -> str:
    """Return "caution" or "bad" where a value crosses a threshold of its metric; "" where it does not."""
    metric = METRICS[name]
    crossed = [value > bound for bound in metric.above] + [value < bound for bound in metric.below]
    return ("", "caution", "bad")[min(2, sum(crossed))]


def warnings(rows: Sequence[Mapping[str, Any]], config: RunConfig) -> list[str]:
    """Return what to say about the last rows of a run: truncation, empty slots, restarts, rewards that failed."""
    if not rows:
        return []
    filled = [{name: number(row.get(name)) for name in ("step", *METRICS)} for row in rows[-WINDOW:]]
    recent = [row["truncation_rate"] for row in filled if math.isfinite(row["truncation_rate"])]
    found = [truncation_warning(math.fsum(recent) / len(recent)) if recent else None]
    slots = OccupancyWatch(config)
    found += [slots.warning(row) for row in filled][-1:]
    found += [f"{filled[-1][name]:.0f} {words}" for name, words in TROUBLE.items() if filled[-1][name] > 0]
    return [text for text in found if text]


def fall(curve: Curve, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what to say about a curve that falls, with the metrics that moved; None where it does not."""
    symptom = decline(curve)
    if symptom is None:
        return None
    filled = [{name: number(row.get(name)) for name in METRICS} for row in rows]
    changes = moved(filled)
    also = f"; what moved: {', '.join(changes)}" if changes else "; no other metric moved clearly"
    return f"the held-out pass rate of {curve.label} has fallen by {symptom.numbers['fall']:.3f} since its best{also}"
