"""Environments of the `verifiers` package, in separate processes: a rubric may call judge models and may hang.

With a single turn, the rubric is a reward function in TRL's form. Environments of several turns run their own loop.
Here is the interface of versions 0.1.x; tasksets.py has that of 0.4.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError, call
from scalerl.core.printable import encodable
from scalerl.core.types import TURNS
from scalerl.training.config.data import EnvironmentTask
from scalerl.training.rewards import tasksets
from scalerl.training.rewards.calls import calls
from scalerl.training.rewards.turns import Reply

REWARD = "scalerl.training.rewards.verifiers_environments:rewards"
"""Import path of the reward function, in the form of `data.reward`."""


def load_environment(environment: str, arguments: Mapping[str, Any]) -> Any:
    """Return an environment of the `verifiers` package.

    Raises:
        ConfigError: The package or the environment is missing, refuses its arguments, or makes no rollouts of turns.
    """
    try:
        from verifiers import load_environment
    except ImportError as error:  # not installed, or a version without this function
        raise ConfigError(
            f"data.kind: 'verifiers' needs that package ({error}): pip install 'verifiers>=0.4' for environments that "
            "are tasksets, or 'verifiers>=0.1.9,<0.2' for those with load_environment"
        ) from None
    try:
        loaded = call(load_environment, environment, environment, **arguments)
    except PluginError as error:
        raise ConfigError(
            f"data.environment: cannot load {environment!r} with the arguments {dict(arguments)!r} ({error}); is the "
            "environment's package installed?"
        ) from None
    if not hasattr(loaded, "env_response"):
        raise ConfigError(
            f"data.environment: {environment!r} is a {type(loaded).__name__}; allowed: a verifiers.SingleTurnEnv or "
            "MultiTurnEnv, such as ToolEnv"
        )
    return loaded


def several_turns(task: EnvironmentTask, loaded: Any) -> dict[str, Any]:
    """Return the columns of a row of an environment of several turns, in addition to those of its rubric."""
    tools = _schemas(loaded)
    params = {"environment": task.environment, "arguments": task.arguments}
    function = f"{__name__}:{SeveralTurns.__name__}"
    return {"function": function, "params": params, TURNS: task.limits, "tools": tools, "pass_reward": task.pass_reward}


class _NextTurn(Exception):
    """Ends the loop of an environment that asks for a turn that the policy has not sampled yet."""

    def __init__(self, messages: Sequence[Any]) -> None:
        super().__init__()
        self.messages = messages


class SeveralTurns:
    """An environment in the form of `scalerl.training.rewards.turns`.

    Each reply runs the environment's own loop again from the start, with the turns that the policy has sampled in place
    of a model. So the environment may keep a state, but the same turns must give the same replies.
    """

    def __init__(self, environment: str, arguments: Mapping[str, Any]) -> None:
        """Load the environment."""
        self._environment = load_environment(environment, arguments)

    def reply(self, row: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> Reply:
        """Return the environment's next messages; at its end, the reward of its rubric and the rubric's metrics.

        Raises:
            PluginError: The environment replied to the earlier turns in another way, without text, or with an error.
        """
        inner = {"example_id": 0, "answer": "", **row, "info": _info(row.get("info"))}
        turns = [message for message in messages if message["role"] == "assistant"]
        try:
            tools = _schemas(self._environment)
            state = asyncio.run(self._rollout(inner, [_response(turn["content"], tools) for turn in turns]))
        except _NextTurn as next_turn:
            raw = [message.content for message in next_turn.messages]
            contents = [encodable(text) if isinstance(text, str) else text for text in raw]
            if contents[: len(messages)] != [message["content"] for message in messages]:
                raise PluginError("it replied in another way to the same turns, so it cannot be replayed") from None
            new = tuple(
                {"role": message.role, "content": message.content} for message in next_turn.messages[len(messages) :]
            )
            if not new or not all(isinstance(message["content"], str) for message in new):
                raise PluginError(f"env_response returned {new}; allowed: messages with text") from None
            return Reply(new)
        if state["error"] is not None:
            raise PluginError(f"it ended with {state['error']!r}")
        metrics = {name: float(value) for name, value in (state["metrics"] or {}).items()}
        return Reply((), float(state["reward"]), metrics)

    async def _rollout(self, row: Mapping[str, Any], turns: Sequence[Any]) -> Any:
        state = await self._environment.rollout(row, _replayed(turns), "policy", {})
        await self._environment.rubric.score_rollout(state)
        return state


def _schemas(environment: Any) -> list[dict[str, Any]]:
    """Return the schemas of an environment's tools."""
    defined = environment.tool_defs or ()
    return [{"type": "function", "function": tool.model_dump(exclude_none=True)} for tool in defined]


def _replayed(turns: Sequence[Any]) -> Any:
    """Return a client of the package that answers with the given turns, then raises _NextTurn."""
    from verifiers.clients import Client

    unused_turns = iter(turns)

    async def get_response(self: Any, prompt: Sequence[Any], *_: Any, **__: Any) -> Any:
        for turn in unused_turns:
            return turn
        raise _NextTurn(prompt)

    unused = dict.fromkeys(Client.__abstractmethods__)
    return type("Replayed", (Client,), {**unused, "get_response": get_response})(None)


def _response(text: str, tools: Sequence[Mapping[str, Any]]) -> Any:
    """Return a completion as a response of the package; the environment answers a malformed call, as it has no name."""
    from verifiers.types import Response, ResponseMessage, ToolCall

    tool_calls = [
        ToolCall(id=str(number), name=str(made.name or ""), arguments=made.problem or json.dumps(made.arguments))
        for number, made in enumerate(calls(text, tools=tools))
    ]
    message = ResponseMessage(content=text, tool_calls=tool_calls, finish_reason="stop", is_truncated=False)
    return Response(id="0", created=0, model="policy", message=message)


def rubric_rewards(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    environment: Sequence[str],
    arguments: Sequence[Mapping[str, Any]],
    row: Sequence[Mapping[str, Any]],
    **columns: Any,
) -> list[float]:
    """Return the rubric's reward of each completion.

    Args:
        prompts: Prompts as they are in the environment's data set.
        completions: Texts, or lists of one chat message.
        environment: Id of the environment, for each completion.
        arguments: Arguments of the environment, for each completion.
        row: Row of its data set, for each completion.
        columns: Other columns of the row, which are ignored.
    """
    if tasksets.installed():
        texts = [
            completion if isinstance(completion, str) else str(completion[-1]["content"]) for completion in completions
        ]
        return tasksets.rewards(environment[0], arguments[0], row[0], texts)
    loaded = _cached(environment[0], json.dumps(arguments[0], sort_keys=True))
    return asyncio.run(_score(loaded, prompts, completions, row))


async def _score(loaded: Any, prompts: Sequence[Any], completions: Sequence[Any], rows: Sequence[Any]) -> list[float]:
    states = [_state(*parts) for parts in zip(prompts, completions, rows, strict=True)]
    await asyncio.gather(*(loaded.rubric.score_rollout(state) for state in states))
    return [float(state["reward"]) for state in states]


def _state(prompt: Any, completion: Any, row: Mapping[str, Any]) -> Any:
    """Return the input of a rubric: the row of the data set, and a finished rollout of one turn."""
    import verifiers

    inner = {**row, "prompt": _messages(prompt), "info": _info(row.get("info"))}
    state = verifiers.State(input=inner)
    state.update(
        task=row.get("task", "default"),
        completion=_messages(completion),
        trajectory=[],
        is_completed=True,
        is_truncated=False,
        stop_condition="max_turns_reached",
        reward=None,
        metrics=None,
        error=None,
    )
    return state


def _messages(value: Any) -> Any:
    """Return messages as the package's records, which later releases of 0.1 pass to rubrics instead of dicts."""
    try:
        from verifiers.utils.message_utils import normalize_messages
    except ImportError:
        return value
    return normalize_messages(value)


def _info(info: Any) -> Any:
    return json.loads(info) if isinstance(info, str) and info else info or {}


@lru_cache(maxsize=8)
def _cached(environment: str, arguments: str) -> Any:
    return load_environment(environment, json.loads(arguments))
