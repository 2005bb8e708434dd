"""Continuous batching over a fixed number of slots; a decoder computes the tokens and their FLOPs.

The engine keeps busy slots together at the front, so that a half-empty engine decodes half the rows.

Legend: S slots, R leading rows that are decoded, N rows that are prefilled, B rows that are sampled; L layers with
experts, K experts per token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from scalerl.training.engines.engine import Finished, Occupancy, Request, RoutingShape, Work
from scalerl.training.engines.interrupt import Ints, LengthRule
from scalerl.training.engines.local.slots import SlotTable

Receive = Callable[[int], Mapping[str, Any]]
"""Maps a version to its weights by name."""


class Decoder(Protocol):
    """The model of a slot engine. Rows are slots; the cache of a row belongs to the sequence in that slot."""

    routing_shape: RoutingShape | None
    """Shape of the recorded experts of a mixture; None if nothing is recorded."""
    nuclei: Sequence[Ints]
    """Ids that each token of the last `sample` was drawn from; empty without top-p."""

    @property
    def version(self) -> int:
        """Version of the weights in use; engines that share a model share it."""

    def decode(self, rows: int, tokens_R: Ints, lengths_R: Ints) -> float:
        """Feed one token to each of the first `rows` rows, at cache position lengths_R - 1; return the FLOPs spent.

        Rows of length 1 are empty. The FLOPs of the head are counted here and in `prefill`, although `sample` runs it.
        """

    def prefill(self, slots_N: Ints, prompts: Sequence[tuple[int, ...]]) -> float:
        """Fill rows with prompts and return the FLOPs spent; equal prompts are computed once."""

    def sample(self, slots_B: Ints, uniforms_B: Any) -> tuple[Ints, Any]:
        """Draw the next token of each given row from its latest hidden state; return tokens and log-probabilities."""

    def experts(self, slots_B: Ints) -> Any:
        """Return [B, L, K] of each given row, if recorded: the experts of its latest token."""

    def move(self, source: int, target: int) -> None:
        """Copy one row's cache onto another."""

    def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Swap the weights, keep the cache."""

    def state(self, lengths_S: Ints, *, clear: bool = False) -> dict[str, Any]:
        """Return the cached tokens of all rows, a number of each; with `clear`, give back the memory of all rows."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all rows with what `state` returned."""

    @property
    def cache_in_host(self) -> bool:
        """Whether the cache is in the memory to which `state` copies it."""


@dataclass(frozen=True, slots=True)
class Loan:
    """The cache of another engine, for an engine that works while that one is idle or paused.

    Example: Loan(lender=SlotEngine(...), row_tokens=1320, spare_rows=4)
    """

    lender: SlotEngine
    row_tokens: int
    """Tokens that a row can hold."""
    spare_rows: int
    """Rows by which both engines together may take more memory than the lender alone."""


class SlotEngine:
    """An engine that runs continuous batching over a `Decoder`."""

    def __init__(
        self,
        decoder: Decoder,
        slots: int,
        rule: LengthRule,
        stop: Sequence[int],
        refill: int = 0,
        receive: Receive | None = None,
        loan: Loan | None = None,
    ) -> None:
        """Make an engine.

        Args:
            decoder: The model.
            slots: Sequences decoded together.
            rule: Length limits.
            stop: Token ids that end a sequence.
            refill: Number of free slots at which waiting requests start; 0 chooses a sixteenth of the slots, 1 starts
                requests at once. A prefill of any size costs about as much as a decode step.
            receive: Function that returns the weights of a version; None if the weights never change.
            loan: The cache that the decoder shares with another engine; None: it has its own.
        """
        self.slots, self.work, self._receive, self._loan = slots, Work(), receive, loan
        self._usable = slots  # fewer if sequences of the lender occupy memory
        self._lent: dict[str, Any] | None = None
        self._decoder, self._table = decoder, SlotTable(slots, rule, stop, decoder.routing_shape)
        self._refill = min(refill, slots) or max(1, slots // 16)
        self._waiting: deque[Request] = deque()
        self._ended: list[Finished] = []

    @property
    def decoder(self) -> Decoder:
        """The model."""
        return self._decoder

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._decoder.version

    def occupancy(self) -> Occupancy:
        """Return how full the engine is; it accepts enough requests for the free slots and one refill more."""
        running, waiting = int(self._table["busy"].sum()), len(self._waiting)
        return Occupancy(self.slots, running, waiting, self.slots - running + self._refill - waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue sequences; they start at the next step at which enough slots are free."""
        self._waiting.extend(requests)

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop sequences that were submitted and have not finished."""
        self._waiting = deque(request for request in self._waiting if request.id not in ids)
        self._table.cancel(ids)

    def begin(self) -> None:
        """Give every running sequence one token."""
        self.take_back()
        if self._loan is not None and self.occupancy().busy:
            self._borrow(self._loan)
        self._ended += self._decode()
        if self._loan is not None and not self.occupancy().busy:
            self._loan.lender.take_back()

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Return the sequences that ended."""
        ended, self._ended = self._ended, []
        return ended

    def _decode(self) -> list[Finished]:
        table = self._table
        started = self._choose_starts()
        if not self._waiting and not started:
            self._close_holes()
        flops = 0.0
        rows = int(np.flatnonzero(table["busy"])[-1]) + 1 if table["busy"].any() else 0
        if rows:
            slots_R = np.arange(rows)
            # an empty row in between gets token 0 at position 0, which the next prefill overwrites
            busy_R = table["busy"][:rows]
            tokens_R = np.where(busy_R, table.last_tokens(slots_R), 0)
            lengths_R = np.where(busy_R, table.lengths(slots_R), 1)
            flops += self._decoder.decode(rows, tokens_R, lengths_R)
        if started:
            for slot, request in started:
                table.start(slot, request)
            slots_N = np.asarray([slot for slot, _ in started])
            flops += self._decoder.prefill(slots_N, [request.prompt for _, request in started])
        slots_B = np.flatnonzero(table["busy"])
        if not len(slots_B):
            return []
        tokens_B, logps_B = self._decoder.sample(slots_B, table.draws(slots_B))
        self.work = self.work + Work(1, len(slots_B), self.slots, flops)
        experts_BLK = None if self._decoder.routing_shape is None else self._decoder.experts(slots_B)
        return table.record(slots_B, tokens_B, logps_B, self.version, experts_BLK, self._decoder.nuclei)

    # -------------------------------------------------------------------------------------------------- shared cache

    def lend(self) -> int:
        """Move the cache of all sequences to host memory; return the tokens that occupy the memory of the cache there.

        `take_back`, or the next step of this engine, moves it back.
        """
        if self._lent is None:
            self._lent = self._decoder.state(self._cached_tokens(), clear=True)
        return int(self._lent["lengths"].sum()) if self._decoder.cache_in_host else 0

    def take_back(self) -> None:
        """Move the cache back, if it is lent."""
        if self._lent is not None:
            self._decoder.load_state(self._lent)
            self._lent = None

    def _borrow(self, loan: Loan) -> None:
        tokens = (loan.lender.slots + loan.spare_rows) * loan.row_tokens - loan.lender.lend()
        self._usable = max(1, min(self.slots, tokens // loan.row_tokens))

    def _cached_tokens(self) -> Ints:
        """Return the cached tokens of each slot: all except the latest, which the next step feeds."""
        table = self._table
        return np.where(table["busy"], table.lengths(np.arange(self.slots)) - 1, 0)

    def swap(self, version: int) -> None:
        """Use the weights of a version from the next step on; running sequences keep their cache."""
        assert self._receive is not None, "an engine without a weight channel"
        self._decoder.load_weights(version, self._receive(version))

    def state(self) -> dict[str, Any]:
        """Return everything that an exact resume needs, except the weights."""
        self.take_back()
        waiting = [[list(r.id), list(r.prompt), r.key] for r in self._waiting]
        work = [self.work.steps, self.work.tokens, self.work.slot_steps, self.work.flops]
        return {"work": work, "waiting": waiting, "table": self._table.state(),
                "cache": self._decoder.state(self._cached_tokens())}  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.work = Work(*state["work"])
        self._waiting = deque(Request(tuple(w[0]), tuple(w[1]), w[2]) for w in state["waiting"])
        self._table.load_state(state["table"])
        self._decoder.load_state(state["cache"])

    def _choose_starts(self) -> list[tuple[int, Request]]:
        free = np.flatnonzero(~self._table["busy"][: self._usable])
        wanted = min(len(free), len(self._waiting))
        refill = self._refill if self._usable == self.slots else min(self._refill, max(1, self._usable // 16))
        if wanted < refill and len(self._waiting) > wanted:
            return []  # more requests wait than fit; wait for more free slots, so that one prefill serves them all
        return [(int(slot), self._waiting.popleft()) for slot in free[:wanted]]

    def _close_holes(self) -> None:
        """Move the last sequences into the free slots before them."""
        busy = self._table["busy"]
        while busy.any():
            last, hole = int(np.flatnonzero(busy)[-1]), int(np.argmin(busy))
            if busy[hole] or hole > last:
                return
            self._decoder.move(last, hole)
            self._table.move(last, hole)
