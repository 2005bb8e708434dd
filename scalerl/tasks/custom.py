"""User-defined tasks: a class with `rows(count)` and `score(row, completion)`, given by its import path.

A prompt's columns contain the class and the row: {"function": "tasks:Sums", "params": {...}, "row": {...}}.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Any

from scalerl.config.data import CustomTask
from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError, call, describe, load_function, number
from scalerl.tasks.base import Verdict
from scalerl.types import Prompt

ALLOWED = "a number from 0 to 1, True or False, or a pair of that and a reason"


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return the task's verdict on a completion; a score of `pass_score` or more passes.

    Raises:
        PluginError: The task raised, or returned something other than a score.
    """
    columns = prompt.columns
    score, reason = score_of(made_of(columns), columns["function"], columns["row"], completion)
    return Verdict(score >= columns["pass_score"], score, reason)


def rows(task: CustomTask, count: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the first `count` distinct rows of a task, and whether it is an environment.

    A `score` is checked on an empty completion of the first row, a `reply` by `with_replies` (rollouts/turns.py).

    Raises:
        ConfigError: The class cannot be created, a row has no prompt, there are too few rows, or `score` does not
            return a score.
    """
    name = task.function
    try:
        made = call(made_of, name, {"function": name, "params": task.params})
        rows = call(lambda: _distinct(islice(made.rows(4 * count), 4 * count), count, name), f"{name}.rows")
        replies = callable(getattr(made, "reply", None))
        if not replies:
            score_of(made, name, copy.deepcopy(rows[0]), "")
    except PluginError as error:
        raise ConfigError(f"data.function: {error}") from None
    return rows, replies or bool(getattr(made, "tools", ()))


def _distinct(made: Iterable[Any], count: int, name: str) -> list[dict[str, Any]]:
    """Return the first `count` rows with different prompts."""
    distinct: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(made):
        if not isinstance(row, Mapping) or "prompt" not in row:
            raise PluginError(f"row {index} of {name} is {describe(row)}; allowed: a dict with `prompt`")
        distinct.setdefault(json.dumps(row["prompt"], default=repr), dict(row))
        if len(distinct) == count:
            return list(distinct.values())
    raise ConfigError(
        f"data.prompts: {name} made {len(distinct)} distinct prompts; allowed: at least {count} (data.prompts and "
        "held-out prompts together)"
    )


def made_of(columns: Mapping[str, Any]) -> Any:
    """Return the task of a prompt with these columns, an object with `rows` and `score`; one object per process.

    Raises:
        ConfigError: The class cannot be imported.
        PluginError: Creating the object raised.
    """
    return _made(columns["function"], json.dumps(columns["params"], sort_keys=True))


@cache
def _made(function: str, params: str) -> Any:
    return call(load_function(function, "data.function"), function, **json.loads(params))


def score_of(task: Any, name: str, row: Mapping[str, Any], completion: str) -> tuple[float, str]:
    """Return the score of a completion and its reason."""
    returned = call(lambda: task.score(row, completion), f"{name}.score")
    given, reason = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, "")
    value = number(given)
    if value is None or not 0 <= value <= 1:
        raise PluginError(f"{name}.score returned {describe(returned)}; allowed: {ALLOWED}")
    return value, str(reason) or f"score {value:g}"
