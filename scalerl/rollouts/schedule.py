"""When groups may start, which groups make a batch, and when new weights become active: pure bookkeeping, no clock.

The staleness bound: update s (counted from 0) may train a group whose oldest token was sampled by version v only if
s - v <= max_lag. A group therefore has a deadline, v + max_lag. Two rules keep every deadline:
  admission: a group starts only if, with it, the groups that are started and not yet trained fit their deadlines, at
             `per_batch` groups an update (there are v + max_lag - s + 1 updates left to its own deadline);
  formation: a batch takes the finished groups with the earliest deadlines, and only if all others still fit; so an
             update waits for a sequence in flight that it would otherwise overshoot.
If nothing runs, everything is finished and a full batch always fits (proved in tests/rollouts/test_schedule.py by
search), so nothing can wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalerl.config.recipe import OffPolicy, PipelineRL, max_lag


@dataclass(slots=True)
class _Ticket:
    """A group that was started and is not yet in a batch."""

    index: int
    """Position in the order of starts; also the visit's index."""
    deadline: int
    """Last update that may train it."""
    finished: int = -1
    """Position in the order of finishing; -1 while it runs."""


@dataclass(slots=True)
class Schedule:
    """The state of the two rules, and of the versions that wait to become active.

    Example: Schedule(off_policy=PipelineRL(max_lag=8), per_batch=16, lag_ticks=40)
    """

    off_policy: OffPolicy
    per_batch: int
    """P: groups in a batch."""
    lag_ticks: int
    """Ticks between a batch's completion and the use of the weights it trained; -1: not known yet."""
    eager: bool = False
    """Use weights as soon as they arrive, instead of at a tick fixed by the data."""
    active: int = 0
    """Version of the weights in use."""
    closed: bool = False
    """No more groups will come: what is left makes a last, smaller batch."""
    next_batch: int = 0
    """Number of the next batch, and of the update that will train it."""
    formed_at: dict[int, int] = field(default_factory=dict)
    """Tick at which each batch was completed, until the weights it trained are active."""
    started: int = 0
    """Groups started so far."""
    finished: int = 0
    """Groups finished so far."""
    _open: dict[int, _Ticket] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------------------- groups

    def may_start(self) -> bool:
        """Return whether one more group may start under the active weights."""
        if isinstance(self.off_policy, PipelineRL):
            return self._fits(self.next_batch, extra_deadline=self._deadline())
        return self.started < (self._sampled_with() + self.off_policy.batches) * self.per_batch

    def start(self) -> int:
        """Count a group as started; return its index."""
        assert self.may_start()
        index, self.started = self.started, self.started + 1
        self._open[index] = _Ticket(index, self._deadline())
        return index

    def _sampled_with(self) -> int:
        """Return the version that groups started now are sampled with: all of a round's with the one that opened it.

        A version within a round may become active before all of the round's groups are started: the first does where
        the lag is not known yet, and any in the eager schedule.
        """
        if isinstance(self.off_policy, PipelineRL):
            return self.active
        return self.active - self.active % self.off_policy.batches

    def _deadline(self) -> int:
        """Return the last update that may train a group started now."""
        return self._sampled_with() + max_lag(self.off_policy)

    def finish(self, index: int) -> None:
        """Count a group as finished."""
        self._open[index].finished = self.finished
        self.finished += 1

    def form(self, tick: int) -> list[int] | None:
        """Return the groups of the next batch if it is complete at this tick, in the order they were started."""
        frozen = not isinstance(self.off_policy, PipelineRL)
        if frozen:  # in order of starting, so that a round's updates are not sorted by length
            candidates = sorted(self._open.values(), key=lambda t: t.index)[: self.per_batch]
            if any(t.finished < 0 for t in candidates):
                return None
        else:
            done = [t for t in self._open.values() if t.finished >= 0]
            candidates = sorted(done, key=lambda t: (t.deadline, t.finished))[: self.per_batch]
        full = len(candidates) == self.per_batch
        last = self.closed and 0 < len(candidates) == len(self._open)
        chosen = {t.index for t in candidates}
        if not (full or last) or not (frozen or self._fits(self.next_batch + 1, without=chosen)):
            return None
        for index in chosen:
            del self._open[index]
        self.formed_at[self.next_batch] = tick
        self.next_batch += 1
        return sorted(chosen)

    def _fits(
        self, first: int, extra_deadline: int | None = None, without: frozenset[int] | set[int] = frozenset()
    ) -> bool:
        """Return whether open groups keep their deadlines if updates from number `first` on train P groups each."""
        deadlines = sorted(t.deadline for t in self._open.values() if t.index not in without)
        if extra_deadline is not None:
            deadlines.append(extra_deadline)  # the newest deadline is the latest: versions only grow
        return all(first + i // self.per_batch <= deadline for i, deadline in enumerate(deadlines))

    # ------------------------------------------------------------------------------------------------------ versions

    def due(self, tick: int, idle: bool) -> bool:
        """Return whether the next version must become active before this tick, and the generator wait for it.

        Args:
            tick: the tick about to be done.
            idle: no sequence runs and none may start, so there is nothing to do under the active weights.
        """
        batch = self.active  # the batch that the next version is trained on
        if batch not in self.formed_at:
            return False
        if idle or self.lag_ticks < 0:  # without a lag, wait at the first batch: the trainer measures it there
            return True
        frozen = not isinstance(self.off_policy, PipelineRL)  # a round's versions are taken when all of it is done
        return not frozen and not self.eager and tick >= self.formed_at[batch] + self.lag_ticks

    def activate(self, version: int) -> None:
        """Count a version as active."""
        assert version == self.active + 1, (version, self.active)
        del self.formed_at[self.active]
        self.active = version

    # --------------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return plain values."""
        tickets = [[t.index, t.deadline, t.finished] for t in self._open.values()]
        formed = [[batch, tick] for batch, tick in self.formed_at.items()]
        counts = [self.active, self.next_batch, self.started, self.finished]
        return {"tickets": tickets, "formed_at": formed, "counts": counts, "closed": self.closed, "lag": self.lag_ticks}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._open = {t[0]: _Ticket(*t) for t in state["tickets"]}
        self.formed_at = {int(batch): int(tick) for batch, tick in state["formed_at"]}
        self.active, self.next_batch, self.started, self.finished = state["counts"]
        self.closed, self.lag_ticks = state["closed"], state["lag"]
