"""The user's own reward function in TRL's form, called in processes of its own.

A function that raises, exits or takes its process down is named, counted, and survived as long as that is rare
(failures.py); it never fails in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from functools import cache
from itertools import islice
from typing import Any

from scalerl.plugins import PluginError, call, describe, load_function, number, signature_of
from scalerl.types import Prompt


class RewardError(RuntimeError):
    """Too many rewards failed; the message says where."""


def load_reward(name: str) -> Callable[..., Any]:
    """Import a reward function by `package.module:function`; see plugins.load_function for what it raises."""
    return load_function(name, "data.reward")


def call_by_name(
    name: str, prompts: Sequence[Prompt], completions: Sequence[str], params: Mapping[str, Any] | None = None
) -> list[float | str]:
    """Import a reward function, once a process, and call it; see `call_reward`."""
    return call_reward(_loaded(name), name, prompts, completions, params)


_loaded = cache(load_reward)
"""Looking for the module's file at every call would cost, and would find another after an os.chdir."""


def call_reward(
    function: Callable[..., Any],
    name: str,
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    params: Mapping[str, Any] | None = None,
) -> list[float | str]:
    """Return f(prompts, completions, **columns, **params): for each completion a finite number, or what was wrong.

    Args:
        function: in TRL's form; it is given those columns of the rows that it takes.
        name: of the function, for messages.
        prompts: the prompt of each completion.
        completions: texts; a chat prompt gets its completion as a chat message.
        params: given by name too; they replace columns of the same name.

    Returns:
        One entry a completion. All are text where the function raised or exited, or returned another number of them.
    """
    asked = [prompt.columns.get("prompt", prompt.text) for prompt in prompts]
    answers: list[Any] = [
        [{"role": "assistant", "content": completion}] if isinstance(prompt, list) else completion
        for prompt, completion in zip(asked, completions, strict=True)
    ]
    named = {**columns_taken(function, prompts), **(params or {})}
    try:
        found = call(function, name, prompts=asked, completions=answers, **named)
        rewards = call(_listed, name, found, len(completions) + 1)  # a generator of the user's runs here
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


def columns_taken(function: Callable[..., Any], prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """Return those columns of the prompts' rows that a reward function takes: all, where it has **columns."""
    signature = signature_of(function)
    parameters = signature.parameters.values() if signature else ()
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns if name != "prompt")
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        takes = {p.name for p in parameters}
        names = dict.fromkeys(name for name in names if name in takes)
    return {name: [prompt.columns.get(name) for prompt in prompts] for name in names}


def _listed(found: Any, most: int) -> list[Any] | None:
    """Return at most so many entries of a sequence, an array or a tensor; None for what has no order of its own."""
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping | Set):
        return None
    if len(getattr(found, "shape", (1,))) != 1:
        return None
    return list(islice(found, most))


LARGEST = 1e9
"""Largest size of a reward: squares of larger ones lose their differences in FP32, or overflow."""


def _finite(reward: Any, name: str) -> float | str:
    value = number(reward)
    if value is None:
        return f"reward function {name} returned {describe(reward)}; allowed: a finite number for each completion"
    if abs(value) > LARGEST:
        return (
            f"reward function {name} returned {value:g}; allowed: numbers from -{LARGEST:g} to {LARGEST:g}; scale them"
        )
    return value
