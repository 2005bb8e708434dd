"""Records of a run: the rows of its directory, what its display shows, and what its loggers get."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalerl.core.run_files import EVENTS, METRICS
from scalerl.core.types import EvalPoint
from scalerl.training.loop.display import RunDisplay
from scalerl.training.loop.run_dir import RunDirectory
from scalerl.training.loop.warnings import Event, RunWarnings
from scalerl.training.trackers.follow import Followers

EVERY = 1_000
"""Number of points up to which the curves are judged at each evaluation."""

NEW_SHARE = 0.01
"""Share of new points after which longer curves are judged again: a fit reads all points."""


FORECASTS = 0.005
"""Share of the time that forecasts take which are shown while training could go on."""


def is_due(points: int, judged: int) -> bool:
    """Return whether curves with so many points are judged again, so that an evaluation costs the same in any run.

    Args:
        points: Number of points.
        judged: Number of points at the last judgment.
    """
    return points <= EVERY or points - judged >= NEW_SHARE * points


@dataclass(slots=True)
class Records:
    """Writes and shows the results of a run."""

    directory: RunDirectory
    display: RunDisplay
    warnings: RunWarnings
    followers: Followers | None = None
    """The loggers of the run."""
    phase: Callable[[str], None] = lambda phase: None
    """Function that reports the current phase of the run, a key of `status.PHASES`."""
    points: list[EvalPoint] = field(default_factory=list)
    _judged: int = 0
    """Number of points at the last judgment of the curves."""
    _shown_at: float = -math.inf
    """When the last forecast was shown, seconds of the monotonic clock."""
    _shown_s: float = 0.0
    """How long that took, seconds."""

    def step(self, row: dict[str, Any]) -> None:
        """Write and show one training step.

        Args:
            row: Metrics of the step (metrics.py).
        """
        self.directory.append(METRICS, [row])
        self._report(self.warnings.step(row), f"step {row['step']}")
        self.display.step(row)
        if self.followers:
            self.followers.step(row)

    def evaluated(self, points: Sequence[EvalPoint], beside: bool = False) -> None:
        """Write the points of one evaluation, one for each task, and judge and show the curves if `is_due`.

        Args:
            points: The points.
            beside: Whether training does not pause for evaluations; forecasts are then shown as often as they take at
                most FORECASTS of the time, and the pass rate always.
        """
        self.points += points
        self.directory.add_points(points)
        if judged := is_due(len(self.points), self._judged):
            self._judged = len(self.points)
            self._report(self.warnings.evaluated(self.points), f"evaluation at step {points[-1].step}")
            began = time.monotonic()
            forecasts = not beside or (began - self._shown_at) * FORECASTS >= self._shown_s
            self.display.point(self.points, forecasts)
            if forecasts:
                self._shown_at = time.monotonic()
                self._shown_s = self._shown_at - began
        if self.followers:
            self.followers.evaluated(self.points if judged else points, judged)

    def explain(self, step: int, notes: Mapping[str, str], events: Iterable[Mapping[str, Any]] = ()) -> None:
        """Show notes that hold for the whole run, and write those that are new.

        Args:
            step: Training step at which the run starts or continues.
            notes: Texts by key.
            events: Rows of events.jsonl so far.
        """
        known = {(event.get("key"), event.get("text")) for event in events}
        rows = [Event(step, "note", key, text) for key, text in notes.items()]
        self.directory.append(EVENTS, [row._asdict() for row in rows if (row.key, row.text) not in known])
        for row in rows:
            self.display.note(row.text)

    def _report(self, events: Sequence[Event], when: str) -> None:
        self.directory.append(EVENTS, [event._asdict() for event in events])
        for text in self.warnings.news(events):
            self.display.note(f"{when}: {text}")

    def ended(self, state: str) -> None:
        """Report how the run ended: finished, stopped or failed; call this before `close`."""
        if self.followers:
            self.followers.ended(state)

    def close(self) -> None:
        """End the loggers, and unlock the run directory."""
        if self.followers:
            self.followers.close()
        self.directory.close()
