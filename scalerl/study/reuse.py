"""Runs that another study has made already, taken over instead of repeated. It trains nothing and judges nothing.

A run follows from its configuration, its seed within it: one that is finished elsewhere would come out the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from scalerl.study.directory import StudyDirectory
from scalerl.study.plan import Plan, RunKey, unnamed


def equal_runs(plan: Plan, others: Sequence[StudyDirectory]) -> dict[RunKey, Path]:
    """Return which runs of a plan other studies hold whole, and where; the first study that has one counts.

    Runs are equal where their configurations are, but for the arm's name. A run that is not finished, was trained on
    beyond its plan, or is still being written, is not taken.
    """
    held = [
        (unnamed(config), other.run(key))
        for other in others
        for key in other.runs()
        if other.step(key) == (config := other.config(key)).steps and not other.held(key)
    ]
    found = {}
    for key in plan.runs():
        mine = unnamed(plan.config(plan.arm(key.arm), key.seed))
        place = next((path for config, path in held if config == mine), None)
        if place is not None:
            found[key] = place
    return found


def take_over(study: StudyDirectory, others: Sequence[StudyDirectory]) -> list[str]:
    """Copy equal runs of other studies into this one where it has none yet; return a line for each.

    A kill in the midst leaves no half run: the copy gets its name last. Checkpoints are linked where the file system
    can, for they are never written to again and may be large.
    """
    told = []
    for key, place in equal_runs(study.plan, others).items():
        run = study.run(key)
        if run.exists():
            continue
        half = run.with_name(f".{run.name}.copy")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(place, half, copy_function=_copy, ignore=shutil.ignore_patterns(".lock"))
        line = f"{key}: taken over from {place}"
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
