"""Training of a run to its end, with a return to the last checkpoint if a process of a cluster died."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scalerl.core.plugins import PluginError
from scalerl.core.processes import ProcessDied
from scalerl.tasks.user_rewards import RewardError
from scalerl.training.finish import run_to_end
from scalerl.training.launch import resume
from scalerl.training.progress import TrainingFailed
from scalerl.training.recovery import DIED, Recovery, recorded
from scalerl.training.run_dir import RunMoved
from scalerl.training.session import Session
from scalerl.training.status import Heartbeat
from scalerl.view.display import RunDisplay

MakeSession = Callable[[RunDisplay, Callable[[], bool]], Session]
"""(display, function that tells whether a stop was requested) -> a run that is ready to train."""


class Ended(NamedTuple):
    """Result of a run.

    Example: Ended(Path("runs/scalerl-001"), ["trained 480 updates (0 skipped)", "forecast ..."], finished=True)
    """

    path: Path
    """The run directory."""
    closing: list[str]
    """Lines that summarize the run."""
    finished: bool
    """Whether the run reached its end; otherwise it was stopped by a signal."""


class RunFailed(RuntimeError):
    """A run ended early; the message gives the reason and how to continue the run."""


def complete(make_session: MakeSession, display: RunDisplay, stop_requested: Callable[[], bool]) -> Ended:
    """Start or resume a run and train it to its end.

    Args:
        make_session: Function that starts or resumes the run.
        display: Display of the run.
        stop_requested: Function called after every step; if it returns true, the run ends with a checkpoint.

    Raises:
        ConfigError: An error that the user can correct was found before the first step.
        RunFailed: Training failed, a reward function failed, a process died, or the run directory was moved. Saved
            files are kept.
    """
    session, recovery = None, Recovery()
    try:
        while True:
            session = make_session(display, stop_requested)
            display.start()
            try:
                with Heartbeat(session.directory.path) as beating:
                    session.phase = beating.phase
                    closing = run_to_end(session)
                    state = "finished" if session.finished else "stopped"
                    beating.ended(state, closing[0])
                    session.ended(state, closing[0])
                return Ended(session.directory.path, closing, session.finished)
            except DIED as error:
                if stop_requested() or not recovery.allows(session):
                    raise
                display.note(f"{recorded(error, session.directory.path)}\ngoing back to the last checkpoint")
                session.close()
                make_session = partial(resume, session.directory.path, None)
    except (TrainingFailed, RewardError, PluginError, RunMoved, OSError, *DIED) as error:
        if session:
            session.ended("failed", str(error))
        moved = session.directory.moved() if session else ""
        if moved:
            raise RunFailed(moved) from error
        if isinstance(error, OSError):
            raise
        if session is None:
            raise RunFailed(str(error)) from error
        path = session.directory.path
        text = recorded(error, path) if isinstance(error, ProcessDied | PluginError) else str(error)
        raise RunFailed(f"{text}\nAll saved results are kept; continue with: scalerl resume {path}") from error
    except Exception as error:  # unexpected errors are reported to loggers and notifications too
        if session:
            session.ended("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        display.stop()
        if session is not None:
            session.close()
