"""The user's reward function in TRL's form, called in separate processes.

A call that raises, exits or ends its process is reported and counted; the run ends if more than 5% fail (failures.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from functools import cache
from itertools import islice
from typing import Any

from scalerl.core.plugins import PluginError, call, describe, load_function, number, signature_of
from scalerl.types import Prompt


class RewardError(RuntimeError):
    """Too many rewards failed."""


def load_reward(name: str) -> Callable[..., Any]:
    """Import a reward function by `package.module:function`; `plugins.load_function` lists the exceptions."""
    return load_function(name, "data.reward")


def call_by_name(
    name: str, prompts: Sequence[Prompt], completions: Sequence[str], params: Mapping[str, Any] | None = None
) -> list[float | str]:
    """Import a reward function, once per process, and call it; see `call_reward`."""
    return call_reward(_loaded(name), name, prompts, completions, params)


_loaded = cache(load_reward)
"""Cached because a new search for the module is slow and could find another file after an os.chdir."""


def call_reward(
    function: Callable[..., Any],
    name: str,
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    params: Mapping[str, Any] | None = None,
) -> list[float | str]:
    """Return f(prompts, completions, **columns, **params): a finite number or a description of the failure each.

    Args:
        function: Function in TRL's form. It gets the columns of the rows that it takes.
        name: Name of the function, for messages.
        prompts: Prompt of each completion.
        completions: Texts; the completion of a chat prompt is passed as a chat message.
        params: Further keyword arguments; they replace columns of the same name.

    Returns:
        One entry per completion. All are descriptions if the function raised, exited, or returned a wrong number of
        rewards.
    """
    given_prompts = [prompt.columns.get("prompt", prompt.text) for prompt in prompts]
    answers: list[Any] = [
        [{"role": "assistant", "content": completion}] if isinstance(prompt, list) else completion
        for prompt, completion in zip(given_prompts, completions, strict=True)
    ]
    named = {**columns_taken(function, prompts), **(params or {}), "prompts": given_prompts, "completions": answers}
    try:
        found = call(function, name, **named)
        rewards = call(_listed, name, found, len(completions) + 1)  # runs the user's generator
    except PluginError as error:
        return [f"reward function {error}"] * len(completions)
    if rewards is None:
        problem = (
            f"reward function {name} returned {describe(found)}; allowed: a list with a number for each completion"
        )
        return [problem] * len(completions)
    if len(rewards) != len(completions):
        count = len(found) if isinstance(found, Sized) else f"{len(rewards)} or more"
        problem = f"reward function {name} returned {count} rewards for {len(completions)} completions"
        return [problem] * len(completions)
    return [_finite(reward, name) for reward in rewards]


RESERVED = ("prompt", "prompts", "completions")
"""Columns that a reward function does not get, because the run gives these arguments."""


def columns_taken(function: Callable[..., Any], prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """Return the columns of the prompts' rows that a reward function takes: all, if it has **columns."""
    signature = signature_of(function)
    parameters = signature.parameters.values() if signature else ()
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in RESERVED)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        takes = {p.name for p in parameters}
        names = dict.fromkeys(name for name in names if name in takes)
    return {name: [prompt.columns.get(name) for prompt in prompts] for name in names}


def _listed(found: Any, most: int) -> list[Any] | None:
    """Return at most `most` entries of a sequence, an array or a tensor; None for a value without an order."""
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping | Set):
        return None
    if len(getattr(found, "shape", (1,))) != 1:
        return None
    return list(islice(found, most))


LARGEST = 1e9
"""Largest absolute reward: squares of larger ones lose their differences in FP32, or overflow."""


def _finite(reward: Any, name: str) -> float | str:
    value = number(reward)
    if value is None:
        return f"reward function {name} returned {describe(reward)}; allowed: a finite number for each completion"
    if abs(value) > LARGEST:
        return (
            f"reward function {name} returned {value:g}; allowed: numbers from -{LARGEST:g} to {LARGEST:g}; scale them"
        )
    return value
