"""How a study's budget is spent: the slices, and which arms go on after each. The statistics are in allocate.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scalerl.study.directory import StudyDirectory
from scalerl.study.execute import Policy


class Spending(NamedTuple):
    """A way to spend the budget."""

    shares: tuple[float, ...]
    """Ascending shares of an arm's budget, the last 1; after each the policy is asked."""
    policy: Policy


def everyone(study: StudyDirectory, arms: Sequence[str]) -> Sequence[str]:
    """All arms go on."""
    return arms


ALLOCATIONS: dict[str, Spending] = {
    "equal": Spending((1.0,), everyone),
}
"""equal: every arm its whole budget at once."""
