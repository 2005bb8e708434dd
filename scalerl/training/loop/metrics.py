"""Metrics of a step, as columns of metrics.jsonl: of its rollouts, its update and its processes (docs/metrics.md).

Legend: P prompts, G rollouts per prompt, B rows (sequences: one of each rollout, or several with agents), T tokens of
the longest prompt plus completion.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from scalerl.core.types import GeneratorStats, ScoredGroup
from scalerl.training.config.recipe import OffPolicy
from scalerl.training.engines.pipeline import RolloutBatch
from scalerl.training.learner.batch import RolloutTensors
from scalerl.training.loop.run import Run
from scalerl.training.rewards.answers import ANSWER_FORMS


def record_step(run: Run, batch: RolloutBatch, row: dict[str, Any], before: GeneratorStats, step_s: float) -> None:
    """Write and show one training step, and what the processes have to say.

    Args:
        run: The run.
        batch: The batch.
        row: Metrics of the rollouts and of the update.
        before: The generators' counters at the batch before.
        step_s: Duration of the step, seconds.
    """
    for note in (*run.pipeline.notes(), *run.scoring.notes()):
        run.records.display.note(note)
    run.records.step(step_row(run, batch, row, before, step_s))


def step_row(
    run: Run, batch: RolloutBatch, row: dict[str, Any], before: GeneratorStats, step_s: float
) -> dict[str, Any]:
    """Return a row of metrics.jsonl; arguments as for `record_step`."""
    progress, now = run.progress, batch.stats
    lived = max(1e-9, now.busy_s + now.idle_s - before.busy_s - before.idle_s)
    tokens, slot_steps = now.tokens - before.tokens, now.slot_steps - before.slot_steps
    environments = environment_row(batch.groups)
    if environments:
        environments["parked"] = (now.parked_s - before.parked_s) / lived
    return {
        "step": progress.step,
        **row,
        **answer_row(batch.groups),
        **environments,
        # if two batches complete at the same tick, the second has no decode steps
        "occupancy": tokens / slot_steps if slot_steps else math.nan,
        "generator_tokens_per_s": tokens / lived,
        "generator_idle": (now.idle_s - before.idle_s) / lived,
        "trainer_tokens_per_s": row["trained_tokens"] / max(1e-9, step_s - batch.waited_s),
        "trainer_idle": batch.waited_s / max(1e-9, step_s),
        "scoring_wait_s": batch.scoring_s,
        "swap_ms": 1e3 * now.swap_s,
        "step_s": step_s,
        "epoch": run.curriculum.epoch,
        "retired_prompts": run.curriculum.num_retired,
        "dropped_groups": progress.dropped_groups,
        "verifier_timeouts": run.scoring.timeouts,
        "reward_failures": run.scoring.failures,
        "replay_difference": progress.replay_difference,
        "engine_restarts": now.restarts,
        "resampled": now.resampled,
        "device_hours": run.compute.device_hours,
        "flops": progress.flops,
        "tokens": now.tokens,
    }


def why_untrained(rollouts: RolloutTensors, usable_BT: Tensor) -> str:
    """Return why a batch has no trained token, given the tokens that may carry loss before prompts are filtered."""
    usable_B, counted_B = usable_BT.any(dim=1), rollouts.counted_PG.view(-1)[rollouts.rollout_B]
    causes = {
        "without a reward": ~counted_B,
        "truncated": ~usable_B & counted_B & rollouts.truncated_B,
        "too old": ~usable_B & counted_B & ~rollouts.truncated_B,
    }
    counts = {cause: int(rollouts_B.sum()) for cause, rollouts_B in causes.items() if rollouts_B.any()}
    parts = ", ".join(f"{count} {cause}" for cause, count in counts.items())
    if not usable_B.any():
        return f"none of the {len(usable_B)} rollouts can carry loss ({parts})"
    detail = f" among the rollouts that can carry loss ({parts} of {len(usable_B)})" if parts else ""
    return f"no prompt had any variance in its rewards{detail}"


def staleness(rollouts: RolloutTensors, now: int, off_policy: OffPolicy) -> dict[str, float]:
    """Return the staleness in updates of the batch's sampled tokens, and the share that was too old to carry loss.

    Without a sampled token, as if all programs of agents failed, they are NaN.
    """
    age_N, bound = (now - rollouts.version_BT[rollouts.sampled_BT]).float(), off_policy.max_lag
    if not len(age_N):
        return dict.fromkeys(("staleness_mean", "staleness_max", "stale_share"), math.nan)
    return {
        "staleness_mean": float(age_N.mean()),
        "staleness_max": float(age_N.max()),
        "stale_share": float((age_N > bound).float().mean()),
    }


def environment_row(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the metrics of the step's rollouts with an environment, and the means of its own numbers."""
    ends = [rollout.outcome for group in groups for rollout in group.group.rollouts if rollout.outcome]
    columns: dict[str, list[float]] = {
        "turns": [end.turns for end in ends],
        "tool_calls": [end.calls for end in ends],
        "observed_tokens": [end.observed for end in ends],
        "reply_wait_s": [end.waited_s for end in ends],
    }
    for end in ends:
        for name, value in end.metrics.items():
            columns.setdefault(f"environment/{name}", []).append(value)
    return {name: sum(values) / len(values) for name, values in columns.items() if values}


def answer_row(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return shares of the batch's answers: in the prompt (of the passes; NaN without one), by form, and unread."""
    passes = [score.in_prompt for group in groups for score in group.scores if score.passed]
    row = {"answer_in_prompt": sum(passes) / len(passes) if passes else math.nan}
    scores = [score for group in groups for score in group.scores if score.form]
    if scores:
        forms = Counter(score.form for score in scores)
        row |= {f"answer_{form}": forms[form] / len(scores) for form in ANSWER_FORMS}
        row["answer_unread"] = sum(score.text_only for score in scores) / len(scores)
    return row


def batch_row(rollouts: RolloutTensors, rewards_PG: Tensor, keep_P: Tensor) -> dict[str, Any]:
    """Return the metrics of the step's rollouts."""
    tokens_PG = rollouts.completion_tokens_PG.float()
    return {
        "pass_rate": float(rollouts.passed_PG[rollouts.counted_PG].float().mean()),
        "reward": float(rewards_PG[rollouts.counted_PG].mean()),
        "prompts": len(keep_P),
        "kept_prompts": int(keep_P.sum()),
        "truncation_rate": rollouts.share_of_rollouts(rollouts.truncated_B),
        "interruption_rate": rollouts.share_of_rollouts(rollouts.interrupted_B),
        "completion_tokens_mean": float(tokens_PG.mean()),
        "completion_tokens_max": int(tokens_PG.max()),
    }
