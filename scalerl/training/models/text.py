"""Tokens of prompts, and text of completions: the only place that does either. torch is not imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

TAIL = 8
"""Tokens before a completion that are decoded with it, so that it does not begin a text."""


class TokenText:
    """Decodes tokens as the continuation of the tokens before them.

    A completion on its own would begin a text, and tokenizers of Llama 2's kind drop the first space of a text.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[int] = ()) -> None:
        """Use a tokenizer.

        Args:
            tokenizer: A transformers tokenizer.
            stop: Token ids that end a completion.
        """
        self.tokenizer = tokenizer
        self._ends = set(stop)
        self._fillers = {tokenizer.pad_token_id, tokenizer.bos_token_id} - {None}

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token; a text of more bytes than `n * longest` has more than `n` tokens."""
        # a byte that is no text is shown as a character of three
        return max(3, *(len(token.encode("utf-8", "surrogatepass")) for token in self.tokenizer.get_vocab()))

    def ends(self, token: int) -> bool:
        """Return whether a token ends a completion."""
        return token in self._ends

    def full_text(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text of all tokens, special ones included.

        Args:
            before: Tokens before them: the prompt, and what follows it.
            tokens: Tokens.
        """
        tail = list(before[-TAIL:])
        head, text = self._decode(tail), self._decode([*tail, *tokens])
        # they differ before the end of `head` if `tokens` complete a character
        pairs = enumerate(zip(head, text, strict=False))
        return text[next((at for at, (a, b) in pairs if a != b), len(head)) :]

    def judged(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text that is judged: without the stop token at the end, and without pad and bos tokens.

        Other special tokens stay, because in many models <think> and <answer> are such tokens.
        """
        end = len(tokens)
        while end and (tokens[end - 1] in self._ends or tokens[end - 1] in self._fillers):
            end -= 1
        return self.full_text(before, [token for token in tokens[:end] if token not in self._fillers])

    def _decode(self, tokens: list[int]) -> str:
        exact = {"clean_up_tokenization_spaces": False, "spaces_between_special_tokens": False}
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, **exact)) if tokens else ""


TEXTS = 1024
"""Texts that are encoded in one call."""

UNUSED_LISTS = ("return_attention_mask", "return_token_type_ids")
"""Lists that would take a sixth of the time of the tokens."""


def encoded(tokenizer: Any, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the tokens of each text, without any that the tokenizer puts around a text."""
    for start in range(0, len(texts), TEXTS):
        yield from _encoded(tokenizer, list(texts[start : start + TEXTS]), False)


def tokens_of_prompts(tokenizer: Any, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the tokens of plain prompts, with those that the tokenizer puts before a text, but none after it.

    Some tokenizers end every text with an end or separator token, so the policy would see a prompt that has ended.

    Args:
        tokenizer: A transformers tokenizer.
        texts: The prompts, without a chat template.
    """
    (probe,), (around,) = _encoded(tokenizer, ["a"], False), _encoded(tokenizer, ["a"], True)
    for start in range(len(around)):
        if around[start : start + len(probe)] == probe:
            yield from ([*around[:start], *tokens] for tokens in encoded(tokenizer, texts))
            return
    for text in texts:
        (ids,) = _encoded(tokenizer, [text], True)  # the tokens around a text change those of the text
        while ids and ids[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id):
            ids.pop()
        yield ids


def _encoded(tokenizer: Any, texts: list[str], special: bool) -> list[list[int]]:
    only = dict.fromkeys(UNUSED_LISTS, False) if getattr(tokenizer, "is_fast", False) else {}
    with _all_cores() if len(texts) > 1 else nullcontext():  # one text uses one core, maybe in one of several threads
        return [list(tokens) for tokens in tokenizer(texts, add_special_tokens=special, **only)["input_ids"]]


@contextmanager
def _all_cores() -> Iterator[None]:
    """Let the tokenizer use all cores, which core/packages.py forbids for the rest of a run."""
    name, before = "TOKENIZERS_PARALLELISM", os.environ.get("TOKENIZERS_PARALLELISM", "false")
    os.environ[name] = "true"
    try:
        yield
    finally:
        os.environ[name] = before
