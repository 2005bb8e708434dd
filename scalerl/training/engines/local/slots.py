"""The state of a slot engine: which sequence is in which slot, and its tokens so far.

Legend: S slots, B slots passed to a call, T token capacity of a slot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.core.rng import uniforms
from scalerl.core.types import Rollout
from scalerl.training.engines.engine import Finished, Request, RoutingShape, joined
from scalerl.training.engines.interrupt import (
    NEVER,
    Ints,
    LengthRule,
    drawn_interrupt,
    forced_tokens,
    take_tokens,
)


class SlotTable:
    """Tokens, log-probabilities, versions and limits of the sequences in S slots."""

    def __init__(self, slots: int, rule: LengthRule, stop: Sequence[int], routing: RoutingShape | None = None) -> None:
        self.rule = rule
        self.stop = np.asarray(stop or (-1,), dtype=np.int64)
        shape = (slots, rule.capacity)
        self.requests: list[Request | None] = [None] * slots
        self.arrays: dict[str, Any] = {
            "tokens": np.full(shape, -1, np.int64),
            "logps": np.zeros(shape, np.float32),
            "versions": np.zeros(shape, np.int32),
            "sampled": np.zeros(shape, np.bool_),
            "busy": np.zeros(slots, np.bool_),
            "count": np.zeros(slots, np.int64),
            "prompt_length": np.zeros(slots, np.int64),
            "closed_at": np.full(slots, NEVER, np.int64),
            "interrupt_at": np.full(slots, NEVER, np.int64),
            "key": np.zeros(slots, np.uint64),
        }
        if routing is not None:
            self.arrays["experts"] = np.zeros((*shape, routing.layers, routing.active), routing.dtype)
        self.nuclei: list[list[Ints]] = [[] for _ in range(slots)]
        """Ids that each token of a slot was sampled from; empty without top-p."""

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def start(self, slot: int, request: Request) -> None:
        """Put a request into a free slot."""
        assert self.requests[slot] is None, slot
        self.requests[slot], self.nuclei[slot] = request, []
        values = {
            "tokens": -1, "sampled": False, "busy": True, "count": 0, "prompt_length": len(request.prompt),
            "closed_at": NEVER, "interrupt_at": drawn_interrupt(self.rule, request.key),
            "key": np.uint64(request.key),
        }  # fmt: skip
        for name, value in values.items():
            self.arrays[name][slot] = value

    def move(self, source: int, target: int) -> None:
        """Move a sequence into a free slot."""
        assert self.requests[target] is None, target
        for array in self.arrays.values():
            array[target] = array[source]
        self.arrays["busy"][source] = False
        self.nuclei[target] = self.nuclei[source]
        self.requests[target], self.requests[source] = self.requests[source], None

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Free the slots of the given sequences."""
        for slot, request in enumerate(self.requests):
            if request is not None and request.id in ids:
                self.requests[slot] = None
                self["busy"][slot] = False

    def draws(self, slots_B: Ints) -> Any:
        """Return each sequence's random number for its next token."""
        return uniforms(self["key"][slots_B], self["count"][slots_B])

    def last_tokens(self, slots_B: Ints) -> Ints:
        """Return each sequence's latest token; -1 for a slot without one."""
        last_B: Ints = self["tokens"][slots_B, np.maximum(self["count"][slots_B] - 1, 0)]
        return last_B

    def lengths(self, slots_B: Ints) -> Ints:
        """Return the number of prompt and completion tokens of each sequence."""
        length_B: Ints = self["prompt_length"][slots_B] + self["count"][slots_B]
        return length_B

    def record(
        self, slots_B: Ints, tokens_B: Ints, logps_B: Any, version: int, experts_BLK: Any = None, nuclei_B: Any = ()
    ) -> list[Finished]:
        """Append one token to each sequence and return the sequences that ended.

        During an interruption the next token of the phrase replaces the sampled token.
        """
        count_B, closed_at_B, interrupt_at_B = (self[name][slots_B] for name in ("count", "closed_at", "interrupt_at"))
        forced_B = forced_tokens(self.rule, count_B, closed_at_B, interrupt_at_B)
        free_B = forced_B < 0
        tokens_B = np.where(free_B, tokens_B, forced_B)
        taken = take_tokens(
            self.rule, self.stop, self._recent(slots_B, count_B), tokens_B[:, None], free_B[:, None], count_B,
            closed_at_B, interrupt_at_B,
        )  # fmt: skip
        self["tokens"][slots_B, count_B] = tokens_B
        self["logps"][slots_B, count_B] = np.where(free_B, logps_B, 0.0)
        self["versions"][slots_B, count_B] = version
        self["sampled"][slots_B, count_B] = free_B
        if experts_BLK is not None:
            self["experts"][slots_B, count_B] = experts_BLK
        for slot, free, ids in zip(slots_B, free_B, nuclei_B, strict=False):  # no nuclei without top-p
            self.nuclei[slot].append(ids if free else ids[:0])
        self["count"][slots_B] = count_B + 1
        self["closed_at"][slots_B] = taken.closed_at_B
        return [self._finish(int(slots_B[i]), bool(taken.stopped_B[i])) for i in np.flatnonzero(taken.ended_B)]

    def _recent(self, slots_B: Ints, count_B: Ints) -> Ints:
        """Return the latest tokens of each sequence among which a tag may begin; -1 before its start."""
        width = max(0, self.rule.longest_tag - 1)
        columns_BK = count_B[:, None] - width + np.arange(width)
        recent_BK: Ints = np.where(columns_BK >= 0, self["tokens"][slots_B[:, None], np.maximum(columns_BK, 0)], -1)
        return recent_BK

    def _finish(self, slot: int, stopped: bool) -> Finished:
        request = self.requests[slot]
        assert request is not None
        n = int(self["count"][slot])
        rollout = Rollout(
            tokens=self["tokens"][slot, :n].astype(np.int32),
            logps=self["logps"][slot, :n].copy(),
            versions=self["versions"][slot, :n].copy(),
            sampled=self["sampled"][slot, :n].copy(),
            truncated=not stopped,
            interrupted=not bool(self["sampled"][slot, :n].all()),
            experts=self["experts"][slot, :n].copy() if "experts" in self.arrays else None,
            nucleus=joined(self.nuclei[slot]) if self.nuclei[slot] else None,
        )
        self.requests[slot] = None
        self["busy"][slot] = False
        return Finished(request.id, rollout)

    def _sampled(self, counts_S: Ints) -> tuple[Any, Any]:
        """Return slot and place of every token of the running sequences, one sequence after the other."""
        slot_N = np.repeat(np.arange(len(counts_S)), counts_S)
        return slot_N, np.arange(len(slot_N)) - np.repeat(np.cumsum(counts_S) - counts_S, counts_S)

    def state(self) -> dict[str, Any]:
        """Return a copy of the arrays, of those per token only the tokens of running sequences, and the requests."""
        places = self._sampled(np.where(self["busy"], self["count"], 0))
        requests = [None if r is None else [list(r.id), list(r.prompt), r.key] for r in self.requests]
        arrays = {name: array[places] if array.ndim > 1 else array.copy() for name, array in self.arrays.items()}
        return {"arrays": arrays, "requests": requests,
                "nuclei": [joined(sets) for sets in self.nuclei]}  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        arrays = {name: np.asarray(array) for name, array in state["arrays"].items()}
        places = self._sampled(np.where(arrays["busy"], arrays["count"], 0))
        for name, array in self.arrays.items():
            array[places if array.ndim > 1 else ...] = arrays[name]
        self.requests = [None if r is None else Request(tuple(r[0]), tuple(r[1]), r[2]) for r in state["requests"]]
        self.nuclei = [np.split(ids, np.cumsum(sizes))[:-1] for sizes, ids in state["nuclei"]]
