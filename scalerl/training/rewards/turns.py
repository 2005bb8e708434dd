"""Environments: tasks whose class replies to the policy, so that a rollout has turns (docs/environments.md).

An environment is the class of a custom task with `reply(row, messages)` instead of `score(row, completion)`, or with
`tools`. A reply depends only on the row and the messages so far, so that a run that is killed can ask again and get the
same bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from scalerl.core.errors import ConfigError, short
from scalerl.core.plugins import PluginError, call, describe, finite_number
from scalerl.core.printable import encodable
from scalerl.core.types import Prompt
from scalerl.training.rewards import tools
from scalerl.training.rewards.calls import FORM, calls
from scalerl.training.rewards.custom import score_of, task_object

Message = dict[str, str]

TOOL = "tool"
"""Role of the messages with results of tools."""

ALLOWED_REPLIES = (
    "the text of the next message, a list of messages with `role` and `content`, a dict with either of them as `reply` "
    "and the `reward` of the turn, or the end: a score from 0 to 1, or a dict with metrics that are numbers and either "
    "`score` or `rewards` (a list with a number for each turn of the policy, whose sum is from 0 to 1); "
    "next to `score`, `reward` is that of the last turn"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment returned: messages, or the end with a score.

    Example: Reply(messages=(), score=1.0, metrics={"calls": 2.0})
    """

    messages: tuple[Message, ...] = ()
    """Messages to the policy; none if the rollout has ended."""
    score: float = 0.0
    """Score of the whole rollout, from 0 to 1; any number from an environment of `verifiers`."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Your own numbers of the rollout."""
    rewards: tuple[float, ...] = ()
    """Rewards of the policy's latest turns, that of the last one last; empty: none was given."""


def is_chat(value: Any) -> bool:
    """Return whether a value is a list of chat messages with text in role and content."""
    return isinstance(value, list) and bool(value) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in value
    )  # fmt: skip


def opening(prompt: str | Sequence[Message]) -> list[Message]:
    """Return the prompt of a row as messages."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(message) for message in prompt]


def reply_to(prompt: Prompt, messages: Sequence[Message]) -> Reply:
    """Ask an environment for its reply, in a process of the pool.

    Args:
        prompt: Prompt of the rollout, whose columns have the class and the row.
        messages: Messages after the opening, the completion of the policy last.

    Raises:
        PluginError: The environment raised, or returned something else than a reply.
    """
    return call(_reply, f"{prompt.columns['function']}.reply", prompt, messages)  # type: ignore[no-any-return]


def _reply(prompt: Prompt, messages: Sequence[Message]) -> Reply:
    columns = prompt.columns
    task, name = task_object(columns), columns["function"]
    row = copy.deepcopy(columns["row"])
    task_tools, last = getattr(task, "tools", ()), messages[-1]["content"]
    form, schemas = columns.get(FORM, ""), columns.get("tools", ())
    if tool_calls := calls(last, form, schemas) if task_tools else []:
        return Reply(tuple(_message(TOOL, tools.answer(task_tools, made, row, name)) for made in tool_calls))
    if not hasattr(task, "reply"):
        return Reply((), score_of(task, name, row, last)[0])
    conversation = [*opening(row["prompt"]), *(dict(message) for message in messages)]
    returned = call(lambda: task.reply(row, conversation), f"{name}.reply")
    return read_reply(returned, name, sum(message["role"] == "assistant" for message in messages))


def first_reply(prompt: Prompt) -> Reply:
    """Return the reply to an empty completion.

    Raises:
        ConfigError: The environment failed.
    """
    try:
        return reply_to(prompt, [{"role": "assistant", "content": ""}])
    except PluginError as error:
        raise ConfigError(f"data.function: {error}") from None


def ask_all(requests: Sequence[tuple[Prompt, Sequence[Message]]]) -> list[Reply | PluginError]:
    """Ask environments at the same time, each in a thread; return their replies or failures.

    A single one is asked in this thread, because signals, which some time limits use, need the main thread.
    """

    def ask_one(request: tuple[Prompt, Sequence[Message]]) -> Reply | PluginError:
        try:
            return reply_to(*request)
        except (PluginError, ConfigError) as error:  # the user's own kinds of them may not be importable elsewhere
            return PluginError(str(error))

    if len(requests) == 1:
        return [ask_one(requests[0])]
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(ask_one, requests))


def read_reply(returned: Any, name: str, turns: int) -> Reply:
    """Return what an environment's `reply` returned as a record.

    Args:
        returned: The value.
        name: Import path of the class, for messages.
        turns: Turns of the policy so far.

    Raises:
        PluginError: It is not a reply.
    """
    if isinstance(returned, Reply):
        return _checked(returned, name, turns)
    values = dict(returned) if isinstance(returned, Mapping) else {"score": returned}
    if not isinstance(returned, Mapping) and _messages(returned):
        values = {"reply": returned}
    rewards = [finite_number(values.pop("reward"))] if "reward" in values else []
    if "rewards" in values and not rewards and "score" not in values:
        rewards = _rewards(values.pop("rewards"), turns)
        values["score"] = _sum(rewards)
    messages = _messages(values.pop("reply")) if "reply" in values else ()
    if messages and not values:
        score: float | None = 0.0
    else:
        score = None if messages is None or messages else finite_number(values.pop("score", None))
    numbers = {encodable(str(key)): finite_number(value) for key, value in values.items()}
    if score is None or not 0 <= score <= 1 or None in (*numbers.values(), *rewards):
        raise PluginError(f"{name}.reply returned {describe(returned)} after turn {turns}; allowed: {ALLOWED_REPLIES}")
    metrics = {key: value for key, value in numbers.items() if value is not None}
    return Reply(messages or (), score, metrics, tuple(reward for reward in rewards if reward is not None))


def _checked(reply: Reply, name: str, turns: int) -> Reply:
    """Return an adapter's reply, which may have any score, as plain values.

    Raises:
        PluginError: A message has no text, a number is not finite, or there are more rewards than turns.
    """
    if reply.messages and not is_chat(list(reply.messages)):
        raise PluginError(f"{name}.reply returned {short(reply.messages)}; allowed: messages with text")
    score, numbers = (
        finite_number(reply.score),
        {encodable(str(key)): finite_number(value) for key, value in reply.metrics.items()},
    )
    rewards = [finite_number(reward) for reward in reply.rewards]
    if score is None or None in (*numbers.values(), *rewards) or len(rewards) > turns:
        raise PluginError(
            f"{name}.reply returned {describe(reply)} after turn {turns}; allowed: a score, metrics and rewards that "
            "are finite, at most one reward for each turn"
        )
    messages = tuple(_message(message["role"], message["content"]) for message in reply.messages)
    metrics = {key: value for key, value in numbers.items() if value is not None}
    return Reply(messages, score, metrics, tuple(reward for reward in rewards if reward is not None))


def _message(role: str, content: str) -> Message:
    return {"role": encodable(role), "content": encodable(content)}


def _messages(value: Any) -> tuple[Message, ...] | None:
    """Return text or a list of messages as messages to the policy; None for anything else."""
    if isinstance(value, str):
        return (_message("user", value),)
    if is_chat(value) and all(message["role"] in ("user", TOOL, "system") for message in value):
        return tuple(_message(message["role"], message["content"]) for message in value)
    return None


def _rewards(values: Any, turns: int) -> list[float | None]:
    """Return a list with a reward for each turn; [None] for anything else."""
    return (
        [finite_number(value) for value in values]
        if isinstance(values, list | tuple) and len(values) == turns
        else [None]
    )


def _sum(rewards: Sequence[float | None]) -> float | None:
    """Return the sum of rewards; None if one is no number."""
    numbers = [reward for reward in rewards if reward is not None]
    return math.fsum(numbers) if len(numbers) == len(rewards) else None
