"""Executes a study: starts its runs as processes, in order, and records how each process ended.

`LocalWorkers` runs the processes on this machine, `cluster.jobs` on Ray. `ALLOCATIONS` has the slices in which a
study spends its budget. If the study is killed, the runs in progress lose at most their steps since the last
checkpoint.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scalerl.core.child_signals import environment_of_run
from scalerl.core.files import write_whole
from scalerl.core.run_files import RunKey
from scalerl.reading.curves import CurveError
from scalerl.reading.pages.study import STOPPED
from scalerl.training.config import RunConfig, to_toml
from scalerl.training.config.base import replace
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.predict import by_forecast, predict


class RunProcess(Protocol):
    """A process that was started, such as a `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def terminate(self) -> None:
        """Request a stop with a checkpoint, without waiting for it."""


class Workers(Protocol):
    """A place to run processes."""

    count: int
    """Number of processes that can run in parallel."""

    def start(self, command: Sequence[str], log: Path) -> RunProcess:
        """Start a process whose output is appended to a log."""


class LocalWorkers:
    """Processes on this machine."""

    def __init__(self, count: int) -> None:
        self.count = count

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a child process in a separate session, which Ctrl-C does not reach.

        It gets SIGTERM when this process ends.
        """
        with log.open("ab") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment_of_run(),
            )


PROCESSES_POLL_S = 0.2
"""Seconds between two polls of the processes."""


class Display(Protocol):
    """Shows a study."""

    def update(self, states: Mapping[RunKey, str]) -> None:
        """Show the state of each run; called at every poll."""

    def note(self, text: str) -> None:
        """Print a message."""


@dataclass
class Execution:
    """The state of all runs while a study is executed."""

    study: StudyDirectory
    workers: Workers
    display: Display
    stop_requested: Callable[[], bool]
    states: dict[RunKey, str] = field(default_factory=dict)
    """State of each run: waiting, running, finished, failed or stopped."""
    failures: dict[RunKey, str] = field(default_factory=dict)
    """Last message of each run that failed in this execution."""
    _queue: deque[RunKey] = field(default_factory=deque)
    _jobs: dict[RunKey, _Running] = field(default_factory=dict)

    def advance(self, arms: Iterable[str], share: float) -> None:
        """Train the runs of some arms up to a share of their steps; runs that fail are not repeated.

        `share` is in (0, 1], and is rounded to a step with an evaluation.
        """
        names = set(arms)
        for key in self.study.plan.runs():
            self.states.setdefault(key, "waiting")
            if key.arm in names and key not in self.failures:
                if self._done(key, share):  # checked before anything starts, so that the display counts it as finished
                    self.states[key] = "finished"
                else:
                    self._queue.append(key)
        self.display.update(self.states)
        terminated = False
        while self._queue or self._jobs:
            if self.stop_requested():
                self._queue.clear()
                for running in self._jobs.values() if not terminated else ():
                    running.job.terminate()
                terminated = True
            self._fill(share)
            self._collect()
            self.display.update(self.states)
            time.sleep(PROCESSES_POLL_S)

    def _fill(self, share: float) -> None:
        """Start as many runs as there are free workers; a run that an earlier start left is awaited."""
        for key in list(self._queue):
            if len(self._jobs) >= self.workers.count:
                return
            if not self.study.in_training(key):
                self._queue.remove(key)
                self._start(key, share)
            elif self.states[key] != "running":  # a study that was killed left it
                self.states[key] = "running"
                self.display.note(f"{key}: a process from an earlier start is still running; waiting for it")

    def _collect(self) -> None:
        """Handle the processes that have exited."""
        for key, running in list(self._jobs.items()):
            code = running.job.poll()
            if code is not None:
                del self._jobs[key]
                self._ended(key, running, code)

    def _start(self, key: RunKey, share: float) -> None:
        study = self.study
        config = study.plan.run_config(key)
        target = target_step(config, share)
        if self._done(key, share):  # a process of a killed study has finished it
            self.states[key] = "finished"
            return
        self.states[key] = "running"
        start = time.monotonic()
        run = study.run(key)
        run.parent.mkdir(parents=True, exist_ok=True)
        if (run / "config.toml").exists():
            words = ["resume", str(run), "--steps", str(target)]
        else:
            file = study.file(key, "toml")
            write_whole(file, to_toml(replace(config, steps=target)))
            words = ["train", str(file), "--run-dir", str(run)]
        job = self.workers.start([sys.executable, "-m", "scalerl.cli", *words, "--trust"], study.file(key, "log"))
        self._jobs[key] = _Running(job, target, start)

    def _ended(self, key: RunKey, running: _Running, code: int) -> None:
        study, step = self.study, self.study.step(key)
        last_message = last_words(study.file(key, "log"))
        seconds = round(time.monotonic() - running.start_s, 2)
        row = {"arm": key.arm, "seed": key.seed, "target": running.target, "code": code, "seconds": seconds}
        study.note({**row, "step": step, "said": last_message})
        if code == 0:
            self.states[key] = "finished"
        elif code in STOPPED or self.stop_requested():
            self.states[key] = "stopped"
        else:
            self.states[key] = "failed"
            self.failures[key] = last_message
            self.display.note(
                f"{key} failed with exit code {code}: {last_message} (full log: {study.file(key, 'log')})"
            )

    def _done(self, key: RunKey, share: float) -> bool:
        """Return whether a run has reached its share, or has no prompts left."""
        if self.study.step(key) >= target_step(self.study.plan.run_config(key), share):
            return True
        # it may have ended before its last step, because every prompt was retired
        own_rows = [row for row in self.study.journal() if (row["arm"], row["seed"]) == (key.arm, key.seed)]
        return bool(own_rows) and own_rows[-1]["code"] == 0 and own_rows[-1]["step"] < own_rows[-1]["target"]


@dataclass(frozen=True)
class _Running:
    job: RunProcess
    target: int
    start_s: float


def target_step(config: RunConfig, share: float) -> int:
    """Return the last step of a share of the run, rounded to a step with an evaluation."""
    if share >= 1:
        return config.steps
    interval = config.evaluation.every
    return min(config.steps, max(interval, interval * round(config.steps * share / interval)))


def last_words(log: Path) -> str:
    """Return the last error in a log, or its last line if there is none."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    errors = [line for line in lines if line.startswith("scalerl: ")]
    return (errors or lines or ["no output"])[-1]


def execute(execution: Execution, shares: Sequence[float]) -> None:
    """Execute a study slice by slice, then its held-out arms; after each slice, the arms continue that may be the best.

    Args:
        execution: The study and its workers.
        shares: Ascending shares of an arm's budget, one of `ALLOCATIONS`; the last is 1.
    """
    plan = execution.study.plan
    held_out = [arm.name for arm in plan.arms if plan.is_held_out(arm.name)]
    arms = [arm.name for arm in plan.arms if arm.name not in held_out]
    for number, share in enumerate(shares):
        if number:
            arms, reason = by_forecast(execution.study)
            execution.display.note(reason)
        execution.advance(arms, share)
        if execution.stop_requested():
            return
        if not arms:
            break
    if held_out:
        try:
            predict(execution.study)
        except CurveError as error:
            execution.display.note(f"held-out arms are not run, because they cannot be predicted: {error}")
        else:
            execution.advance(held_out, 1.0)


ALLOCATIONS = {"equal": (1.0,), "forecast": (0.25, 0.5, 0.75, 1.0)}
"""equal: every arm gets its whole budget at once. forecast: the budget is spent in quarters, and after each only the
arms that may be the best continue."""
