"""The contract between tasks and scoring: verifiers, their verdicts, and the rewards of verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from scalerl.core.types import Prompt, Score
from scalerl.training.config.run import Scoring

CORRECT, INCORRECT = 1.0, -1.0
"""Rewards of a verified completion (paper appendix A.3)."""


THINK, END_THINK = "<think>", "</think>"


MARK = r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</?s>|<(?:pad|unk|bos|eos|(?:start|end)_of_turn)>|\[/?INST\])"
"""A token of a chat template: of ChatML, Llama, DeepSeek, Gemma, Mistral and others."""
LONGEST_MARK = 48
"""Characters of the longest token that `without_marks` removes."""


LONGEST_TEXT = 1 << 20
"""Characters at the end of a text in which the answer is looked for, so that no answer takes seconds."""


def judged_text(completion: str) -> str:
    """Return the text that a verifier judges: that after the last `</think>`, or the whole text if there is none.

    Thinking that does not end is no answer. Tokens of a chat template at the start and end of the text, which a model
    may write around its answer, are left out. Of a text over `LONGEST_TEXT`, its end is judged.
    """
    return without_marks(completion.rpartition(END_THINK)[2].partition(THINK)[0], MARK)[-LONGEST_TEXT:]


def without_marks(text: str, mark: str) -> str:
    """Return a text without the marks at its start and end, and without the white space outside of them.

    Args:
        text: Any text; one without such marks is returned unchanged.
        mark: Regular expression of a mark.
    """
    first, last, space = re.compile(mark), re.compile(rf"(?:{mark})\Z"), re.compile(r"\s*")
    start, end = 0, len(text)  # positions, because a copy for each mark would take hours for millions of them
    while match := last.search(text, max(0, (ending := _stripped(text, end)) - LONGEST_MARK), ending):
        end = match.start()
    while match := first.match(text, _skipped(space, text, start, end), end):
        start = match.end()
    return text[start:end]


def _stripped(text: str, end: int) -> int:
    """Return the end of a text without the white space before its position `end`."""
    while end and text[end - 1].isspace():
        end -= 1
    return end


def _skipped(space: re.Pattern[str], text: str, start: int, end: int) -> int:
    """Return the position behind the white space at a position."""
    match = space.match(text, start, end)
    return match.end() if match else start


def after_thinking(completion: str) -> str | None:
    """Return the text after the last `</think>`, stripped; None if the thinking does not end."""
    return judged_text(completion).strip() if END_THINK in completion else None


def in_braces(text: str) -> str | None:
    r"""Return the content of the braces with which a text begins: "{\frac{1}{2}} ..." -> "\frac{1}{2}"."""
    depth = 0
    for end, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if not depth:
            return text[1:end]
    return None


class Verdict(NamedTuple):
    """A verifier's judgment of one completion.

    Example: Verdict(passed=False, score=0.0, reason="expected 7, got 3")
    """

    passed: bool
    """Whether the completion counts as passed in the pass rate, the curriculum and the curve."""
    score: float
    """Score in [0, 1]; 1 or 0 from a verifier that only decides right or wrong."""
    reason: str
    """Explanation in one line, for readers of rollouts."""
    answer: str | None = None
    """The answer that was read in the completion; None: the text after the thinking."""
    form: str = ""
    """Form in which the answer was found, of `FORMS` in answers.py; empty: the verifier looks for none."""
    text_only: bool = False
    """Whether nothing but a comparison as text could judge the answer."""


class Verifier(NamedTuple):
    """A verifier with the way in which it is called."""

    verify: Callable[[Prompt, str], Verdict]
    """(prompt, completion text) -> verdict. The prompt carries the reference answer and the row's columns."""
    killable: bool = False
    """Whether it may hang or crash. It then runs in processes that can be killed, otherwise in trainer threads."""
    prepare: Callable[[Scoring], None] | None = None
    """Function called once before the first completion, in each process."""
    limit_s: Callable[[Scoring], float] = lambda settings: settings.timeout_s
    """Time limit in seconds for one completion in such a process."""
    spared_cores: int = 1
    """Cores left to the trainer by default; 0 if the verifier's processes mostly wait for others."""
    threads: Callable[[Scoring], int] | None = None
    """Completions that it judges at the same time in threads, if it waits for others; None: one thread per prompt."""
    modules: tuple[str, ...] = ()
    """Modules that it imports and the base install lacks."""


def verdict(passed: bool, reason: str) -> Verdict:
    """Return the verdict of a verifier that only decides right or wrong."""
    return Verdict(passed, float(passed), reason)


def reward(verdict: Verdict) -> Score:
    """Return the score of a completion: its reward grows linearly from -1 (score 0) to +1 (score 1)."""
    value = INCORRECT + (CORRECT - INCORRECT) * verdict.score
    return Score(value, verdict.passed, verdict.reason, form=verdict.form, text_only=verdict.text_only)
