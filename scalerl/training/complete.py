"""Trains a run to its end, and goes back to its last checkpoint where a process of a cluster died."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scalerl.plugins import PluginError
from scalerl.report.display import RunDisplay
from scalerl.tasks.user_rewards import RewardError
from scalerl.training.finish import run_to_end
from scalerl.training.launch import resume
from scalerl.training.recovery import DIED, Recovery
from scalerl.training.run_dir import RunMoved
from scalerl.training.session import Session, TrainingFailed
from scalerl.training.status import Heartbeat

MakeSession = Callable[[RunDisplay, Callable[[], bool]], Session]
"""(display, whether a stop was asked for) -> a run that is ready to train."""


class Ended(NamedTuple):
    """What a run leaves for its user.

    Example: Ended(Path("runs/scalerl-001"), ["trained 480 updates (0 skipped)", "forecast ..."], finished=True)
    """

    path: Path
    """The run directory."""
    closing: list[str]
    """Lines that sum the run up."""
    finished: bool
    """Whether it reached its end; otherwise a signal stopped it."""


class RunFailed(RuntimeError):
    """A run ended early; the message says why and how to continue it."""


def complete(make_session: MakeSession, display: RunDisplay, stop_requested: Callable[[], bool]) -> Ended:
    """Start or resume a run and train it to its end.

    Args:
        make_session: starts the run, or resumes it.
        display: shows it.
        stop_requested: asked after every step; the run then ends with a checkpoint.

    Raises:
        ConfigError: something a user can correct, found before the first step.
        RunFailed: training failed, a reward function failed, a process died, or the run directory was moved; what was
            saved is kept.
    """
    session, recovery = None, Recovery()
    try:
        while True:
            session = make_session(display, stop_requested)
            display.start()
            try:
                with Heartbeat(session.directory.path) as beating:
                    closing = run_to_end(session)
                    state = "finished" if session.finished else "stopped"
                    beating.ended(state, closing[0])
                    session.ended(state, closing[0])
                return Ended(session.directory.path, closing, session.finished)
            except DIED as error:
                if stop_requested() or not recovery.allows(session):
                    raise
                display.note(f"{error}\ngoing back to the last checkpoint")
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
        advice = f"\nNothing saved is lost; continue with: scalerl resume {session.directory.path}" if session else ""
        raise RunFailed(f"{error}{advice}") from error
    except Exception as error:  # unexpected: who waits for the run is told all the same
        if session:
            session.ended("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        display.stop()
        if session is not None:
            session.close()
