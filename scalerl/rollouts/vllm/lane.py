"""One engine's share of a connection."""

from __future__ import annotations

import asyncio
import queue

from scalerl.models.sizes import ModelSizes
from scalerl.rollouts.engine import Work
from scalerl.rollouts.vllm.sequence import TokenSequence


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
        self.free = asyncio.Semaphore(slots)
        """Free slots."""
        self.tasks: dict[TokenSequence, asyncio.Task[None]] = {}
        """The task of each sequence that waits for a slot or is being sampled."""
        self._steps = 0.0

    def count(self, sequence: TokenSequence, before: int) -> None:
        """Count a sequence's tokens from index `before` on.

        Each token counts as its share of a decode step of all running sequences. Each prompt is counted once per
        sequence, because the tokens that the server saves with its prefix cache or recomputes after a swap are unknown.
        """
        tokens, prompt = len(sequence) - before, len(sequence.request.prompt)
        self._steps += tokens / max(1, min(self.slots, len(self.tasks)))
        flops = 0.0
        if self._sizes is not None:
            first = 0 if before == 0 else prompt + before - 1  # the latest token has been sampled but not fed yet
            flops = self._sizes.forward_flops(first, prompt + len(sequence) - 1 - first, predicted=tokens)
        steps, work = int(self._steps), self.work
        self.work = Work(steps, work.tokens + tokens, int(self._steps * self.slots), work.flops + flops)
