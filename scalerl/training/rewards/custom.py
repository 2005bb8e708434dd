"""User-defined tasks: a class with `rows(count)` and `score(row, completion)`, given by its import path.

A prompt's columns contain the class and the row: {"function": "tasks:Sums", "params": {...}, "row": {...}}.
"""

from __future__ import annotations

import copy
import json
import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import Any

from scalerl.core.errors import ConfigError, outcome
from scalerl.core.exact import is_plain
from scalerl.core.plugins import PluginError, call, describe, finite_number, load_function
from scalerl.core.types import Prompt
from scalerl.training.config.data import CustomTask
from scalerl.training.rewards.base import Verdict
from scalerl.training.rewards.pool import Step, in_this_process

MOST_TRIES = 4
"""Rows that a task may make for each distinct one."""

END = object()

PART_S = 1.0
"""Seconds after which a process hands over the rows that it has made."""

ALLOWED_SCORES = "a number from 0 to 1, True or False, or a pair of that and a reason"


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return the task's verdict on a completion; a score of `pass_score` or more passes.

    Raises:
        PluginError: The task raised, or returned something other than a score.
    """
    columns = prompt.columns
    score, reason = score_of(task_object(columns), columns["function"], columns["row"], completion)
    return Verdict(score >= columns["pass_score"], score, reason)


def rows(task: CustomTask, count: int, step: Step = in_this_process) -> tuple[list[dict[str, Any]], bool]:
    """Return the first `count` distinct rows of a task, and whether it is an environment.

    A `score` is checked on an empty completion of the first row, a `reply` by `check_replies` (engines/turns.py).

    Args:
        task: Task with the class.
        count: Number of rows.
        step: Makes each step, for example in a `Trial`.

    Raises:
        ConfigError: The class cannot be created, a row has no prompt, there are too few rows, or `score` does not
            return a score.
    """
    step(f"{task.function}.__init__", create, {"function": task.function, "params": task.params})
    load_function(task.function, "data.function")  # rows from another process may have objects of its module
    distinct, complete = list[dict[str, Any]](), False
    while not complete:
        more, complete = step(f"{task.function}.rows", _more_rows, task, count, len(distinct))
        distinct += more
    return distinct, step(f"{task.function}.score", _replies, task, distinct[0])


def create(columns: Mapping[str, Any]) -> None:
    """Create the task's object, which this process keeps.

    Raises:
        ConfigError: The class cannot be imported, or creating its object raised.
    """
    with _refused():
        task_object(columns)


def _replies(task: CustomTask, first: Mapping[str, Any]) -> bool:
    """Return whether a task is an environment; check the `score` of one that does not reply."""
    with _refused():
        user_task = task_object({"function": task.function, "params": task.params})
        if callable(getattr(user_task, "reply", None)):
            return True
        call(score_of, f"{task.function}.score", user_task, task.function, copy.deepcopy(first), "")
        return bool(getattr(user_task, "tools", ()))


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except PluginError as error:
        raise ConfigError(f"data.function: {error}") from None


_unfinished: dict[str, Iterator[dict[str, Any]]] = {}
"""The rows of tasks of which this process has made some."""


def _more_rows(task: CustomTask, count: int, begun: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows after the first `begun` that are made within `PART_S`, at least one, and whether they are all.

    A time limit of this call is therefore one without a new row, however many rows there are.
    """
    key, until = repr((task.function, task.params, count)), time.monotonic() + min(PART_S, task.start_s / 4)
    with _refused():
        if begun == 0 or key not in _unfinished:
            user_task = task_object({"function": task.function, "params": task.params})
            _unfinished[key] = islice(_distinct(user_task, count, task.function), begun, None)
        more = list[dict[str, Any]]()
        for row in _unfinished[key]:
            more.append(row)
            if time.monotonic() > until:
                return more, False
    del _unfinished[key]
    return more, True


def _distinct(user_task: Any, count: int, name: str) -> Iterator[dict[str, Any]]:
    prompts, rows = set[str](), call(lambda: iter(user_task.rows(MOST_TRIES * count)), f"{name}.rows")
    for index in range(MOST_TRIES * count):
        row = call(next, f"{name}.rows", rows, END)
        if row is END:
            break
        if not isinstance(row, Mapping) or "prompt" not in row:
            raise PluginError(f"row {index} of {name} is {describe(row)}; allowed: a dict with `prompt`")
        if not is_plain(row) and (error := outcome(partial(pickle.dumps, row)).exception()):
            raise PluginError(
                f"row {index} of {name} cannot be sent to other processes ({error}); allowed: values that pickle can "
                "store"
            )
        if (prompt := call(json.dumps, f"{name}.rows", row["prompt"], default=repr)) not in prompts:
            prompts.add(prompt)
            yield dict(row)
        if len(prompts) == count:
            return
    raise ConfigError(
        f"data.prompts: {name} made {len(prompts):,} distinct prompts; allowed: at least {count:,}, which are "
        "data.prompts and evaluation.prompts together; make more, or lower the two"
    )


def task_object(columns: Mapping[str, Any]) -> Any:
    """Return the task of a prompt with these columns, an object with `rows` and `score`; one object per process.

    Raises:
        ConfigError: The class cannot be imported.
        PluginError: Creating the object raised.
    """
    return _task_object(columns["function"], json.dumps(columns["params"], sort_keys=True))


@cache
def _task_object(function: str, params: str) -> Any:
    return call(load_function(function, "data.function"), function, **json.loads(params))


def score_of(task: Any, name: str, row: Mapping[str, Any], completion: str) -> tuple[float, str]:
    """Return the score of a completion and its reason."""
    returned = call(lambda: task.score(row, completion), f"{name}.score")
    score, reason = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, "")
    value = finite_number(score)
    if value is None or not 0 <= value <= 1:
        raise PluginError(f"{name}.score returned {describe(returned)}; allowed: {ALLOWED_SCORES}")
    return value, str(reason) or f"score {value:g}"
