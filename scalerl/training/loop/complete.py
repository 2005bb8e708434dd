"""A run from its start to its end: training, the exported model and summary, and what happens if a process dies."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scalerl.core.errors import ConfigError, ProcessFailure, RunError, RunFailed, lacks_memory
from scalerl.core.files import DISK, move_into, system_error
from scalerl.core.machine import memory_report, peak_bytes
from scalerl.core.plugins import PluginError
from scalerl.core.processes import ProcessDied
from scalerl.core.status import Heartbeat
from scalerl.reading.pages.summary import write_summary
from scalerl.training.engines.pipeline import Interrupted, NoAnswer, WorkerDied
from scalerl.training.learner.ranks import LearnerDied, TransferDied
from scalerl.training.loop.display import RunDisplay
from scalerl.training.loop.due import evaluate_if_due
from scalerl.training.loop.evaluator import EvaluatorDied
from scalerl.training.loop.launch import resume
from scalerl.training.loop.loop import train
from scalerl.training.loop.run import Run
from scalerl.training.loop.run_dir import recorded
from scalerl.training.loop.run_info import run_info
from scalerl.training.loop.saved import commit, save
from scalerl.training.machines.sizing import trainer_cure
from scalerl.training.rewards.user_rewards import RewardError

MakeRun = Callable[[RunDisplay, Callable[[], bool]], Run]
"""(display, function that tells whether a stop was requested) -> a run that is ready to train."""

DIED = (WorkerDied, LearnerDied)
"""Errors for the end of a process that the run needs. Engines that die are replaced and do not raise these."""


class RunEnd(NamedTuple):
    """Result of a run.

    Example: RunEnd(Path("runs/scalerl-001"), ["trained 480 updates (0 skipped)", "forecast ..."], finished=True)
    """

    path: Path
    """The run directory."""
    closing: list[str]
    """Lines that summarize the run."""
    finished: bool
    """Whether the run reached its end; otherwise it was stopped by a signal."""


def complete(make_run: MakeRun, display: RunDisplay, stop_requested: Callable[[], bool]) -> RunEnd:
    """Start or resume a run and train it to its end.

    If a process of a run on a cluster dies, the run goes back to its last checkpoint, `placement.restarts` times from
    each checkpoint, because nodes may be lost and replaced. So does a run on one machine whose trainer had to be ended
    because a vLLM server died or hung in a transfer: the server alone would have been replaced.

    Args:
        make_run: Function that starts or resumes the run.
        display: Display of the run.
        stop_requested: Function called after every step; if it returns true, the run ends with a checkpoint.

    Raises:
        ConfigError: An error that the user can correct was found before the first step.
        RunFailed: Training failed, a reward function failed, or a process died. Saved files are kept.
    """
    run: Run | None = None
    returns: list[int] = []  # the steps of the checkpoints that the run went back to
    try:
        display.start()
        while True:
            run = make_run(display, stop_requested)
            path = run.records.directory.path
            try:
                return _trained(run)
            except DIED as error:
                placement, latest = run.config.placement, max(run.store.steps(), default=0)
                replaced = placement.backend == "ray" or isinstance(error, TransferDied)
                if stop_requested() or not replaced or returns.count(latest) >= placement.restarts:
                    raise
                returns.append(latest)
                display.note(f"{recorded(error, path)}\ngoing back to the last checkpoint")
                run.close()
                make_run = partial(resume, path, None)
    except Exception as error:
        if run is not None:
            run.records.ended("failed")  # loggers get unexpected errors too
            if isinstance(error, ConfigError) and not run.records.points:
                run.close()  # first, because its processes and loggers write into the directory
                run.records.directory.discard()
                run = None
        lacked, cause = lacks_memory(error), system_error(error)
        full = cause is not None and cause.errno in DISK
        reported = isinstance(error, RunError | ProcessFailure)
        if not reported and not ((lacked or full) and run):
            raise
        if run is None:
            raise RunFailed(str(error)) from error
        path = run.records.directory.path
        text = recorded(error, path) if isinstance(error, ProcessDied | PluginError) else str(error)
        if lacked:
            text = (
                f"the trainer ran out of memory: {memory_report(peak_bytes())} ({text.splitlines()[0][:200]}). To need "
                f"less, {trainer_cure(run.config.learner, run.config.hardware)}"
            )
        if full and cause is not None:
            text = disk_problem(run, cause)
        raise RunFailed(f"{text}\nAll saved results are kept; continue with: scalerl resume {path}") from error
    finally:
        display.stop()
        if run is not None:
            run.close()


def disk_problem(run: Run, error: OSError) -> str:
    """Return what an error of the disk means for a run: host, directory, what is left there, what is safe."""
    path, step = run.records.directory.path, max(run.store.steps(), default=0)
    safe = f"the checkpoint of step {step} is whole" if step else "there is no checkpoint yet"
    free = shutil.disk_usage(path).free
    return (
        f"{socket.gethostname()}:{path.resolve()}: the trainer could not write ({os.strerror(error.errno or 0)}); "
        f"{free / 1e6:,.0f} MB are free there, and {safe}. Free space on this disk, or raise the limit or quota"
    )


def _trained(run: Run) -> RunEnd:
    """Train a run to its end, and report it in its status and to its loggers."""
    path = run.records.directory.path
    with Heartbeat(path) as beating:

        def phase(name: str) -> None:
            beating.phase(name)
            run.records.display.phase(name)

        run.records.phase = phase
        closing, finished = run_to_end(run)
        state = "finished" if finished else "stopped"
        beating.ended(state, closing[0])
        run.records.ended(state)
    return RunEnd(path, closing, finished)


def run_to_end(run: Run) -> tuple[list[str], bool]:
    """Train until the run ends and save its results.

    Returns:
        The closing lines for the user, and whether the run has reached its end.

    Raises:
        TrainingFailed, WorkerDied, LearnerDied, EvaluatorDied, RewardError: Raised after everything that can be saved
            is saved.
    """
    path, progress = run.records.directory.path, run.progress
    try:
        return _trained_and_saved(run)
    except NoAnswer as error:
        saved = max(run.store.steps(), default=0)
        return [
            f"stopped at step {progress.step}, without a checkpoint of it, because the generator or a server does not "
            f"answer{f': {error}' if str(error) else ''}; continue from step {saved} with: scalerl resume {path}"
        ], False


def _trained_and_saved(run: Run) -> tuple[list[str], bool]:
    path, progress, phase = run.records.directory.path, run.progress, run.records.phase
    stopped = f"stopped at step {{}}; continue with: scalerl resume {path}"
    try:
        run.pipeline.wait_ready()
    except Interrupted:  # no work was done since the checkpoint or the start
        return [stopped.format(progress.step)], False
    interrupted = False
    try:
        evaluate_if_due(run)  # R(0) before the first update, or an evaluation that a failed reward function ended
        phase("training")
        run.compute.clock.start()
        train(run)
    except NoAnswer:
        raise
    except Interrupted:
        interrupted = True  # perhaps in the last evaluation
    except (RewardError, EvaluatorDied):
        save(run)  # only the failed step or evaluation is lost, and a resume repeats it
        commit(run, wait=True)
        raise
    phase("saving")
    commit(run, wait=True)
    if progress.step not in run.store.steps():
        save(run)
        commit(run, wait=True)
    if interrupted or not run.finished:
        return [stopped.format(progress.step)], False
    export_model(run)
    early = progress.step < run.config.steps
    reason = "every prompt is solved and retired; " if early and progress.exhausted else ""
    if progress.stopped_by:
        reason = f"stopped by the condition {progress.stopped_by!r}; "
    closing = [f"{reason}trained {progress.step} updates ({progress.skipped_steps} skipped)"]
    if progress.stopped_by:
        closing.append(f"to train further anyway: scalerl resume {path}")
    return closing + write_summary(path, run_info(run.config), run.records.points), True


def export_model(run: Run) -> None:
    """Write the last weights and the tokenizer as a Hugging Face directory, and adapters next to it, atomically."""
    path = run.records.directory.path
    temporary = path / ".export.tmp"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    run.learner.export(temporary / "model")
    run.text.tokenizer.save_pretrained(temporary / "model")
    move_into(temporary, path)
