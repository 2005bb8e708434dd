"""Reuses runs of other studies instead of training them again.

A run is determined by its configuration, which includes the seed. A finished run of another study with the same
configuration would give the same result, and one with fewer steps is the first part of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scalerl.config import RunConfig
from scalerl.config.base import replace
from scalerl.study.directory import StudyDirectory
from scalerl.study.plan import Plan, RunKey, unnamed


class Held(NamedTuple):
    """A run of another study that equals a run of this plan, or its first part."""

    path: Path
    steps: int
    """Number of steps of that run."""


def equal_runs(plan: Plan, others: Sequence[StudyDirectory]) -> dict[RunKey, Held]:
    """Return the runs of a plan that exist in other studies, complete or in part; the longest if there are several.

    Runs are equal if their configurations are equal except for the arm's name. A run with fewer steps is the first part
    if it ended at one of this plan's evaluations. Runs that are unfinished, in progress or trained beyond their plan
    are not used.
    """
    held = [
        (_unending(config), Held(other.run(key), config.steps))
        for other in others
        for key in other.runs()
        if other.step(key) == (config := other.config(key)).steps and not other.held(key)
    ]
    found = {}
    for key in plan.runs():
        config = plan.run_config(key)
        wanted = _unending(config)
        ends = [run for same, run in held if same == wanted and _on_the_way(run.steps, config)]
        if ends:
            found[key] = max(ends, key=lambda run: run.steps)
    return found


def _unending(config: RunConfig) -> RunConfig:
    return replace(unnamed(config), steps=1)


def _on_the_way(steps: int, config: RunConfig) -> bool:
    return steps == config.steps or (steps < config.steps and steps % config.evaluation.every == 0)


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
        half = run.with_name(f".{run.name}.copy")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(place, half, copy_function=_copy, ignore=shutil.ignore_patterns(".lock"))
        whole = steps == study.config(key).steps
        line = f"{key}: taken over from {place}{'' if whole else f', to be resumed from step {steps}'}"
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
