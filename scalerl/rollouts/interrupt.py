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

from scalerl.config.recipe import Interruption, LengthControl

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


AROUND = ("", " ", "\n", "\n\n", ".")
"""Text that a tokenizer may merge with the first or last token of the end tag: ">\\n\\n" is one token of Qwen."""


def tag_variants(tag: str, encode: Callable[[str], Sequence[int]]) -> set[tuple[int, ...]]:
    """Return the token sequences that encode a tag; there is one if the tag is a single token.

    Args:
        tag: Text of the tag.
        encode: Encode function of a tokenizer that adds no special tokens.
    """
    forms = {_core(before, tag, after, encode) for before in AROUND for after in AROUND} - {()}
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


def forced_tokens(rule: LengthRule, count_B: Ints, closed_at_B: Ints, interrupt_at_B: Ints) -> Ints:
    """Return the token of the phrase that must come next, or -1 where the model samples."""
    offset_B = count_B - interrupt_at_B
    inside_B = (offset_B >= 0) & (offset_B < len(rule.phrase)) & (closed_at_B == NEVER)
    phrase = np.asarray(rule.phrase or (-1,), dtype=np.int64)
    return np.where(inside_B, phrase[np.where(inside_B, offset_B, 0)], -1)


def closed_at(rule: LengthRule, tail_BK: Ints, count_B: Ints, closed_at_B: Ints, interrupt_at_B: Ints) -> Ints:
    """Return closed_at_B after a token was added.

    Args:
        rule: Length limits.
        tail_BK: Last K = rule.longest_tag tokens of each rollout, -1 before its start.
        count_B: Counts that include the new token.
        closed_at_B: Values before the new token.
        interrupt_at_B: Thinking limits.
    """
    if rule.thinking is None:
        return closed_at_B
    ends = [(tail_BK[:, tail_BK.shape[1] - len(tag) :] == np.asarray(tag)).all(axis=1) for tag in rule.tags]
    tag_B = np.logical_or.reduce(ends)
    phrase_done_B = count_B == interrupt_at_B + len(rule.phrase)
    return np.where((closed_at_B == NEVER) & (tag_B | phrase_done_B), count_B, closed_at_B)


def out_of_budget(rule: LengthRule, count_B: Ints, closed_at_B: Ints) -> Bools:
    """Return which rollouts have reached their limit; those without a stop token are truncated."""
    if rule.thinking is None:
        return count_B >= rule.max_tokens
    return count_B >= closed_at_B + rule.answer_tokens
