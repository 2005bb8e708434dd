"""A watched study and its preliminary verdicts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.scaling import CurveError
from scalerl.study.analysis import study_results
from scalerl.study.directory import StudyDirectory
from scalerl.study.page import GROUPS, summary
from scalerl.study.results import EFFECTS, ArmResult, StudyResult
from scalerl.view.run import WatchedRun, id_of

REST = 20.0
"""Pause between analyses of a study, in durations of the last analysis; 20 is a load of 5% of a core."""


class WatchedStudy:
    """Follows one study."""

    def __init__(self, path: Path) -> None:
        """Prepare to follow a study directory."""
        self.path = path
        self.id = id_of(path)
        self.problem = ""
        self._found: StudyResult | None = None
        self._seen: tuple[int, ...] | None = None
        self._next = 0.0

    def due(self, runs: Sequence[WatchedRun]) -> bool:
        """Return whether the runs have new evaluations and the pause is over."""
        seen = tuple(sum(len(run.points(task)) for task in run.tasks) for run in runs)
        if seen == self._seen or time.monotonic() < self._next:
            return False
        self._seen = seen
        return True

    def judge(self) -> None:
        """Fit all runs of the study and compare its arms."""
        began = time.monotonic()
        try:
            self._found, self.problem = study_results(StudyDirectory.open(self.path)), ""
        except (ConfigError, CurveError, OSError) as error:
            self.problem = str(error)
        ended = time.monotonic()
        self._next = ended + REST * (ended - began)

    def summary(self) -> dict[str, Any]:
        """Return the study as JSON values."""
        found = self._found
        shown: dict[str, Any] = {"id": self.id, "name": self.path.name, "path": str(self.path), "problem": self.problem}
        if found is None:
            return {**shown, "sentence": "", "about": "", "notes": [], "groups": []}
        groups = [
            {
                "title": title,
                "excluded": found.exclusion() if "none" in effects else "",
                "arms": [_arm(found, arm) for arm in found.ranked() if arm.effect in effects],
            }
            for title, effects in GROUPS.items()
        ]
        reference = {"title": "The reference", "excluded": "", "arms": [_arm(found, found.arm(found.reference))]}
        return {
            **shown,
            "name": found.name,
            "about": found.about,
            "sentence": summary(found),
            "notes": list(found.notes),
            "groups": [reference, *(group for group in groups if group["arms"])],
        }


def _arm(found: StudyResult, arm: ArmResult) -> dict[str, Any]:
    ceiling = arm.asymptote
    return {
        "name": arm.name,
        "about": arm.about,
        "color": EFFECTS[arm.effect].color,
        "effect": EFFECTS[arm.effect].words,
        "sentence": arm.sentence if arm.name != found.reference else "",
        "problems": arm.problems,
        "ceiling": None if ceiling is None else [ceiling.mean, ceiling.low, ceiling.high],
        "done": arm.done,
        "seeds": len(arm.runs),
        "steps": [[max(run.step, 0), run.steps] for run in arm.runs],
    }
