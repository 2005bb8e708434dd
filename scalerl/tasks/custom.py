"""User-defined tasks: a class with `rows(count)` and `score(row, completion)`, given by its import path.

A prompt's columns contain the class and the row: {"function": "tasks:Sums", "params": {...}, "row": {...}}.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from scalerl.config.base import is_utf8
from scalerl.config.data import CustomTask
from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError, call, check_arguments, describe, load_function, number
from scalerl.tasks.base import Verdict
from scalerl.types import Prompt

ALLOWED = "a number from 0 to 1, True or False, or a pair of that and a reason"


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return the task's verdict on a completion; a score of `pass_score` or more passes.

    Raises:
        PluginError: The task raised, or returned something other than a score.
    """
    columns = prompt.columns
    task = _made(columns["function"], json.dumps(columns["params"], sort_keys=True))
    found = call(task.score, f"{columns['function']}.score", columns["row"], completion)
    score, reason = _score(found, columns["function"])
    return Verdict(score >= columns["pass_score"], score, reason)


def rows(task: CustomTask, count: int) -> list[dict[str, Any]]:
    """Return the first `count` distinct rows of a task, and check its `score` on an empty completion of the first row.

    Raises:
        ConfigError: The class cannot be created, a row has no prompt, there are too few rows, or `score` does not
            return a score.
    """
    try:
        made = make(task.function, task.params)
        found = _distinct(_rows(made, task.function, 4 * count), count, task.function)
        first = _sent(found[0], task.function)
        _score(call(made.score, f"{task.function}.score", first, ""), task.function)
    except PluginError as error:
        raise ConfigError(f"data.function: {error}") from None
    return found


def _sent(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of a row as it arrives in the processes that call `score`."""
    try:
        return pickle.loads(pickle.dumps(row))  # type: ignore[no-any-return]
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise PluginError(
            f"{name}.rows made a row that cannot be sent to other processes ({error}); allowed: rows of plain values "
            "(text, numbers, lists, dicts)"
        ) from None


def _rows(made: Any, name: str, count: int) -> Iterator[Any]:
    """Yield at most `count` rows of a task. A generator may raise at any row."""
    found = call(made.rows, f"{name}.rows", count)
    if not isinstance(found, Iterable) or isinstance(found, str | Mapping):
        raise PluginError(f"{name}.rows returned {describe(found)}; allowed: rows, each a dict with `prompt`")
    rows = iter(found)
    end = object()
    for _ in range(count):
        row = call(partial(next, rows, end), f"{name}.rows")
        if row is end:
            return
        yield row


def _distinct(made: Iterable[Any], count: int, name: str) -> list[dict[str, Any]]:
    """Return the first `count` rows with different prompts."""
    found: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(made):
        if not isinstance(row, Mapping) or not _asks(row.get("prompt")):
            raise ConfigError(
                f"data.function: row {index} of {name} is {describe(row)}; allowed: a dict with `prompt`, text or a "
                "list of chat messages with text in `role` and `content`"
            )
        found.setdefault(json.dumps(row["prompt"], default=repr), dict(row))
        if len(found) == count:
            return list(found.values())
    raise ConfigError(
        f"data.prompts: {name} made {len(found)} distinct prompts; allowed: at least {count} (data.prompts and "
        "held-out prompts together)"
    )


def _asks(prompt: Any) -> bool:
    """Return whether a prompt is text or a list of chat messages that can be encoded as UTF-8."""
    if isinstance(prompt, list):
        return bool(prompt) and all(
            isinstance(message, dict) and isinstance(message.get("role"), str) and _asks(message.get("content"))
            for message in prompt
        )
    return isinstance(prompt, str) and bool(prompt.strip()) and is_utf8(prompt)


def make(function: str, params: Mapping[str, Any]) -> Any:
    """Return the task: an object with `rows` and `score`.

    Raises:
        ConfigError: The class cannot be imported, or lacks one of the two methods.
        PluginError: Creating the object raised.
    """
    found = load_function(function, "data.function")
    check_arguments(found, function, "data.function", (), params)
    made = call(found, function, **params)
    missing = [name for name in ("rows", "score") if not callable(getattr(made, name, None))]
    if missing:
        raise ConfigError(
            f"data.function: {function} has no method {' and no method '.join(missing)}; allowed: a class with "
            "rows(count) and score(row, completion)"
        )
    check_arguments(made.rows, f"{function}.rows", "data.function", ("count",), {})
    check_arguments(made.score, f"{function}.score", "data.function", ("row", "completion"), {})
    return made


@cache
def _made(function: str, params: str) -> Any:
    return make(function, json.loads(params))


def _score(found: Any, name: str) -> tuple[float, str]:
    given, reason = found if isinstance(found, tuple) and len(found) == 2 else (found, "")
    value = number(given)
    if value is None or not 0 <= value <= 1:
        raise PluginError(f"{name}.score returned {describe(found)}; allowed: {ALLOWED}")
    return value, (reason if isinstance(reason, str) else describe(reason)) or f"score {value:g}"
