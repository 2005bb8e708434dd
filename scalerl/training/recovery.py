"""Automatic return to the last checkpoint after a process of a cluster has died."""

from __future__ import annotations

from scalerl.rollouts.pipeline import WorkerDied
from scalerl.training.learner.ranks import LearnerDied
from scalerl.training.session import Session

DIED = (WorkerDied, LearnerDied)
"""Errors for the end of a process that the run needs. Engines that die are replaced and do not raise these."""


class Recovery:
    """Counts how often a run went back to the same checkpoint."""

    def __init__(self) -> None:
        self._left, self._from = -1, -1

    def allows(self, session: Session) -> bool:
        """Return whether a run whose process died may return to its last checkpoint once more.

        This is allowed only on a cluster, where nodes come and go. The count restarts with each new checkpoint.
        """
        placement = session.config.placement
        if placement.backend != "ray":
            return False
        latest = max(session.checkpoints.steps(), default=0)
        if latest != self._from:
            self._from, self._left = latest, placement.restarts
        self._left -= 1
        return self._left >= 0
