"""Retries of a connection, and one engine's share of it."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from dataclasses import dataclass

from scalerl.models.sizes import ModelSizes
from scalerl.rollouts.engine import Work
from scalerl.rollouts.vllm.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Retries of a connection.

    Silence, and the duration of a transfer, are limited by the Restarter (rollouts/restarts.py).

    Example: LaneLimits(retries=5)
    """

    connect_s: float = 10.0
    """Seconds to connect."""
    retries: int = 5
    """Retries of a sequence without a token in between, or of a request, before the engine counts as dead."""
    backoff_s: float = 0.25
    """Seconds before the first retry; doubles with each further retry, up to 10 s."""
    prefill_s: float = 30.0
    """Seconds that a swap waits for the first tokens of requests already sent, so that no prompt is processed partly
    with old and partly with new weights."""
    stream_interval: int = 16
    """Tokens per chunk. Larger chunks cost the client less time; a broken request loses up to one chunk."""

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait before retry 1, 2, ..."""
        return min(10.0, self.backoff_s * 2.0 ** (attempt - 1))


class Lane:
    """One engine's share of a connection."""

    def __init__(self, name: str, slots: int, sizes: ModelSizes | None = None) -> None:
        """Make a lane.

        Args:
            name: Name in the server's log.
            slots: Sequences decoded together.
            sizes: Sizes that the FLOPs are computed from; None: they are not counted.
        """
        self.name, self.slots, self._sizes = name, slots, sizes
        self.done: queue.SimpleQueue[TokenSequence | None] = queue.SimpleQueue()
        """Finished sequences for the caller's thread; None wakes it when the connection has died."""
        self.work = Work()
        """Replaced and never modified, so that the caller's thread may read it."""
        self.waiting: deque[TokenSequence] = deque()
        self.running: dict[TokenSequence, asyncio.Task[None]] = {}
        self._steps = 0.0

    def count(self, sequence: TokenSequence, before: int) -> None:
        """Count a sequence's tokens from index `before` on.

        Each token counts as its share of a decode step of all running sequences. Each prompt is counted once per
        sequence, because the tokens that the server saves with its prefix cache or recomputes after a swap are unknown.
        """
        tokens, prompt = len(sequence) - before, len(sequence.request.prompt)
        self._steps += tokens / max(1, len(self.running))
        flops = 0.0
        if self._sizes is not None:
            first = 0 if before == 0 else prompt + before - 1  # the latest token has been sampled but not fed yet
            flops = self._sizes.forward_flops(first, prompt + len(sequence) - 1 - first, predicted=tokens)
        steps, work = int(self._steps), self.work
        self.work = Work(steps, work.tokens + tokens, int(self._steps * self.slots), work.flops + flops)
