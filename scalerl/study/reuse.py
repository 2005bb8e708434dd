"""Runs that another study has made already, taken over instead of repeated. It trains nothing and judges nothing.

A run follows from its configuration, its seed within it: one that is finished elsewhere would come out the same, and
one of fewer steps is how it begins.
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
    """A run of another study that one of this plan can be, or begin with."""

    path: Path
    steps: int
    """Updates it has had."""


def equal_runs(plan: Plan, others: Sequence[StudyDirectory]) -> dict[RunKey, Held]:
    """Return which runs of a plan other studies hold, whole or their first part; the longest counts.

    Runs are equal where their configurations are, but for the arm's name. One of fewer steps is the first part, if it
    ended at one of this plan's evaluations. A run that is not finished, was trained on beyond its plan, or is still
    being written, is not taken.
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
        mine = _unending(config)
        ends = [run for same, run in held if same == mine and _on_the_way(run.steps, config)]
        if ends:
            found[key] = max(ends, key=lambda run: run.steps)
    return found


def _unending(config: RunConfig) -> RunConfig:
    return replace(unnamed(config), steps=1)


def _on_the_way(steps: int, config: RunConfig) -> bool:
    return steps == config.steps or (steps < config.steps and steps % config.evaluation.every == 0)


def take_over(study: StudyDirectory, others: Sequence[StudyDirectory]) -> list[str]:
    """Copy equal runs of other studies, or their first part, to where this one has none; return a line for each.

    A kill in the midst leaves no half run: the copy gets its name last. Checkpoints are linked where the file system
    can, for they are never written to again and may be large.
    """
    told = []
    for key, (place, steps) in equal_runs(study.plan, others).items():
        run = study.run(key)
        if run.exists():
            continue
        half = run.with_name(f".{run.name}.copy")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(place, half, copy_function=_copy, ignore=shutil.ignore_patterns(".lock"))
        whole = steps == study.config(key).steps
        line = f"{key}: taken over from {place}{'' if whole else f', to go on from step {steps}'}"
        study.file(key, "log").write_text(f"{line}\n", encoding="utf-8")
        half.rename(run)
        told.append(line)
    return told


def _copy(source: str, target: str) -> None:
    if "checkpoints" in Path(source).parts[-3:]:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without links
            pass
    shutil.copy2(source, target)
