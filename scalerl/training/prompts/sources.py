"""Prompts that are not read from files: user-defined tasks, environments of `verifiers`, tasks of reasoning-gym.

Each function returns distinct rows with the columns that the scorer needs, and notes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.packages import check_installed
from scalerl.core.plugins import load_function
from scalerl.core.types import AGENT, PROGRAMS, TURNS
from scalerl.training.config.data import AgentTask, CustomTask, EnvironmentTask, PromptFile, ReasoningGymTask
from scalerl.training.prompts.files import read_objects
from scalerl.training.prompts.layouts import PromptRow, prompt_of
from scalerl.training.rewards import custom, tasksets, tools, verifiers_environments
from scalerl.training.rewards.pool import Step, in_this_process
from scalerl.training.rewards.reasoning_gym import make_entries
from scalerl.training.rewards.turns import is_chat
from scalerl.training.rewards.verifiers_environments import load_environment

ENTRIES_PER_PROMPT = 4
"""Largest number of entries created per required prompt. With fewer distinct ones, the run does not start."""


def gym_rows(task: ReasoningGymTask, held_out: int, step: Step) -> tuple[list[PromptRow], list[str]]:
    """Return `task.prompts` + `held_out` rows with distinct questions.

    Raises:
        ConfigError: reasoning-gym is missing, has no such data set or parameter, or makes too few distinct questions.
    """
    count = task.prompts + held_out
    rows = []
    for number, entry in make_entries(task.dataset, task.seed, task.parameters, ENTRIES_PER_PROMPT * count, count):
        columns = {name: getattr(task, name) for name in ("dataset", "parameters", "pass_score")} | {"entry": entry}
        answer = "" if entry["answer"] is None else str(entry["answer"])
        rows.append(PromptRow(entry["question"], answer, columns, f"{task.dataset} entry {number}"))
    if len(rows) < count:
        raise ConfigError(
            f"data.prompts: {task.dataset} with the parameters {task.parameters!r} generates only about {len(rows)} "
            f"distinct prompts; allowed: parameters that generate at least {count} (data.prompts plus held-out "
            "prompts)"
        )
    return rows, []


def custom_rows(task: CustomTask, held_out: int, step: Step = in_this_process) -> tuple[list[PromptRow], list[str]]:
    """Return `task.prompts` + `held_out` rows with distinct prompts; raises as `rows` in training/rewards/custom.py."""
    rows = []
    plain_rows, replies = custom.rows(task, task.prompts + held_out, step)
    shared: dict[str, Any] = {"function": task.function, "params": task.params, "pass_score": task.pass_score}
    if replies:
        schemas, programs = step(f"{task.function}.tools", tools.schemas, shared)
        shared |= {TURNS: task.limits, "tools": schemas, PROGRAMS: programs}
    for number, row in enumerate(plain_rows):
        columns = {**shared, "row": row}
        source = f"{task.function} row {number}"
        prompt = prompt_of(row["prompt"], "prompt", row, source)
        rows.append(PromptRow(prompt, str(row.get("answer", "")), columns, source))
    return rows, []


SHOWN_CHARACTERS = 300
"""Characters of a row without a prompt that lists of rollouts show."""


def agent_rows(task: AgentTask, held_out: int, step: Step = in_this_process) -> tuple[list[PromptRow], list[str]]:
    """Return the distinct rows of an agent's file.

    Raises:
        ConfigError: The file cannot be read, has no rows, or has a row that JSON cannot hold; the program or a package
            is missing.
    """
    check_installed(("starlette", "uvicorn"))
    if task.function:
        step(task.function, _load, task.function)
    elif shutil.which(task.command[0]) is None:
        raise ConfigError(
            f"data.command: there is no program {task.command[0]!r} here; allowed: a program on the PATH, or its path"
        )
    file_settings = {name: getattr(task, name) for name in ("path", "subset", "split", "revision")}
    rows = list[PromptRow]()
    for source, values in read_objects(PromptFile(task="arithmetic", **file_settings)):
        try:
            text = json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{source}: the program gets rows as JSON, which cannot hold this one ({error})"
            ) from None
        prompt: Any = values.get("prompt")
        shown = prompt if is_chat(prompt) or (isinstance(prompt, str) and prompt) else text[:SHOWN_CHARACTERS]
        columns = {AGENT: task.settings, "row": values, "pass_reward": task.pass_reward}
        rows.append(PromptRow(shown, text, columns, source))
    return _distinct(rows, task.path, f"{task.path}: the file has no rows; allowed: one JSON object per line")


def _load(function: str) -> None:
    load_function(function, "data.function")


def environment_rows(
    task: EnvironmentTask, held_out: int, step: Step = in_this_process
) -> tuple[list[PromptRow], list[str]]:
    """Return the distinct rows of an environment's data set, with the columns that its rubric needs.

    Raises:
        ConfigError: The environment cannot be loaded, or has no data set of prompts.
    """
    if tasksets.installed():
        return step(f"{task.environment}.load", _taskset_rows, task, held_out)  # type: ignore[no-any-return]
    return step(f"{task.environment}.load_environment", _environment_rows, task)  # type: ignore[no-any-return]


def _taskset_rows(task: EnvironmentTask, held_out: int) -> tuple[list[PromptRow], list[str]]:
    env = tasksets.load(task.environment, task.arguments)
    served = None if tasksets.answered_once(env) else _episodes(task, len(tasksets.roles(env)))
    rows: list[PromptRow] = []
    for number, values in enumerate(tasksets.rows(task, held_out)):
        source = f"{task.environment} task {number}"
        data = {name: value for name, value in values["task"].items() if name != "idx"}
        text, answer = json.dumps(data, sort_keys=True, default=str), data.get("answer")
        columns = {"environment": task.environment, "arguments": task.arguments, "row": values["task"]}
        reference = answer if isinstance(answer, str) and answer else text
        if served is not None:  # an episode may ask anything, and its first message may come from a program
            columns = {AGENT: served, "row": values, "pass_reward": task.pass_reward}
            values, reference = {**values, "prompt": values["prompt"] or text[:SHOWN_CHARACTERS]}, text
        rows.append(PromptRow(prompt_of(values["prompt"], "prompt", values, source), reference, columns, source))
    none = f"data.environment: the taskset {task.environment!r} has no tasks; choose another, or other arguments"
    return _distinct(rows, task.environment, none, "tasks")


def _episodes(task: EnvironmentTask, agents: int) -> dict[str, Any]:
    """Return the settings of rollouts that are episodes; the number of turns is a limit of each of their agents."""
    check_installed(("starlette", "uvicorn"))
    if shutil.which("uv") is None and not tasksets.has_harness(task.environment):
        raise ConfigError(
            f"data.environment: an episode of {task.environment!r} has turns, tools or programs, which verifiers "
            "starts with uv; install it (pip install uv)"
        )
    return task.served(
        function=tasksets.EPISODE, imported_once=True, turns=task.turns * agents, environment=task.variables
    )


def _environment_rows(task: EnvironmentTask) -> tuple[list[PromptRow], list[str]]:
    try:
        loaded = load_environment(task.environment, task.arguments)
        dataset = loaded.get_dataset()
    except ValueError as error:
        raise ConfigError(
            f"data.environment: {task.environment!r} has no data set of prompts ({error}); choose another one"
        ) from None
    replies = loaded.max_turns != 1 or getattr(loaded, "tool_defs", None)  # the policy must see the tools
    several = verifiers_environments.several_turns(task, loaded) if replies else {}
    rows = [
        _environment_row(task, dict(values), several, f"{task.environment} row {number}")
        for number, values in enumerate(dataset)
    ]
    none = f"data.environment: the data set of {task.environment!r} has no rows; choose another, or other arguments"
    return _distinct(rows, task.environment, none)


def _distinct(
    rows: Sequence[PromptRow], source: str, none: str, things: str = "rows"
) -> tuple[list[PromptRow], list[str]]:
    """Return the first row of each id, and a note about the others; `none` is the error if there is no row."""
    first: dict[str, PromptRow] = {}
    for row in rows:
        first.setdefault(row.id, row)
    if not first:
        raise ConfigError(none)
    dropped = len(rows) - len(first)
    return list(first.values()), [f"dropped {dropped} duplicate {things} of {source}"] if dropped else []


def _environment_row(task: EnvironmentTask, values: dict[str, Any], several: dict[str, Any], source: str) -> PromptRow:
    prompt = prompt_of(values.get("prompt"), "prompt", values, source)
    answer = values.get("answer")
    row = {name: value for name, value in values.items() if name != "prompt"}
    columns = {"environment": task.environment, "arguments": task.arguments, "row": row}
    if several:
        columns |= {**several, "row": {**row, "prompt": prompt}}
    # rows without an answer are distinguished by their other columns, which the rubric uses
    reference = "" if answer is None else str(answer)
    return PromptRow(prompt, reference or json.dumps(row, sort_keys=True, default=str), columns, source)
