"""How patient a connection is, and one engine's share of it."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from dataclasses import dataclass

from scalerl.models.flops import ModelShape
from scalerl.rollouts.engine import Work
from scalerl.rollouts.vllm.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient a connection is.

    Example: Limits(stall_s=120.0, retries=5)
    """

    connect_s: float = 10.0
    """Seconds to connect."""
    stall_s: float = 120.0
    """Seconds without a token, or without an answer to a question, after which a request counts as broken."""
    update_s: float = 1800.0
    """Seconds that the server may take to pause, or to load weights."""
    retries: int = 5
    """Times that a sequence or a question is tried again before the engine counts as dead."""
    backoff_s: float = 0.25
    """Seconds before the first of them; each later one waits twice as long, at most 10 s."""
    prefill_s: float = 30.0
    """Seconds that a swap waits for the first tokens of requests already sent, so that no prompt is computed half
    with old and half with new weights."""
    stream_interval: int = 16
    """Tokens a chunk. More cost less of the client's time; a broken request loses up to one chunk."""

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait before attempt 1, 2, ... at something again."""
        return min(10.0, self.backoff_s * 2.0 ** (attempt - 1))


class Lane:
    """The share of one engine in a connection."""

    def __init__(self, name: str, slots: int, shape: ModelShape | None = None) -> None:
        """Make a share.

        Args:
            name: for the server's log.
            slots: sequences decoded together.
            shape: what the FLOPs depend on; None: they are not counted.
        """
        self.name, self.slots, self._shape = name, slots, shape
        self.done: queue.SimpleQueue[TokenSequence | None] = queue.SimpleQueue()
        """Sequences that ended, for the caller's thread; None wakes it when the connection has died."""
        self.work = Work()
        """Replaced as a whole, so that the caller's thread may read it."""
        self.waiting: deque[TokenSequence] = deque()
        self.running: dict[TokenSequence, asyncio.Task[None]] = {}
        self._steps = 0.0

    def count(self, sequence: TokenSequence, before: int) -> None:
        """Count a sequence's tokens from index `before` on.

        Each is its share of a decode step of all sequences that run. Prompts are counted once for each sequence: what
        the server saves by its prefix cache, or computes again after a swap, is not known here.
        """
        tokens, prompt = len(sequence) - before, len(sequence.request.prompt)
        self._steps += tokens / max(1, len(self.running))
        flops = 0.0
        if self._shape is not None:
            first = 0 if before == 0 else prompt + before - 1  # the latest token is drawn, and not yet fed
            flops = self._shape.forward_flops(first, prompt + len(sequence) - 1 - first, predicted=tokens)
        steps, work = int(self._steps), self.work
        self.work = Work(steps, work.tokens + tokens, int(self._steps * self.slots), work.flops + flops)
