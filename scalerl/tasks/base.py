"""What a verifier is, and the rewards it gives: the contract between tasks and scoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scalerl.types import Prompt, Score

CORRECT, INCORRECT = 1.0, -1.0
"""Rewards of a verified completion (paper appendix A.3)."""


class Verifier(NamedTuple):
    """How completions of a task are judged."""

    verify: Callable[[Prompt, str], bool]
    """(prompt, completion text) -> passed. The prompt carries the reference answer and the row's columns."""
    killable: bool = False
    """Whether it may hang or crash, and so runs in processes that can be killed; else in threads of the trainer."""


def binary(passed: bool) -> Score:
    """Return +1 for a pass and -1 for a failure."""
    return Score(CORRECT if passed else INCORRECT, passed)
