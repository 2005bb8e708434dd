"""The tokens of one sequence and the limits of its next request, without I/O.

Length control is that of interrupt.py, but a sequence consists of several requests. The first request is limited to the
thinking limit. If it ends there without the end tag, the phrase is inserted and a second request continues after it. A
broken request is continued in the same way, with the tokens received so far as its prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from scalerl.core.types import ExpertArray, IntArray, Rollout
from scalerl.training.engines.engine import Finished, Request, RoutingShape, joined
from scalerl.training.engines.interrupt import (
    NEVER,
    Ints,
    LengthRule,
    drawn_interrupt,
    forced_tokens,
    next_limit,
    take_tokens,
)
from scalerl.training.engines.vllm.protocol import BadAnswer, VersionSpan, experts_of_tokens

_NONE: IntArray = np.empty(0, np.int32)


class TokenSequence:
    """An unfinished sequence."""

    def __init__(
        self, request: Request, rule: LengthRule, stop: Iterable[int], routing: RoutingShape | None = None
    ) -> None:
        """Start at the prompt.

        Args:
            request: The sequence to generate.
            rule: Length limits.
            stop: Tokens that end a sequence.
            routing: Shape of the experts that the server reports; None: they are not requested.
        """
        self.routing = routing
        self._experts: list[tuple[int, ExpertArray]] = []
        self._nuclei: dict[int, IntArray] = {}
        self.request, self.rule, self._stop = request, rule, np.asarray([*stop, -1], np.int64)
        self._interrupt_at, self._closed_at = np.asarray([drawn_interrupt(rule, request.key)]), np.asarray([NEVER])
        self.tokens: list[int] = []
        self.logps: list[float] = []
        self.versions: list[int] = []
        self.sampled: list[bool] = []
        self.ended: bool | None = None
        """None: not ended; True: ended by a stop token; False: truncated, its budget is used up."""
        self.restarts: list[int] = []
        """Token counts at which a request began; the server recomputes keys and values there."""

    def __len__(self) -> int:
        return len(self.tokens)

    def over(self) -> bool:
        """Return whether the sequence has ended."""
        return self.ended is not None

    @property
    def prefix(self) -> list[int]:
        """Prompt and tokens so far; the next request continues them."""
        return [*self.request.prompt, *self.tokens]

    @property
    def allowance(self) -> int:
        """Tokens that the next request may sample: up to the interruption, otherwise up to the end of the budget."""
        return int(next_limit(self.rule, self._closed_at, self._interrupt_at)[0]) - len(self.tokens)

    def begin(self) -> None:
        """Record the start of a request."""
        self.restarts.append(len(self.tokens))

    def extend(
        self, tokens: Sequence[int], logps: Sequence[float], version: int, nuclei: Iterable[IntArray] = ()
    ) -> None:
        """Append sampled tokens up to the end of the sequence; ignore the rest.

        Args:
            tokens: Sampled tokens.
            logps: Their log-probabilities.
            version: Provisional version; `settle` replaces it.
            nuclei: Ids that each was sampled from; empty without top-p.
        """
        self._nuclei |= dict(enumerate(nuclei, len(self.tokens)))
        self._append(tokens, logps, version, sampled=True)

    def settle(self, spans: Sequence[VersionSpan], experts: str | None = None) -> None:
        """Set the versions and experts of the latest request's tokens to those that the server reports.

        The first token keeps the version with which the request was sent, if that is older: its prompt was computed
        partly with those weights (`connection.PREFILL_S`).

        Raises:
            BadAnswer: The spans or the experts do not cover the tokens.
        """
        first = self.restarts[-1]
        sent = self.versions[first : first + 1]
        covered = 0
        for span in spans:
            if span.start != covered:
                break
            covered = span.end
            end = min(first + span.end, len(self.tokens))
            count = max(0, end - first - span.start)
            self.versions[first + span.start : end] = [span.version] * count
        if sent:
            self.versions[first] = min(self.versions[first], *sent)
        if first + covered < len(self.tokens):
            raise BadAnswer(f"it named the weights of {covered} tokens, but had sent {len(self.tokens) - first}")
        if self.routing is not None:
            self._experts.append((first, experts_of_tokens(experts, covered, self.routing)))

    def write_phrase(self, version: int) -> None:
        """Insert the phrase at the thinking limit if thinking has not ended; its tokens are context."""
        while self.ended is None:
            forced = int(forced_tokens(self.rule, self._count(), self._closed_at, self._interrupt_at)[0])
            if forced < 0:
                return
            self._append([forced], [0.0], version, sampled=False)

    def finish(self) -> Finished:
        """Return the rollout of an ended sequence."""
        assert self.ended is not None
        experts_TLK = None
        if self.routing is not None:
            from scalerl.training.models.routing import UNKNOWN  # loads torch

            shape = (len(self.tokens), self.routing.layers, self.routing.active)
            experts_TLK = np.full(shape, UNKNOWN, np.int16)
            for first, rows_nLK in self._experts:
                experts_TLK[first : first + len(rows_nLK)] = rows_nLK[: len(self.tokens) - first]
        rollout = Rollout(
            tokens=np.asarray(self.tokens, np.int32),
            logps=np.asarray(self.logps, np.float32),
            versions=np.asarray(self.versions, np.int32),
            sampled=np.asarray(self.sampled, np.bool_),
            truncated=not self.ended,
            interrupted=not all(self.sampled),
            experts=experts_TLK,
            nucleus=joined([self._nuclei.get(t, _NONE) for t in range(len(self))]) if self._nuclei else None,
        )
        return Finished(self.request.id, rollout)

    def _count(self) -> Ints:
        return np.asarray([len(self.tokens)])

    def _append(self, tokens: Sequence[int], logps: Sequence[float], version: int, sampled: bool) -> None:
        if self.ended is not None or not tokens:
            return
        width = max(0, self.rule.longest_tag - 1)
        recent = [-1] * width + self.tokens[-width:] if width else []
        taken = take_tokens(
            self.rule, self._stop, np.asarray([recent[len(recent) - width :]], np.int64),
            np.asarray([tokens], np.int64), sampled, self._count(), self._closed_at, self._interrupt_at,
        )  # fmt: skip
        count = int(taken.tokens_B[0])
        self.tokens += tokens[:count]
        self.logps += logps[:count]
        self.versions += [version] * count
        self.sampled += [sampled] * count
        self._closed_at = taken.closed_at_B
        if taken.ended_B[0]:
            self.ended = bool(taken.stopped_B[0])
