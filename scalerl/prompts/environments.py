"""Prompts of single-turn environments of the `verifiers` package: the rows of their data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scalerl.config.data import EnvironmentTask
from scalerl.core.errors import ConfigError
from scalerl.prompts.layouts import Row, identity
from scalerl.tasks.environments import load


def rows(task: EnvironmentTask, held_out: int) -> tuple[list[Row], list[str]]:
    """Return the distinct rows of an environment's data set, with the columns that its rubric needs.

    Raises:
        ConfigError: The environment cannot be loaded, or has no data set of prompts.
    """
    try:
        found = load(task.environment, task.arguments).get_dataset()
    except ValueError as error:
        raise ConfigError(
            f"data.environment: {task.environment!r} has no data set of prompts ({error}); choose another one"
        ) from None
    unique: dict[str, Row] = {}
    for number, values in enumerate(found):
        row = _row(task, dict(values), f"{task.environment} row {number}")
        unique.setdefault(identity(row), row)
    if not unique:
        raise ConfigError(
            f"data.environment: the data set of {task.environment!r} has no rows; choose another, or other arguments"
        )
    dropped = len(found) - len(unique)
    return list(unique.values()), [f"dropped {dropped} duplicate rows of {task.environment}"] if dropped else []


def _row(task: EnvironmentTask, values: dict[str, Any], where: str) -> Row:
    prompt = values.get("prompt")
    if isinstance(prompt, list):
        prompt = [_message(message, where) for message in prompt]
    if not prompt or not isinstance(prompt, str | list):
        raise ConfigError(f"{where}: 'prompt' is {prompt!r:.80}; allowed: text or a list of chat messages")
    answer = values.get("answer")
    own = {name: value for name, value in values.items() if name != "prompt"}
    columns = {"environment": task.environment, "arguments": task.arguments, "row": own}
    # rows without an answer are distinguished by their other columns, which the rubric uses
    reference = "" if answer is None else str(answer)
    return Row(prompt, reference or json.dumps(own, sort_keys=True, default=str), columns, where)


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise ConfigError(f"{where}: a message of 'prompt' is {message!r:.80}; allowed: role and content, both text")
    return {"role": str(message["role"]), "content": message["content"]}
