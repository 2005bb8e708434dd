"""Report of a run that stops because its loss, gradient or weights are not finite: the saved batch and a message."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from scalerl.config.recipe import AdamW
from scalerl.training.checkpoint import save_state
from scalerl.training.learner.base import BadGradient, TrainBatch


def save_batch(run: Path, updates: int, batch: TrainBatch) -> Path:
    """Write the batch of a failed update and return its directory.

    Args:
        run: The run directory.
        updates: Number of updates before the failed one.
        batch: Batch of the failed update.
    """
    path = run / "bad_batch"
    save_state(path, f"step_{updates:06d}", {f.name: getattr(batch, f.name) for f in fields(batch)})
    return path


def message(
    error: BadGradient, batch: Path | None, checkpoint: Path | None, updates: int, run: Path, optimizer: AdamW
) -> str:
    """Return a message with the cause and what the user can do.

    Args:
        error: The reason why the run stops.
        batch: Directory of the saved batch; None if the weights after `updates` updates are not finite.
        checkpoint: The latest checkpoint; None if there is none.
        updates: Number of completed updates.
        run: The run directory.
        optimizer: Optimizer of the recipe.
    """
    where = f"step {updates + 1}: {error}. The batch is saved in {batch}" if batch else f"step {updates}: {error}"
    start = "none, so a resume starts at step 0"
    lower = optimizer.rate(max(updates, optimizer.warmup_steps)) / 2
    return (
        f"{where}; the last good checkpoint is {checkpoint or start}. The usual remedy is a lower learning rate: "
        f"scalerl resume {run} --recipe.optimizer.learning_rate {lower:.3g}. If it fails again, remove the newest "
        f"directory in {run / 'checkpoints'} first, to resume from an earlier step; at step 1, check the model"
    )
