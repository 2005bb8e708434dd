"""Completions as text: a tokenizer of bytes, groups whose rollouts decode to given texts, programs in a sandbox."""

import time

import numpy as np

from scalerl.tasks.sandbox.box import Box
from scalerl.tasks.sandbox.guest.plain import loads
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


def report_of(command, program, data=b""):
    """Run a program in a fresh sandbox that a command starts; return its report."""
    box, deadline = Box(command), time.monotonic() + 60
    try:
        box.begin("stdin", deadline, program=program)
        box.send(b"I", data, deadline)
        return loads(box.receive(deadline)[1])
    finally:
        box.close()
