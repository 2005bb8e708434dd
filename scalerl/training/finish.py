"""End of a run: last checkpoint, exported model and summary."""

from __future__ import annotations

import shutil

from scalerl.core.files import move_into
from scalerl.rollouts.pipeline import Interrupted
from scalerl.tasks.user_rewards import RewardError
from scalerl.training.loop import train
from scalerl.training.session import Session
from scalerl.view.summary import summarize


def run_to_end(run: Session) -> list[str]:
    """Train until the run ends, save its results, and return the closing lines for the user.

    Raises:
        TrainingFailed, WorkerDied, LearnerDied, RewardError: Raised after everything that can be saved is saved.
    """
    try:
        run.pipeline.wait_ready()
    except Interrupted:  # no work was done since the checkpoint or the start
        return [_stopped(run)]
    try:
        run.evaluate_if_missing()  # R(0) before the first update, or an evaluation that a failed reward function ended
        run.phase("training")
        run.clock.start()
        train(run)
    except Interrupted:
        pass
    except RewardError:
        run.checkpoint(wait=True)  # only the failed step is lost, and a resume repeats it
        raise
    run.phase("saving")
    run.commit_checkpoints(wait=True)
    if run.progress.step not in run.checkpoints.steps():
        run.checkpoint(wait=True)
    if not run.finished:
        return [_stopped(run)]
    run.phase("saving")
    export_model(run)
    early = run.progress.step < run.config.steps
    reason = "every prompt is solved and retired; " if early and run.progress.exhausted else ""
    if run.progress.stopped_by:
        reason = f"stopped by the condition {run.progress.stopped_by!r}; "
    closing = [f"{reason}trained {run.progress.step} updates ({run.progress.skipped_steps} skipped)"]
    if run.progress.stopped_by:
        closing.append(f"to train further anyway: scalerl resume {run.directory.path}")
    return closing + summarize(run.directory.path, run.config, run.points)


def _stopped(run: Session) -> str:
    return f"stopped at step {run.progress.step}; continue with: scalerl resume {run.directory.path}"


def export_model(run: Session) -> None:
    """Write the last weights and the tokenizer as a Hugging Face directory, and adapters next to it, atomically."""
    path, temporary = run.directory.path, run.directory.path / ".export.tmp"
    run.directory.check_place()
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    run.learner.export(temporary / "model")
    run.learner.export_adapter(temporary / "adapter")
    run.tokenizer.save_pretrained(temporary / "model")
    move_into(temporary, path)
