"""The directory of a study as readers see it: study.json, one run directory for each arm and seed, and a journal.

    studies/loo/
      study.json                 what readers must know (core/run_files.py)
      study.toml                 the plan, from which `scalerl study resume` continues
      journal.jsonl              one row for each process that ended (below)
      scalerl/seed-0/            a run directory
      scalerl/seed-0.toml, .log  its configuration and its output
      allocation.jsonl           which arms continued, and why
      predicted.json             the levels of held-out arms, from before they were run
      results.json  report.html  the verdicts at the end

A row of the journal:
    {"arm": "dapo", "seed": 0, "target": 240, "code": 0, "seconds": 61.2, "step": 240, "said": "trained 240 updates"}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError, nearest
from scalerl.core.rows import read_points, read_rows
from scalerl.core.run_files import JOURNAL, POINTS, RunKey, StudyInfo, read_run, read_study
from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.curves.settings import Setting, setting_of

RUN_AXES = ("device_hours", "flops", "tokens", "step")
"""Compute columns of every run's points."""

JOURNAL_COLUMNS = {
    "arm": str,
    "seed": int,
    "target": int,
    "code": int,
    "seconds": int | float,
    "step": int,
    "said": str,
}
"""Columns of the journal."""


class StudyFiles:
    """One study, for reading."""

    def __init__(self, path: Path, info: StudyInfo) -> None:
        """Store the path and what study.json says; `read_files` reads it."""
        self.path, self.info = path, info

    def run(self, key: RunKey) -> Path:
        """Return a run's directory."""
        return self.path / key.arm / f"seed-{key.seed}"

    def file(self, key: RunKey, ending: str) -> Path:
        """Return the path of a file next to a run's directory."""
        return self.path / key.arm / f"seed-{key.seed}.{ending}"

    def steps(self, key: RunKey) -> int:
        """Return the number of updates at the end of a run."""
        return self.info.arms[key.arm].steps

    def setting(self, arm: str) -> Setting:
        """Return the settings of an arm: the values of the fields that vary.

        Raises:
            CurveError: The arm has no such field.
        """
        return setting_of(self.info.settings_of(arm), self.info.vary, f"arm {arm}")

    def axis(self) -> str:
        """Return the default compute axis of the curves: that of the first run, which knows its device."""
        for key in self.info.runs():
            with suppress(ConfigError):  # not started, or damaged: the next run has the same axis
                return read_run(self.run(key)).axis
        return self.info.axis

    def check_view(self, axis: str | None, task: str | None) -> None:
        """Check that the runs of this study have a compute axis and a task; None is the default.

        Raises:
            ConfigError: No run has this axis or task; the message lists the known ones.
        """
        requests: Iterable[tuple[str | None, str, Sequence[str]]]
        requests = ((axis, "compute axis", RUN_AXES), (task, "task", tuple(self.info.tasks)))
        for requested, what, names in requests:
            if requested is not None and requested not in names:
                raise ConfigError(
                    f"{self.path}: no {what} {requested!r}{nearest(requested, names)}; its runs have {', '.join(names)}"
                )

    def curve(self, key: RunKey, axis: str | None = None, task: str | None = None) -> Curve:
        """Return the curve of a run; axis and task are those of the study by default.

        Raises:
            CurveError: The run has no points of this task that make a curve.
        """
        task = task or self.info.task
        bounds = self.info.tasks.get(task or "", (0.0, 1.0))
        return Curve.read(self.run(key), compute=axis or self.axis(), task=task, bounds=bounds)

    def trained(self) -> dict[RunKey, Curve]:
        """Return the curves of the runs that are not held out, as far as they have any."""
        curves, axis = {}, self.axis()
        for key in self.info.runs():
            if not self.info.arms[key.arm].held_out:
                with suppress(CurveError):  # it failed before its second evaluation; its arm may have other runs
                    curves[key] = self.curve(key, axis)
        return curves

    def has_points(self, key: RunKey) -> bool:
        """Return whether a run has evaluations."""
        return (self.run(key) / POINTS).exists()

    def step(self, key: RunKey) -> int:
        """Return the training step of a run's last evaluation; -1 before the first."""
        points = read_points(self.run(key))
        return int(points[-1].step) if points else -1

    def journal(self) -> list[Mapping[str, Any]]:
        """Return the rows of the journal; a row that a killed process left incomplete is left out."""
        rows = read_rows(self.path / JOURNAL)
        return [row for row in rows if all(isinstance(row.get(name), kind) for name, kind in JOURNAL_COLUMNS.items())]


def read_files(path: Path) -> StudyFiles:
    """Open the directory of a study.

    Raises:
        ConfigError: The directory is no study, is of another version, or its study.json is damaged.
    """
    return StudyFiles(path, read_study(path))
