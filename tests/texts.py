"""Completions as text: a tokenizer of bytes, groups whose rollouts decode to given texts, programs in a sandbox."""

import time

import numpy as np

from scalerl.core.types import Group, Rollout, Visit
from scalerl.training.rewards.sandbox.box import Box
from scalerl.training.rewards.sandbox.guest.plain import loads


class Tokenizer:
    chat_template = None

    def __call__(self, text, **options):
        return {"input_ids": list(text.encode()) if isinstance(text, str) else [list(one.encode()) for one in text]}


def decode(prompt, tokens):
    return bytes(tokens).decode()


def group(prompt, *texts, truncated=()):
    """Return a group of a prompt; `truncated` are the numbers of the rollouts that were cut off."""
    rollouts = (rollout(list(text.encode()), truncated=n in truncated) for n, text in enumerate(texts))
    return Group(Visit(prompt, 0, 0), tuple(rollouts), 0)


def report_of(command, program, data=b""):
    """Run a program in a fresh sandbox that a command starts; return its report."""
    box, deadline = Box(command), time.monotonic() + 60
    try:
        box.begin("stdin", deadline, program=program)
        box.send(b"I", data, deadline)
        return loads(box.receive(deadline)[1])
    finally:
        box.close()


def rollout(tokens, sampled=None, versions=0, truncated=False):
    """Return a rollout of these tokens, with log-probabilities of -0.1, -0.2 and so on; by default all are sampled."""
    tokens = np.asarray(tokens, np.int32)
    sampled = np.ones(len(tokens), np.bool_) if sampled is None else np.asarray(sampled)
    logps = -0.1 * np.arange(1, len(tokens) + 1, dtype=np.float32)
    versions = np.broadcast_to(np.asarray(versions, np.int32), tokens.shape).copy()
    return Rollout(tokens, logps, versions, sampled, truncated, not sampled.all())
