"""Checks before a run: tests must be readable, and verifiers must accept their reference answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from scalerl.config import RunConfig
from scalerl.config.base import replace as config_replace
from scalerl.config.data import TaskData
from scalerl.core.errors import ConfigError
from scalerl.tasks.code.tests import BadTests, read_tests
from scalerl.types import Prompt

NAMED = 20
"""Maximum number of rows named in a message."""
DOLLAR = re.compile(r"(?<!\\)\$")
"""The delimiter of a formula; an escaped dollar sign is currency."""
WIDTH = 256
"""Number of references judged at a time."""


def with_tests(prompts: Sequence[Prompt], column: str) -> list[Prompt]:
    """Return prompts with their tests in the column "tests", and check that the tests can be read.

    Args:
        prompts: Prompts with the columns of their rows.
        column: Column with the tests. A prompt without it keeps its columns, which may be those of a known data set.

    Raises:
        ConfigError: Tests cannot be read; the message has file, line and field.
    """
    found, problems = [], []
    for prompt in prompts:
        columns = prompt.columns
        if column != "tests" and columns.get(column) is not None:
            prompt = replace(prompt, columns={**columns, "tests": columns[column]})
        try:
            read_tests(prompt.columns)
        except BadTests as error:
            problems.append(f"{prompt.where}: {error}")
        found.append(prompt)
    if problems:
        raise ConfigError("\n".join([*problems[:NAMED], *_more(len(problems))]))
    return found


def reference_notes(config: RunConfig, prompts: Sequence[Prompt]) -> list[str]:
    """Return a note for each task whose references fail their verifier, with file and line of each.

    A mathematical reference must be equal to itself; otherwise no answer to the prompt can pass. A row of the verifier
    `code` may have a column `solution` with a program that must pass the tests.

    Args:
        config: Configuration of the run, with the verifier of each task.
        prompts: Training and held-out prompts of all tasks.

    Raises:
        ConfigError: The share of failing references of a task exceeds `scoring.failing_references`.
    """
    notes, allowed = [], config.scoring.failing_references
    for task in config.data:
        judged = getattr(task, "reward", None) is None and task.verifier in REFERENCES
        if not judged:
            continue
        answers = [(p, REFERENCES[task.verifier](p)) for p in prompts if p.task == task.curve and p.where]
        failed = _failing(config, task, [(p, text) for p, text in answers if text is not None])
        if not failed:
            continue
        named = "; ".join([*failed[:NAMED], *_more(len(failed))])
        found = (
            f"{task.curve}: {len(failed)} of {len(answers)} references fail their own verifier, so no completion of "
            "these rows can pass"
        )
        if len(failed) > allowed * len(answers):
            raise ConfigError(
                f"{found}; allowed: at most {allowed:.0%} of them. Correct or remove these rows, choose another "
                f"data.task or a data.reward, or raise scoring.failing_references: {named}"
            )
        notes.append(f"{found}: {named}")
    return notes


def _more(count: int) -> list[str]:
    return [f"and {count - NAMED} more"] if count > NAMED else []


def _failing(config: RunConfig, task: TaskData, answers: Sequence[tuple[Prompt, str]]) -> list[str]:
    from scalerl.tasks.scoring import ProcessScorer
    from scalerl.tasks.verifiers import VERIFIERS

    if not answers:
        return []
    workers = config.scoring.workers or os.cpu_count() or 1  # nothing else runs yet
    scoring = config_replace(config.scoring, workers=workers)
    scorer = ProcessScorer(task.verifier, VERIFIERS[task.verifier], scoring)
    failed = []
    try:
        for start in range(0, len(answers), WIDTH):
            some = answers[start : start + WIDTH]
            under_way = [(prompt, scorer.submit(prompt, [text])) for prompt, text in some]
            for prompt, pending in under_way:
                (score,) = pending.finish(pending.futures)
                if not score.passed:
                    failed.append(f"{prompt.where} ({score.reason})")
    finally:
        scorer.close()
    return failed


def _math(prompt: Prompt) -> str | None:
    """Return a completion with the reference in a box; None for an integer, which needs no check."""
    answer = prompt.answer
    if re.fullmatch(r"\s*-?[0-9]{1,18}\s*", answer):
        return None
    return answer if "\\boxed" in answer else f"\\boxed{{{DOLLAR.sub('', answer)}}}"


def _code(prompt: Prompt) -> str | None:
    solution: Any = prompt.columns.get("solution")
    if not isinstance(solution, str) or not solution.strip():
        return None
    return solution if "```" in solution else f"```python\n{solution}\n```"


REFERENCES: dict[str, Callable[[Prompt], str | None]] = {"math": _math, "code": _code}
"""Functions by verifier: prompt -> completion with its reference, or None if there is nothing to check."""
