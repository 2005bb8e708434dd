"""What a run leaves that stops because its loss, its gradient or its weights are not finite."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from scalerl.config.recipe import AdamW
from scalerl.training.checkpoint import save_state
from scalerl.training.learner.base import BadGradient, TrainBatch


def save_batch(run: Path, updates: int, batch: TrainBatch) -> Path:
    """Write the batch of a failed update; return its directory.

    Args:
        run: directory of the run.
        updates: done before it.
        batch: of the update.
    """
    path = run / "bad_batch"
    save_state(path, f"step_{updates:06d}", {f.name: getattr(batch, f.name) for f in fields(batch)})
    return path


def message(
    error: BadGradient, batch: Path | None, checkpoint: Path | None, updates: int, run: Path, optimizer: AdamW
) -> str:
    """Return what happened and what a user can do.

    Args:
        error: why the run stops.
        batch: where the batch is saved; None: the weights are at fault, after so many updates.
        checkpoint: the latest one; None: there is none.
        updates: done until now.
        run: directory of the run.
        optimizer: of its recipe.
    """
    where = f"step {updates + 1}: {error}. The batch is saved in {batch}" if batch else f"step {updates}: {error}"
    start = "none, so a resume begins with step 0"
    lower = optimizer.rate(max(updates, optimizer.warmup_steps)) / 2
    return (
        f"{where}; the last good checkpoint is {checkpoint or start}. The usual remedy is a lower learning rate: "
        f"scalerl resume {run} --recipe.optimizer.learning_rate {lower:.3g}. Where it fails again, remove the newest "
        f"directory in {run / 'checkpoints'} first, so that the run goes back further; at step 1, check the model"
    )
