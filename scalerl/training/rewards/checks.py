"""Checks before a run: readable tests, references that pass, reward functions that work, questions that do not pass."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import load_function
from scalerl.core.types import AGENT, PROGRAMS, TURNS, Prompt
from scalerl.training.config.base import replace as config_replace
from scalerl.training.config.data import PromptFile, RewardFunction, TaskData
from scalerl.training.config.placement import Sandbox
from scalerl.training.config.run import Scoring
from scalerl.training.rewards.agents.harness import uncontained
from scalerl.training.rewards.answers import ANSWER_FORM
from scalerl.training.rewards.code_tests import BadTests, imports_of, read_tests
from scalerl.training.rewards.repetition import question
from scalerl.training.rewards.sandbox.detect import offer
from scalerl.training.rewards.scoring import FunctionScorer, Scorer, judge_all, verifier_scorer
from scalerl.training.rewards.user_rewards import Failures
from scalerl.training.rewards.verifiers import VERIFIERS

CHECKED = 2_000
"""Largest number of references of a task that are checked; of more, those with the smallest ids, which are hashes."""
NAMED_ROWS = 20
"""Maximum number of rows named in a message."""
DOLLAR = re.compile(r"(?<!\\)\$")
"""The delimiter of a formula; an escaped dollar sign is currency."""


def check_tests(prompts: Sequence[Prompt]) -> None:
    """Check that the tests of prompts can be read.

    Raises:
        ConfigError: Tests cannot be read; the message has file, line and field.
    """
    problems = []
    for prompt in prompts:
        try:
            read_tests(prompt.columns)
        except BadTests as error:
            problems.append(f"{prompt.where}: {error}")
    if problems:
        raise ConfigError("\n".join([*problems[:NAMED_ROWS], *_more(len(problems))]))


def reference_notes(tasks: Sequence[TaskData], scoring: Scoring, prompts: Sequence[Prompt]) -> list[str]:
    """Return a note for each task whose references fail their verifier, with file and line of each; see `CHECKED`.

    A mathematical reference must be equal to itself; otherwise no answer to the prompt can pass. A row of the verifier
    `code` may have a column `solution` with a program that must pass the tests.

    Args:
        tasks: The tasks of the run, with the verifier of each.
        scoring: Settings of the verifiers.
        prompts: Training and held-out prompts of all tasks.

    Raises:
        ConfigError: The share of failing references of a task exceeds `scoring.failing_references`.
    """
    notes, allowed = [], scoring.failing_references
    for task in tasks:
        if getattr(task, "reward", None) is not None or task.verifier not in REFERENCES:
            continue
        task_prompts = [prompt for prompt in prompts if prompt.task == task.curve and prompt.where]
        answers = [(p, text) for p in task_prompts if (text := REFERENCES[task.verifier](p)) is not None]
        checked = answers
        if len(answers) > CHECKED:
            last = sorted(prompt.id for prompt, _ in answers)[CHECKED - 1]
            checked = [(prompt, text) for prompt, text in answers if prompt.id <= last]
        failed = _failing(scoring, task, checked)
        if not failed:
            continue
        named = "; ".join([*failed[:NAMED_ROWS], *_more(len(failed))])
        counts = f"{len(failed)} of {len(task_prompts)} references fail"
        if checked is not answers:
            counts = f"{len(failed)} of {len(checked)} references, a sample of {len(answers)}, fail"
        problem = f"{task.curve}: {counts} their own verifier, so no completion of these rows can pass"
        if len(failed) * (len(answers) / len(checked)) > allowed * len(task_prompts):
            raise ConfigError(
                f"{problem}; allowed: at most {allowed:.0%} of them. Correct or remove these rows, choose another "
                f"data.task or a data.reward, or raise scoring.failing_references: {named}"
            )
        notes.append(f"{problem}: {named}")
    return notes


def _more(count: int) -> list[str]:
    return [f"and {count - NAMED_ROWS} more"] if count > NAMED_ROWS else []


def _failing(scoring: Scoring, task: TaskData, answers: Sequence[tuple[Prompt, str]]) -> list[str]:
    workers = scoring.processes(os.cpu_count() or 1)  # nothing else runs yet
    judged = judge_all(verifier_scorer(task.verifier, config_replace(scoring, workers=workers)), answers)
    return [f"{prompt.where} ({score.reason})" for prompt, score in judged if not score.passed]


def _math(prompt: Prompt) -> str | None:
    """Return a completion with the reference in a box; None for an integer, which needs no check."""
    answer = prompt.answer
    if re.fullmatch(r"\s*-?[0-9]{1,18}\s*", answer):
        return None
    bare = DOLLAR.sub("", answer)
    form = WRITTEN_FORMS.get(str(prompt.columns.get(ANSWER_FORM)))
    return form.format(bare) if form else answer if "\\boxed" in answer else f"\\boxed{{{bare}}}"


WRITTEN_FORMS = {"tag": "<answer>{}</answer>", "hashes": "#### {}", "phrase": "The answer is {}"}
"""A reference in the forms other than a box."""


def _code(prompt: Prompt) -> str | None:
    solution: Any = prompt.columns.get("solution")
    if not isinstance(solution, str) or not solution.strip():
        return None
    return solution if "```" in solution else f"```python\n{solution}\n```"


REFERENCES: dict[str, Callable[[Prompt], str | None]] = {"math": _math, "code": _code}
"""Functions by verifier: prompt -> completion with its reference, or None if there is nothing to check."""


def sandbox_notes(tasks: Sequence[TaskData], sandbox: Sandbox, prompts: Sequence[Prompt]) -> list[str]:
    """Return one line about the sandbox of a run that executes programs of the model; an empty list for other runs.

    Raises:
        ConfigError: The run needs a sandbox, and this machine has none, or tests import what it lacks.
    """
    verified = [task.curve for task in tasks if task.verifier == "code" and getattr(task, "reward", None) is None]
    if not verified and not any(prompt.columns.get(PROGRAMS) for prompt in prompts if TURNS in prompt.columns):
        return []
    return [sandbox_line(sandbox, [prompt for prompt in prompts if prompt.task in verified])]


def containment_notes(prompts: Sequence[Prompt]) -> list[str]:
    """Return a line on what programs of agents may leave on this machine; an empty list if nothing."""
    if not any(AGENT in prompt.columns for prompt in prompts) or not (problem := uncontained()):
        return []
    return [
        f"this machine has no namespace of processes for programs of agents ({problem}): what a program starts is "
        "killed when it ends, but a program that kills its parent process, the launcher, leaves its processes running. "
        "Allow user namespaces (user.max_user_namespaces; in a container, its security options) to rule that out"
    ]


def sandbox_line(settings: Sandbox, prompts: Sequence[Prompt]) -> str:
    """Return the line about the sandbox in which programs run, after a check of what the tests of prompts import.

    Args:
        settings: Settings of the sandbox.
        prompts: Prompts whose tests can be read.

    Raises:
        ConfigError: This machine has no sandbox, or tests import a module that it lacks.
    """
    users: dict[str, list[str]] = {}
    for prompt in prompts:
        for name in imports_of(read_tests(prompt.columns)):
            users.setdefault(name, []).append(prompt.where)
    rows = {
        name: f"{places[0]}: {name} is imported in the tests of {len(places)} rows" for name, places in users.items()
    }
    return offer(settings, rows).line


REPEATED = 64
"""Number of prompts of a task whose text is scored as a completion."""
REPEATED_REWARDS = 8
"""The same for a reward function, which may be slow or cost money."""


def repetition_notes(tasks: Sequence[TaskData], scoring: Scoring, prompts: Sequence[Prompt]) -> list[str]:
    """Return a note for each task whose verifier passes the text of a prompt, or an empty text, as a completion.

    Args:
        tasks: The tasks of the run, with the verifier of each.
        scoring: Settings of the verifiers.
        prompts: Prompts of all tasks; at most 64 of each are tried. Those of environments are left out.
    """
    notes = []
    for task in tasks:
        if getattr(task, "reward", None) is None and task.verifier in VERIFIERS:
            tried = _sample(task, prompts, REPEATED)
            workers = scoring.processes(min(8, os.cpu_count() or 1))
            scorer = verifier_scorer(task.verifier, config_replace(scoring, workers=workers))
            try:
                notes += _repetitions(task, scorer, tried)
            finally:
                scorer.close()
    return notes


def _sample(task: TaskData, prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Return at most `count` prompts of a task at equal distances, without those of environments."""
    candidates = [prompt for prompt in prompts if prompt.task == task.curve and TURNS not in prompt.columns]
    return candidates[:: -(-len(candidates) // count)] if candidates else []


def _repetitions(task: TaskData, scorer: Scorer, prompts: Sequence[Prompt]) -> list[str]:
    scorer.failures = Failures(task.curve, limit=1.0)  # a reward may fail on such texts
    scored = [scorer.submit(prompt, [question(prompt), ""]) for prompt in prompts]
    passed = [[score.passed for score in pending.finish(pending.futures)] for pending in scored]
    counts = {
        "the prompt's own text": sum(text for text, _ in passed),
        "an empty text": sum(empty for _, empty in passed),
    }
    findings = [f"{text} passes as the answer to {n} of {len(prompts)} prompts" for text, n in counts.items() if n]
    if not findings:
        return []
    return [f"{task.curve}: {' and '.join(findings)}; the reward may teach the policy to repeat the question"]


MADE_UP = ("I do not know.", "The answer is 4.")
"""Completions for which any reward function must return a number."""


def check_rewards(
    tasks: Sequence[TaskData], scoring: Scoring, prompts: Sequence[Prompt], *, repetitions: bool = True
) -> list[str]:
    """Call the reward function of each task that has one on made-up completions of the task's first prompt.

    Args:
        tasks: The tasks of the run.
        scoring: Settings of the verifiers and reward functions.
        prompts: Prompts of all tasks.
        repetitions: Whether to score the prompts' own texts too, at most 8 of each task.

    Returns:
        A note for each task whose function passes a prompt's own text or an empty text, as in `repetition_notes`.

    Raises:
        ConfigError: A function takes other arguments, raises, exits, hangs, or does not return numbers.
    """
    notes = []
    for task in tasks:
        tried = _sample(task, prompts, REPEATED_REWARDS)
        if isinstance(task, PromptFile) and task.reward is not None and tried:
            notes += check_reward(task.reward, tried[0], scoring, task, tried if repetitions else ())
    return notes


def check_reward(
    reward: RewardFunction,
    prompt: Prompt,
    settings: Scoring,
    task: PromptFile | None = None,
    repeated: Sequence[Prompt] = (),
) -> list[str]:
    """Call one reward function on made-up completions of a prompt, in a separate process.

    Args:
        reward: The function.
        prompt: A prompt of its task.
        settings: Scoring settings of the run.
        task: Its task, which says what passes.
        repeated: Prompts of the task whose own texts are scored too, for the notes.

    Returns:
        See `check_rewards`.

    Raises:
        ConfigError: See `check_rewards`.
    """
    load_function(reward.function, "data.reward")
    least = task.pass_reward if task else 1.0
    scorer = FunctionScorer(reward.function, least, config_replace(settings, workers=1), params=reward.params)
    try:
        pending = scorer.submit(prompt, MADE_UP)
        problems = [score.reason for score in pending.finish(pending.futures) if score.reason]
        if not problems:
            return _repetitions(task, scorer, repeated) if task and repeated else []
    finally:
        scorer.close()
    raise ConfigError(
        f"data.reward: on {len(MADE_UP)} made-up completions of {prompt.where or 'the first prompt'}, "
        f"{problems[0]}; columns of the rows: {', '.join(sorted({*prompt.columns} - {'prompt'})) or 'none'}"
    )
