"""Counts of completions whose reward failed, and the limit above which the run ends."""

from __future__ import annotations

from scalerl.tasks.user_rewards import RewardError

LIMIT = 0.05
LEAST = 100
"""Number of completions after which the limit applies."""


class Failures:
    """Counts failed rewards of one task. A few are tolerated; a share above 5% ends the run."""

    def __init__(self, name: str, limit: float = LIMIT) -> None:
        """Start at zero.

        Args:
            name: source of the rewards, for messages.
            limit: share of completions that may fail; 1 allows all.
        """
        self._name, self._limit, self.completions, self.failed = name, limit, 0, 0
        self._seen: set[str] = set()
        self._new: list[str] = []

    def count(self, completions: int, problems: list[str]) -> None:
        """Count completions and their failures.

        Args:
            completions: number of completions scored now.
            problems: descriptions, one for each of them that got no reward.

        Raises:
            RewardError: after at least 100 completions, the share of failures exceeds the limit.
        """
        self.completions += completions
        self.failed += len(problems)
        for problem in problems:
            if problem not in self._seen and len(self._seen) < 20:
                self._seen.add(problem)
                self._new.append(f"{problem}; counted as failed ({self.failed} of {self.completions} completions)")
        if self.completions >= LEAST and self.failed > self._limit * self.completions:
            last = problems[-1] if problems else "in an earlier call"
            raise RewardError(
                f"{self._name} gave no reward for {self.failed} of {self.completions} completions, and at most "
                f"{self._limit:.0%} may fail; the last failure: {last}"
            )

    def news(self) -> list[str]:
        """Return the problems that have not been returned yet, each kind once."""
        new, self._new = self._new, []
        return new
