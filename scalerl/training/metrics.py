"""The metrics of a training step: those of its rollouts and update, and of the processes around them."""

from __future__ import annotations

import math
from typing import Any

from scalerl.rollouts.pipeline import RolloutBatch
from scalerl.training.batch import answer_row, environment_row
from scalerl.training.run import Run
from scalerl.types import GeneratorStats


def record_step(run: Run, taken: RolloutBatch, row: dict[str, Any], before: GeneratorStats, step_s: float) -> None:
    """Write and show one training step, and what the processes have to say.

    Args:
        run: The run.
        taken: The batch.
        row: Metrics of the rollouts and of the update.
        before: The generators' counters at the batch before.
        step_s: Duration of the step, seconds.
    """
    for note in (*run.pipeline.notes(), *run.scoring.notes()):
        run.records.display.note(note)
    run.records.step(step_row(run, taken, row, before, step_s))


def step_row(
    run: Run, taken: RolloutBatch, row: dict[str, Any], before: GeneratorStats, step_s: float
) -> dict[str, Any]:
    """Return a row of metrics.jsonl; arguments as for `record_step`."""
    progress, now = run.progress, taken.stats
    lived = max(1e-9, now.busy_s + now.idle_s - before.busy_s - before.idle_s)
    tokens, slot_steps = now.tokens - before.tokens, now.slot_steps - before.slot_steps
    environments = environment_row(taken.groups)
    if environments:
        environments["parked"] = (now.parked_s - before.parked_s) / lived
    return {
        "step": progress.step,
        **row,
        **answer_row(taken.groups),
        **environments,
        # if two batches complete at the same tick, the second has no decode steps
        "occupancy": tokens / slot_steps if slot_steps else math.nan,
        "generator_tokens_per_s": tokens / lived,
        "generator_idle": (now.idle_s - before.idle_s) / lived,
        "trainer_tokens_per_s": row["trained_tokens"] / max(1e-9, step_s - taken.waited_s),
        "trainer_idle": taken.waited_s / max(1e-9, step_s),
        "scoring_wait_s": taken.scoring_s,
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
