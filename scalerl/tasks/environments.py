"""Single-turn environments of the `verifiers` package (0.1.x): the rubric as a reward function in TRL's form.

Like any reward function, it runs in a separate process: a rubric may call judge models and may hang.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError, call

REWARD = "scalerl.tasks.environments:rewards"
"""Import path of the reward function, in the form of `data.reward`."""


def load(environment: str, arguments: Mapping[str, Any]) -> Any:
    """Return an environment of the `verifiers` package.

    Raises:
        ConfigError: The package or the environment is missing, refuses its arguments, or has more than one turn.
    """
    try:
        from verifiers import load_environment
    except ImportError as error:  # not installed, or a version without this function
        raise ConfigError(
            f"data.kind: 'verifiers' needs that package in version 0.1.x ({error}): pip install 'verifiers>=0.1.9,<0.2'"
        ) from None
    try:
        loaded = call(load_environment, environment, environment, **arguments)
    except PluginError as error:
        raise ConfigError(
            f"data.environment: cannot load {environment!r} with the arguments {dict(arguments)!r} ({error}); is the "
            "environment's package installed?"
        ) from None
    if getattr(loaded, "max_turns", None) != 1:
        raise ConfigError(
            f"data.environment: {environment!r} is a {type(loaded).__name__}, which may take several turns; allowed: "
            "environments of one turn (verifiers.SingleTurnEnv)"
        )
    return loaded


def rewards(
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
    return load(environment, json.loads(arguments))
