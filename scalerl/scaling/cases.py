"""What was forecast for public runs and what happened: how often an advice of one kind was right.

`cases.csv` has 513 cuts of runs of 68 public repositories, none of which was used to choose anything in the forecast:
the gain that was forecast for twice the compute, and the gain that followed. Both are shares of the metric's range.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from scalerl.scaling.fit import UNLAWFUL

Action = Literal["go back", "open", "about", "continue", "stop"]

OPEN_FACTOR = 2.0
"""A run that shows no climb is open if its interval reaches a gain of this multiple of the limit."""

ABOUT = 0.25
"""Distance of the mean gain from the limit, as a share of it, within which the gain is about what is asked for."""

FEW_CASES = 20
"""Smallest number of cases for a count."""


class Case(NamedTuple):
    """One cut of a public run.

    Example: `Case(repository="3", clear_fall=False, fallen=False, stays=0.12, gain=0.011, high=0.19, actual=0.044)`
    """

    repository: str
    clear_fall: bool
    """Whether the advice was to go back; `gain` is then the fall since the best level."""
    fallen: bool
    stays: float
    """Probability of a run that stays where it is."""
    gain: float
    """Mean of the forecast gain at twice the compute."""
    high: float
    """Upper end of its 90% interval."""
    actual: float
    """Level around twice the compute minus the level before the cut."""

    def kind(self, limit: float) -> Action:
        """Return the advice for a limit."""
        if self.clear_fall:
            return "go back"
        return kind_of(self.gain, self.high, limit, climbs=self.fallen or self.stays <= UNLAWFUL)


class Counted(NamedTuple):
    """How often an advice of one kind was right.

    Example: `Counted(right=137, of=216, repositories=53)`
    """

    right: int
    of: int
    repositories: int


def kind_of(gain: float, high: float, limit: float, *, climbs: bool) -> Action:
    """Return the advice for a run without a clear fall.

    Args:
        gain: Mean gain of the forecast.
        high: Upper end of the interval of the gain.
        limit: Smallest gain that is worth the compute, in the same unit.
        climbs: Whether the run has climbed, or has fallen since.
    """
    if not climbs and gain < limit and high >= OPEN_FACTOR * limit:
        return "open"
    if abs(gain - limit) <= ABOUT * limit * (1.0 + 1e-9):
        return "about"
    return "continue" if gain > limit else "stop"


def count(action: Action, limit: float) -> Counted | None:
    """Return how often public runs with this advice did what it says; None for few cases.

    A run that was told to go back did not exceed its best again. A run that was told to stop gained at most the limit;
    the others gained more.

    Args:
        action: The advice.
        limit: Smallest gain that is worth twice the compute, as a share of the metric's range.
    """
    alike = [case for case in public_cases() if action == case.kind(limit)]
    if len(alike) < FEW_CASES:
        return None
    more = sum(case.actual > (case.gain if action == "go back" else limit) for case in alike)
    right = len(alike) - more if action in ("go back", "stop") else more
    return Counted(right, len(alike), len({case.repository for case in alike}))


@lru_cache(maxsize=1)
def public_cases() -> tuple[Case, ...]:
    """Return the cases of `cases.csv`."""
    with Path(__file__).with_name("cases.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Case(
                row["repository"],
                row["action"] == "go back",
                row["fallen"] == "1",
                *(float(row[name]) for name in ("stays", "gain_mean", "gain_high", "actual")),
            )
            for row in csv.DictReader(file)
        )


FIFTHS = ((0.20, 0.24), (0.405, 0.31), (0.58, 0.59), (0.79, 0.71), (1.0, 0.84))
"""Of the cases in order of their forecast probability of a gain above 0.02 at twice the compute, the fifths: the end of
each, and the share of its 102 or 103 cases that gained more."""


def share_that_gained(probability: float) -> float:
    """Return the share of the public cases with about this probability of a gain above 0.02 that gained more."""
    return next(share for end, share in FIFTHS if probability <= end)
