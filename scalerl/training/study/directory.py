"""A study's directory while it is executed: its plan, its lock, and runs of other studies that it takes over.

`reading/pages/study_files.py` describes the files.

A run is determined by its configuration, which includes the seed. A finished run of another study with the same
configuration would give the same result, and one with fewer steps is the first part of it: `take_over` copies such
runs.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.core.errors import ConfigError
from scalerl.core.files import take_hold, write_whole
from scalerl.core.outputs import check_encodable, check_new_directory, check_stays_inside
from scalerl.core.run_files import JOURNAL, LOCK, PLAN, STUDY, RunKey
from scalerl.core.serialization import flat
from scalerl.reading.pages.study_files import StudyFiles
from scalerl.training.config import RunConfig
from scalerl.training.config.base import replace
from scalerl.training.study.info import study_info
from scalerl.training.study.plan import Plan, plan_toml, read_plan, unnamed


class StudyDirectory(StudyFiles):
    """The files of one study, for its execution."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Store the path and the plan; use `create` or `open` instead."""
        super().__init__(path, study_info(plan))
        self.plan = plan

    @classmethod
    def create(cls, path: Path, plan: Plan) -> StudyDirectory:
        """Create the directory of a study, or open it if it has the same plan.

        Raises:
            ConfigError: The directory contains another study, a different plan, or other files.
        """
        file = path / PLAN
        if file.exists():
            if (old := read_plan(file)) != plan:
                raise ConfigError(
                    f"{path} contains another study: {'; '.join(plan_changes(old, plan))}. Give another -o, or resume "
                    f"that study with `scalerl study resume {path}`. Nothing was changed"
                )
            return cls(path, plan)
        check_encodable(path, "-o")
        check_new_directory(path, "-o")
        path.mkdir(parents=True, exist_ok=True)
        write_whole(file, plan_toml(plan))
        study = cls(path, plan)
        study.save_info()
        return study

    @classmethod
    def open(cls, path: Path) -> StudyDirectory:
        """Open an existing study.

        Raises:
            ConfigError: The directory contains no study.
        """
        if not (path / PLAN).exists():
            raise ConfigError(f"{path}: no study here (no {PLAN}); start one with `scalerl study PLAN -o {path}`")
        return cls(path, read_plan(path / PLAN))

    def save_info(self) -> None:
        """Write study.json, which readers use instead of the plan."""
        write_whole(self.path / STUDY, self.info.to_json())

    def hold(self) -> None:
        """Lock this study against other processes; the lock ends with the process.

        Raises:
            ConfigError: Another process is executing it, or a link in it leads outside.
        """
        if take_hold(self.path) is None:
            raise ConfigError(f"{self.path}: another process is running this study; wait for it or stop it")
        check_stays_inside(self.path)
        self.save_info()  # of an older version there may be none

    def in_training(self, key: RunKey) -> bool:
        """Return whether a process is training in a run's directory, such as one left by a study that was killed."""
        if not (self.run(key) / LOCK).exists():
            return False
        lock = take_hold(self.run(key))
        if lock is not None:
            os.close(lock)
        return lock is None

    def note(self, row: dict[str, Any]) -> None:
        """Add a row to the journal."""
        with (self.path / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def plan_changes(old: Plan, new: Plan) -> list[str]:
    """Return the first differences between two plans, as text."""
    old_values, new_values = (flat(tomllib.loads(plan_toml(plan))) for plan in (old, new))
    names = [name for name in {**old_values, **new_values} if old_values.get(name) != new_values.get(name)]
    differences = [
        f"{name} is {old_values.get(name, 'absent')} there and {new_values.get(name, 'absent')} here" for name in names
    ]
    return differences[:8] or ["the arms are in another order"]


class ReusedRun(NamedTuple):
    """A run of another study that equals a run of this plan, or its first part."""

    path: Path
    steps: int
    """Number of steps of that run."""


def equal_runs(plan: Plan, others: Sequence[StudyDirectory]) -> dict[RunKey, ReusedRun]:
    """Return the runs of a plan that exist in other studies, complete or in part; the longest if there are several.

    Runs are equal if their configurations are equal except for the arm's name. A run with fewer steps is the first part
    if it ended at one of this plan's evaluations. Runs that are unfinished, in progress or trained beyond their plan
    are not used.
    """
    held = [
        (_unending(config), ReusedRun(other.run(key), config.steps))
        for other in others
        for key in other.plan.runs()
        if other.step(key) == (config := other.plan.run_config(key)).steps and not other.in_training(key)
    ]
    longest = {}
    for key in plan.runs():
        config = plan.run_config(key)
        target, steps, interval = _unending(config), config.steps, config.evaluation.every
        equal = [run for same, run in held if same == target]
        ends = [run for run in equal if run.steps == steps or (run.steps < steps and run.steps % interval == 0)]
        if ends:
            longest[key] = max(ends, key=lambda run: run.steps)
    return longest


def _unending(config: RunConfig) -> RunConfig:
    return replace(unnamed(config), steps=1)


def take_over(study: StudyDirectory, others: Sequence[StudyDirectory]) -> list[str]:
    """Copy equal runs of other studies, or their first parts, into this study; return a line of text for each.

    A run that this study already has is kept. The copy is renamed at the end, so an interruption leaves no incomplete
    run. Checkpoints are hard-linked if possible, because they may be large and never change.
    """
    reused = []
    for key, (place, steps) in equal_runs(study.plan, others).items():
        run = study.run(key)
        if run.exists():
            continue
        check_stays_inside(place)  # the copy would contain what its links lead to
        half = run.with_name(f".{run.name}.copy")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(place, half, copy_function=_copy, ignore=shutil.ignore_patterns(".lock"))
        is_complete = steps == study.plan.run_config(key).steps
        line = f"{key}: taken over from {place}{'' if is_complete else f', to be resumed from step {steps}'}"
        study.file(key, "log").write_text(f"{line}\n", encoding="utf-8")
        half.rename(run)
        reused.append(line)
    return reused


def _copy(source: str, target: str) -> None:
    if "checkpoints" in Path(source).parts[-3:]:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without hard links
            pass
    shutil.copy2(source, target)
