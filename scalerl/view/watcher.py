"""Follows all runs and studies of the page, and requests fits after new evaluations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.core.errors import outcome
from scalerl.view.fits import TaskFit, Worker, fitted
from scalerl.view.run import WatchedRun, id_of
from scalerl.view.sources import names_of
from scalerl.view.state import find, is_run
from scalerl.view.studies import WatchedStudy

POLL_S = 0.5
"""Interval of the polls of the files, seconds."""

SEARCH_S = 3.0
"""Interval of the searches for new runs, seconds."""


class Watcher:
    """All runs and studies at or below some paths.

    Consumes / Produces: growing files / summaries, and `version`, which increases with every change.
    Waits for / Unblocked by: nothing / -; `poll` is called by the server every `POLL_S` seconds.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Find the runs and studies and read the ends of their files; a missing path may be created later."""
        self.paths = list(paths)
        self.lock = threading.Lock()
        """Held while runs are accessed."""
        self.runs: dict[str, WatchedRun] = {}
        self.studies: dict[str, WatchedStudy] = {}
        self.version = 0
        self.problem = ""
        """The last unexpected error of a poll; the page shows it."""
        self._asked: dict[tuple[str, str], int] = {}
        self._changes: dict[str, int] = {}
        self._searched = 0.0
        self._search()
        self._worker = Worker()
        self.poll()

    def close(self) -> None:
        """End the fitting thread."""
        self._worker.close()

    def poll(self) -> None:
        """Poll all files once."""
        if time.monotonic() - self._searched >= SEARCH_S:
            self._search()
        now = time.time()
        for run in list(self.runs.values()):
            looked = outcome(partial(self._look_at, run, now))
            error = looked.exception()  # unexpected rows of one run must not stop the page for all others
            if run.failed(error) if error else looked.result():
                self._changed(run.id)
        for study in list(self.studies.values()):
            if study.due([run for run in self.runs.values() if run.study == study.id]):
                self._worker.ask(study.id, lambda study=study: self._judge(study))  # type: ignore[misc]

    def _look_at(self, run: WatchedRun, now: float) -> bool:
        with self.lock:
            changed = run.poll(now)
            self._ask_for_fits(run)
        return changed

    def changes_since(self, version: int) -> dict[str, Any]:
        """Return the summaries of runs and studies that changed after a version; -1: of all."""
        with self.lock:
            changed = [key for key, at in self._changes.items() if at > version]
            return {
                "version": self.version,
                "known": list(self.runs),
                "runs": [self.runs[key].summary() for key in changed if key in self.runs],
                "studies": [self.studies[key].summary() for key in changed if key in self.studies],
                "problems": [text for text in (self.problem, *self._worker.failures[-2:]) if text],
            }

    def _search(self) -> None:
        """Find new runs, and remove those whose directory no longer exists."""
        self._searched = time.monotonic()
        runs, studies = find([path for path in self.paths if os.path.exists(path)])
        with self.lock:
            for run in list(self.runs.values()):
                if not is_run(run.path):
                    del self.runs[run.id]
                    self._changed(run.id)
        known = {run.path for run in self.runs.values()}
        if fresh := [path for path in runs if path not in known]:
            of_study = {path: study for path in fresh for study in studies if study in path.parents}
            alone = [run.path for run in self.runs.values() if not run.study] + [p for p in fresh if p not in of_study]
            names = dict(zip(alone, names_of(alone), strict=True))
            names |= {path: f"{study.name}/{path.relative_to(study)}" for path, study in of_study.items()}
            with self.lock:
                for path in fresh:
                    run = WatchedRun(path, names[path], id_of(of_study[path]) if path in of_study else "")
                    self.runs[run.id] = run
                for run in self.runs.values():
                    run.name = names.get(run.path, run.name)
                    self._changed(run.id)
        for path in studies:
            study = WatchedStudy(path)
            if study.id not in self.studies:
                with self.lock:
                    self.studies[study.id] = study
                    self._changed(study.id)

    def _changed(self, key: str) -> None:
        self.version += 1
        self._changes[key] = self.version

    def _ask_for_fits(self, run: WatchedRun) -> None:
        for task in run.tasks:
            count = len(run.points(task))
            if self._asked.get((run.id, task)) != count:
                self._asked[run.id, task] = count
                self._worker.ask((run.id, task), self._fit_job(run, task))

    def _fit_job(self, run: WatchedRun, task: str) -> Callable[[], None]:
        def job() -> None:
            with self.lock:
                points, axis = run.points(task), run.axis
            self._keep_fit(run, task, fitted(points, axis, run.name))

        return job

    def _keep_fit(self, run: WatchedRun, task: str, found: TaskFit) -> None:
        with self.lock:
            run.fits[task] = found
            run.version += 1
            self._changed(run.id)

    def _judge(self, study: WatchedStudy) -> None:
        study.judge()
        with self.lock:
            self._changed(study.id)
