"""Completions as text: a tokenizer of bytes, and groups whose rollouts decode to given texts."""

import numpy as np

from scalerl.types import Group, Rollout, Visit


class Tokenizer:
    chat_template = None

    def __call__(self, text):
        return {"input_ids": list(text.encode())}


def decode(tokens):
    return [bytes(ids).decode() for ids in tokens]


def group(prompt, *texts, truncated=()):
    """Return a group of a prompt; `truncated` are the numbers of the rollouts that were cut off."""
    rollouts = []
    for number, text in enumerate(texts):
        tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        zeros, sampled = np.zeros(len(tokens), np.float32), np.ones(len(tokens), np.bool_)
        rollouts.append(Rollout(tokens, zeros, zeros.astype(np.int32), sampled, number in truncated, False))
    return Group(Visit(prompt, 0, 0), tuple(rollouts), 0)
