"""Follows all runs, logs and studies of the page, and fits them in a thread after new evaluations."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError, outcome
from scalerl.reading.curves import CurveError
from scalerl.reading.pages.following import FollowedLog
from scalerl.reading.pages.outlook import names_of
from scalerl.reading.pages.page import page, summary
from scalerl.reading.pages.run import FollowedRun, id_of, list_fit
from scalerl.reading.pages.state import ALIVE, find, latest, may_be_run
from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_files import read_files

POLL_S = 0.5
"""Interval of the polls of the files of runs that go on, seconds."""

SEARCH_S = 3.0
"""Interval of the searches for new, removed and resumed runs, seconds."""

MOST_RUNS = 1000
"""Largest number of runs; of more, those whose evaluations were written last are followed."""

REST_FACTOR = 20.0
"""Pause between analyses of a study, in durations of the last analysis; 20 is a load of 5% of a core."""


class Watcher:
    """All runs and studies at or below some paths, and logs of other trainers.

    Consumes / Produces: growing files / summaries, and `version`, which increases with every change.
    Waits for / Unblocked by: nothing / -; `poll` is called by the server every `POLL_S` seconds.
    """

    def __init__(self, paths: Sequence[Path], logs: Sequence[FollowedLog] = (), *, looks: bool = True) -> None:
        """Find the runs and studies and read the ends of their files; a missing path may be created later.

        Args:
            paths: Directories of runs and studies.
            logs: Logs of other trainers.
            looks: Whether the watcher looks at the logs; otherwise the caller does.
        """
        self.paths = list(paths)
        self.logs = {log.id: log for log in logs}
        self._looks, self._shown = looks, dict[str, int]()
        self.lock = threading.Lock()
        """Held while runs are accessed."""
        self.runs: dict[str, FollowedRun] = {}
        self.studies: dict[str, FollowedStudy] = {}
        self.version = 0
        self.problems: list[str] = []
        """Unexpected errors; the page shows the last ones."""
        self.omitted = 0
        """Number of runs above `MOST_RUNS`, which are not followed."""
        self._changes: dict[str, int] = {}
        self._listed = 0
        """Version at which runs were last added or removed."""
        self._searched = 0.0
        self._fits, self._waiting = ThreadPoolExecutor(1, "fits"), set[object]()
        self._search()
        self.poll()

    @property
    def limit(self) -> str:
        """Which runs are not followed; empty if all are."""
        count = f"{len(self.runs):,} of {len(self.runs) + self.omitted:,} runs are shown, those evaluated last"
        return f"{count}; give a directory with fewer for the others" if self.omitted else ""

    def close(self) -> None:
        """End the fitting thread after its current job."""
        self._fits.shutdown(wait=False, cancel_futures=True)

    def poll(self) -> None:
        """Poll all files once."""
        if searches := time.monotonic() - self._searched >= SEARCH_S:
            self._safely(self._search)
        runs = list(self.runs.values())
        for run in runs:
            if searches or run.state in ALIVE:
                self._safely(partial(self._poll_run, run), run)
        for log in self.logs.values():
            if self._looks and log.due():
                self.queue(log.id, log.look_again)
            if self._shown.get(log.id) != log.version:
                self._shown[log.id] = log.version
                with self.lock:
                    self._changed(log.id)
        for study in list(self.studies.values()):
            if study.due([run for run in runs if run.study == study.id]):
                self.queue(study.id, partial(self._judge, study))

    def _poll_run(self, run: FollowedRun) -> None:
        with self.lock:
            if run.poll():
                self._changed(run.id)
            self._queue_fits(run)

    def _queue_fits(self, run: FollowedRun) -> None:
        """Queue a fit of each task with new evaluations."""
        for task in run.tasks:
            if run.fits.get(task, {}).get("evaluations") != len(run.points[task]):
                self.queue((run.id, task), partial(self._fit, run, task))

    def _safely(self, work: Callable[[], None], run: FollowedRun | None = None) -> None:
        """Run a part of a poll; an unexpected error is shown on the page."""
        error = outcome(work).exception()  # unexpected contents of one directory must not stop the page for all others
        text = f"{type(error).__name__}: {error}"
        if error is not None and run is None and text not in self.problems:
            self.problems.append(text)
            self.version += 1
        elif error is not None and run is not None and run.failed(error):
            self._changed(run.id)

    def changes_since(self, version: int) -> dict[str, Any]:
        """Return the summaries of runs and studies that changed after a version; -1: of all.

        With the ids of all runs, if runs were added or removed.
        """
        with self.lock:
            changed = [key for key, at in self._changes.items() if at > version]
            return {
                "version": self.version,
                **({"known": list(self.runs)} if self._listed > version else {}),
                "runs": [self.runs[key].summary() for key in changed if key in self.runs],
                "logs": [self.logs[key].summary() for key in changed if key in self.logs],
                "studies": [self.studies[key].summary() for key in changed if key in self.studies],
                "problems": [*self.problems[-2:], *filter(None, [self.limit])],
            }

    def queue(self, key: object, job: Callable[[], None]) -> None:
        """Queue a job for the fitting thread, unless a job with the same key is waiting."""
        if key not in self._waiting:
            self._waiting.add(key)
            self._fits.submit(self._work, key, job).add_done_callback(self._done)

    def _work(self, key: object, job: Callable[[], None]) -> None:
        self._waiting.discard(key)
        job()

    def _done(self, ended: Future[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            self.problems.append(f"{type(error).__name__}: {error}")

    def _search(self) -> None:
        """Find new runs, and remove those whose directory no longer exists."""
        self._searched = time.monotonic()
        paths, studies = find([path for path in self.paths if os.path.exists(path)])
        followed = latest(paths, MOST_RUNS)
        self.omitted = len(paths) - len(followed)
        chosen, known = set(followed), {run.path for run in self.runs.values()}
        gone = [run for run in self.runs.values() if run.path not in chosen]
        # a directory above may not be readable for a moment
        removed = [run for run in gone if self.omitted or not may_be_run(run.path)]
        in_study = {run: place for run in followed for place in islice(run.parents, 2) if place in studies}
        alone = [path for path in followed if path not in in_study]
        names = dict(zip(alone, names_of(alone), strict=True))
        names |= {path: f"{study.name}/{path.relative_to(study)}" for path, study in in_study.items()}
        with self.lock:
            for run in removed:
                del self.runs[run.id]
                self._changed(run.id)
                self._listed = self.version
            for run in self.runs.values():
                if (name := names.get(run.path, run.name)) != run.name:
                    run.name = name
                    self._changed(run.id)
            for path in studies:
                if id_of(path) not in self.studies:
                    self.studies[id_of(path)] = FollowedStudy(path)
                    self._changed(id_of(path))
        for path in followed:
            if path not in known:
                study = id_of(in_study[path]) if path in in_study else ""
                self._safely(partial(self._read, path, names[path], study))

    def _read(self, path: Path, name: str, study: str) -> None:
        run = FollowedRun(path, name, study)  # without the lock, for which pages wait
        with self.lock:
            self.runs[run.id] = run
            self._queue_fits(run)
            self._changed(run.id)
            self._listed = self.version

    def _changed(self, key: str) -> None:
        self.version += 1
        self._changes[key] = self.version

    def _fit(self, run: FollowedRun, task: str) -> None:
        with self.lock:
            points, axis = list(run.points.get(task, ())), run.axis
            if run.fits.get(task, {}).get("evaluations") == len(points):
                return  # a poll during the first fit of these evaluations queued a second one
        values = list_fit(points, axis, *run.terms)
        with self.lock:
            run.fits[task] = values
            run.version += 1
            self._changed(run.id)

    def _judge(self, study: FollowedStudy) -> None:
        study.judge()
        with self.lock:
            self._changed(study.id)


class FollowedStudy:
    """Follows one study, and keeps its preliminary verdicts."""

    def __init__(self, path: Path) -> None:
        """Prepare to follow a study directory."""
        self.path = path
        self.id = id_of(path)
        self.problem = ""
        self.version = 0
        """Increases with every judgment."""
        self.page: dict[str, Any] | None = None
        """The page of the study; None before the first judgment."""
        self._name, self._sentence = path.name, ""
        self._counts: tuple[int, ...] | None = None
        self._next = 0.0

    def due(self, runs: Sequence[FollowedRun]) -> bool:
        """Return whether the runs have new evaluations and the pause is over."""
        counts = tuple(sum(len(run.points[task]) for task in run.tasks) for run in runs)
        if counts == self._counts or time.monotonic() < self._next:
            return False
        self._counts = counts
        return True

    def judge(self) -> None:
        """Fit all runs of the study and compare its arms."""
        start = time.monotonic()
        try:
            results = study_results(read_files(self.path))
            # here and not in `summary`, which every open page asks for while the watcher holds its lock
            self.page = page(results)
            self._name, self._sentence, self.problem = results.name, summary(results), ""
        except (ConfigError, CurveError, OSError) as error:
            self.problem = str(error)
        self.version += 1
        ended = time.monotonic()
        self._next = ended + REST_FACTOR * (ended - start)

    def summary(self) -> dict[str, Any]:
        """Return the study's entry in the list, as JSON values."""
        names = {"id": self.id, "name": self._name, "path": str(self.path)}
        return {**names, "version": self.version, "problem": self.problem, "sentence": self._sentence}
