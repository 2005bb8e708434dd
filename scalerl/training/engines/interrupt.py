"""Forced interruption and length limits as pure functions of token counts.

Each rollout draws a random thinking limit. If the end tag has not appeared by then, the phrase is inserted one token at
a time, and the model answers (ScaleRL sec. 4). The paper does not specify how the phrase's tokens enter the loss; here
they are context (loss mask 0), as in other implementations.

Legend: B rollouts. count_B: number of tokens, which is the index of the next token. closed_at_B: count at which
thinking ended, NEVER while it continues. interrupt_at_B: the thinking limit, NEVER without interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.core.rng import uniforms
from scalerl.training.config.length import Interruption, LengthControl

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = 1 << 40
"""A count that no rollout reaches."""

INTERRUPT_DRAW = np.asarray([NEVER])
"""Position in a rollout's random stream that determines its thinking limit; tokens use positions from 0."""


@dataclass(frozen=True, slots=True)
class LengthRule:
    """A recipe's length control in the tokens of one vocabulary.

    Example: LengthRule(thinking=(50, 60), answer_tokens=9, max_tokens=69, phrase=(26,), end_tag=(26,))
    """

    thinking: tuple[int, int] | None
    """[low, high] of the random limit; None without interruption."""
    answer_tokens: int
    """Tokens allowed after thinking ended; NEVER without interruption."""
    max_tokens: int
    """Maximum number of tokens of a rollout, without the phrase."""
    phrase: tuple[int, ...] = ()
    """Tokens inserted at the limit."""
    end_tag: tuple[int, ...] = ()
    """Tokens that end thinking."""
    other_tags: tuple[tuple[int, ...], ...] = ()
    """Other tokenizations of the same text, which occur when the tag merges with neighboring text."""

    @property
    def tags(self) -> tuple[tuple[int, ...], ...]:
        """All token sequences that end thinking."""
        return (self.end_tag, *self.other_tags)

    @property
    def longest_tag(self) -> int:
        """Length of the longest of these sequences, tokens."""
        return max(map(len, self.tags))

    @property
    def capacity(self) -> int:
        """Maximum number of tokens of a rollout, including the phrase."""
        return self.max_tokens + len(self.phrase)


def length_rule(control: LengthControl, encode: Callable[[str], Sequence[int]]) -> LengthRule:
    """Translate a recipe's length control with a tokenizer's encode function (text -> list of ids)."""
    if not isinstance(control, Interruption):
        return LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=control.max_tokens)
    phrase, end_tag = tuple(encode(control.phrase)), tuple(encode(control.end_tag))
    others = tag_variants(control.end_tag, encode) - {end_tag}
    return LengthRule(
        control.thinking_tokens, control.answer_tokens, control.max_tokens, phrase, end_tag, tuple(sorted(others))
    )


MERGED_TEXTS = ("", " ", "\n", "\n\n", ".")
"""Text that a tokenizer may merge with the first or last token of the end tag: ">\\n\\n" is one token of Qwen."""


def tag_variants(tag: str, encode: Callable[[str], Sequence[int]]) -> set[tuple[int, ...]]:
    """Return the token sequences that encode a tag; there is one if the tag is a single token.

    Args:
        tag: Text of the tag.
        encode: Encode function of a tokenizer that adds no special tokens.
    """
    forms = {_core(before, tag, after, encode) for before in MERGED_TEXTS for after in MERGED_TEXTS} - {()}
    # a sequence that ends with another one is matched by that one
    return {tokens for tokens in forms if not any(len(o) < len(tokens) and tokens[-len(o) :] == o for o in forms)}


def _core(before: str, tag: str, after: str, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    """Return the tokens of before + tag + after, without those that contain only `before` or only `after`."""
    tokens, head, tail = list(encode(before + tag + after)), list(encode(before)), list(encode(after))
    if head and tokens[: len(head)] == head:
        tokens = tokens[len(head) :]
    if tail and tokens[-len(tail) :] == tail:
        tokens = tokens[: -len(tail)]
    return tuple(tokens)


def interrupt_point(rule: LengthRule, uniform: float) -> int:
    """Map a number in [0, 1) to a thinking limit, uniform over low..high; NEVER without interruption."""
    if rule.thinking is None:
        return NEVER
    low, high = rule.thinking
    return low + int(uniform * (high - low + 1))


def drawn_interrupt(rule: LengthRule, key: int) -> int:
    """Return the thinking limit of a rollout, drawn from its random stream."""
    return interrupt_point(rule, float(uniforms(np.asarray([key], np.uint64), INTERRUPT_DRAW)[0]))


def forced_tokens(rule: LengthRule, count_B: Ints, closed_at_B: Ints, interrupt_at_B: Ints) -> Ints:
    """Return the token of the phrase that must come next, or -1 where the model samples."""
    offset_B = count_B - interrupt_at_B
    inside_B = (offset_B >= 0) & (offset_B < len(rule.phrase)) & (closed_at_B == NEVER)
    phrase = np.asarray(rule.phrase or (-1,), dtype=np.int64)
    return np.where(inside_B, phrase[np.where(inside_B, offset_B, 0)], -1)


def budget_end(rule: LengthRule, closed_at_B: Ints) -> Ints | int:
    """Return the count at which each rollout is out of budget; one that has not stopped by then is truncated."""
    return rule.max_tokens if rule.thinking is None else closed_at_B + rule.answer_tokens


def next_limit(rule: LengthRule, closed_at_B: Ints, interrupt_at_B: Ints) -> Ints:
    """Return the count up to which the model samples: the interruption while it thinks, then the end of the budget."""
    end_B = budget_end(rule, closed_at_B)
    return np.where(closed_at_B == NEVER, np.minimum(interrupt_at_B, end_B), end_B)


@dataclass(frozen=True, slots=True)
class Taken:
    """What becomes of B rollouts that get new tokens.

    Example: Taken(tokens_B=[1, 1], closed_at_B=[12, NEVER], stopped_B=[False, True], ended_B=[True, True])
    """

    tokens_B: Ints
    """How many of the new tokens belong to each rollout: all of them, or those up to its end."""
    closed_at_B: Ints
    """Counts at which thinking ended."""
    stopped_B: Bools
    """Whether a stop token ended it."""
    ended_B: Bools
    """Whether it has ended: by a stop token, or truncated, its budget used up."""


def take_tokens(
    rule: LengthRule,
    stop: Ints,
    recent_BK: Ints,
    tokens_BT: Ints,
    sampled: Bools | bool,
    count_B: Ints,
    closed_at_B: Ints,
    interrupt_at_B: Ints,
) -> Taken:
    """Apply budget, interruption and stop tokens to T new tokens of B rollouts: one token of each slot, or one chunk.

    Args:
        rule: Length limits.
        stop: Tokens that end a rollout if the model sampled them.
        recent_BK: The K tokens before the new ones, -1 before its start; K >= rule.longest_tag - 1.
        tokens_BT: New tokens, T >= 1.
        sampled: Whether the model sampled them [B, T]; the phrase is not sampled.
        count_B: Tokens before the new ones.
        closed_at_B: Counts at which thinking ended before them.
        interrupt_at_B: Thinking limits.
    """
    (B, T), K = tokens_BT.shape, recent_BK.shape[1]
    count_BT = count_B[:, None] + np.arange(1, T + 1)
    closed_BT = closed_at_B[:, None]
    if rule.thinking is not None:
        all_BS = np.concatenate([recent_BK, tokens_BT], axis=1)
        closes_BT = count_BT == interrupt_at_B[:, None] + len(rule.phrase)
        for tag in rule.tags:
            first = K - len(tag) + 1  # where the tag begins that ends with new token 0
            closes_BT |= np.logical_and.reduce([all_BS[:, first + k : first + k + T] == id for k, id in enumerate(tag)])
        closed_BT = np.minimum(closed_BT, np.minimum.accumulate(np.where(closes_BT, count_BT, NEVER), axis=1))
    stop_BT = (tokens_BT[:, :, None] == stop).any(axis=2) & sampled
    end_BT = stop_BT | (count_BT >= budget_end(rule, closed_BT))
    rows_B, last_B = np.arange(B), end_BT.argmax(axis=1)
    ended_B = end_BT[rows_B, last_B]
    last_B = np.where(ended_B, last_B, T - 1)
    closed_B = closed_at_B if rule.thinking is None else closed_BT[rows_B, last_B]
    return Taken(last_B + 1, closed_B, stop_BT[rows_B, last_B], ended_B)
