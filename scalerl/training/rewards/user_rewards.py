"""The user's reward function in TRL's form, called in separate processes, and the count of rewards that failed."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from scalerl.core.errors import RunError
from scalerl.core.plugins import PluginError, call, describe, finite_number, loaded, signature_of
from scalerl.core.types import Prompt

LIMIT = 0.05
LEAST_COMPLETIONS = 100
"""Number of completions after which the limit applies."""


class Failures:
    """Counts failed rewards of one task. A few are tolerated; a share above 5% ends the run."""

    def __init__(self, name: str, limit: float = LIMIT) -> None:
        """Start at zero.

        Args:
            name: Source of the rewards, for messages.
            limit: Share of completions that may fail; 1 allows all.
        """
        self._name, self._limit, self.completions, self.failed = name, limit, 0, 0
        self._last = ""
        self._problems: set[str] = set()
        self._new: list[str] = []

    def count(self, completions: int, problems: list[str]) -> None:
        """Count completions and their failures.

        Args:
            completions: Number of completions scored now.
            problems: Descriptions, one for each of them that got no reward.

        Raises:
            RewardError: After at least 100 completions, the share of failures exceeds the limit.
        """
        self.completions += completions
        self.failed += len(problems)
        self._last = problems[-1] if problems else self._last
        for problem in problems:
            if problem not in self._problems and len(self._problems) < 20:
                self._problems.add(problem)
                self._new.append(f"{problem}; counted as failed ({self.failed} of {self.completions} completions)")
        # only after a new failure: a resumed run whose function was mended starts above the limit
        if problems and self.completions >= LEAST_COMPLETIONS and self.failed > self._limit * self.completions:
            raise RewardError(
                f"{self._name} gave no reward for {self.failed} of {self.completions} completions, and at most "
                f"{self._limit:.0%} may fail; the last failure: {self._last}"
            )

    def news(self) -> list[str]:
        """Return the problems that have not been returned yet, each kind once."""
        new, self._new = self._new, []
        return new

    def state(self) -> dict[str, Any]:
        """Return the counts and the last problem as plain values."""
        return {"completions": self.completions, "failed": self.failed, "last": self._last}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`."""
        self.completions, self.failed, self._last = state["completions"], state["failed"], state["last"]


class RewardError(RunError):
    """Too many rewards failed."""


def call_by_name(
    name: str, prompt: Prompt, completions: Sequence[str], params: Mapping[str, Any] | None = None
) -> list[float | str]:
    """Import a reward function, once per process, and call it; see `call_reward`."""
    return call_reward(loaded(name, "data.reward"), name, prompt, completions, params)


def call_reward(
    function: Callable[..., Any],
    name: str,
    prompt: Prompt,
    completions: Sequence[str],
    params: Mapping[str, Any] | None = None,
) -> list[float | str]:
    """Return f(prompts, completions, **columns, **params): a finite number or a description of the failure each.

    Args:
        function: Function in TRL's form, which may be asynchronous. It gets the columns of the rows that it takes.
        name: Name of the function, for messages.
        prompt: Prompt of all completions.
        completions: Texts; the completion of a chat prompt is passed as a chat message.
        params: Further keyword arguments; they replace columns of the same name.

    Returns:
        One entry per completion. All are descriptions if the function raised, exited, or returned no list of their
        length.
    """
    question, answers = prompt.columns.get("prompt", prompt.text), list[Any](completions)
    if isinstance(question, list):
        answers = [[{"role": "assistant", "content": completion}] for completion in completions]
    columns = {name: [value] * len(answers) for name, value in columns_taken(function, prompt).items()}
    named = {**columns, **(params or {}), "prompts": [question] * len(answers), "completions": answers}
    try:
        returned = call(function, name, **named)
        if inspect.isawaitable(returned):
            returned = call(_awaited, name, returned)
        rewards = call(list, name, returned)  # a generator runs in `list`
    except PluginError as error:
        return [f"reward function {error}"] * len(completions)
    if isinstance(returned, Mapping | Set):  # the keys of a mapping would be taken for rewards
        problem = f"reward function {name} returned {describe(returned)}; allowed: a list with a number for each of"
        return [f"{problem} {len(completions)} completions"] * len(completions)
    if len(rewards) != len(completions):
        problem = f"reward function {name} returned {len(rewards)} rewards for {len(completions)} completions"
        return [problem] * len(completions)
    return [_finite(reward, name) for reward in rewards]


def _awaited(returned: Any) -> Any:
    """Run what an asynchronous function returned to its end, and return its result.

    All calls of a thread share an event loop, because connections of asynchronous clients belong to the loop in which
    they were opened.
    """
    if not hasattr(_thread, "loop"):
        _thread.loop = asyncio.new_event_loop()
    loop = returned.get_loop() if asyncio.isfuture(returned) else _thread.loop
    try:
        return loop.run_until_complete(returned)
    except asyncio.CancelledError:  # it is no Exception, so it would end the process
        raise RuntimeError("its coroutine was cancelled") from None


_thread = threading.local()


RESERVED = ("prompt", "prompts", "completions")
"""Columns that a reward function does not get, because the run gives these arguments."""


def columns_taken(function: Callable[..., Any], prompt: Prompt) -> dict[str, Any]:
    """Return the columns of a prompt's row that a reward function takes: all, if it has **columns."""
    signature = signature_of(function)
    takes = signature.parameters if signature else {}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    columns = {name: value for name, value in prompt.columns.items() if takes_all or name in takes}
    return {name: value for name, value in columns.items() if name not in RESERVED}


LARGEST_REWARD = 1e9
"""Largest absolute reward: squares of larger ones lose their differences in FP32, or overflow."""


def _finite(reward: Any, name: str) -> float | str:
    value = finite_number(reward)
    if value is None or abs(value) > LARGEST_REWARD:
        allowed = f"a finite number for each completion, from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}"
        return f"reward function {name} returned {describe(reward)}; allowed: {allowed}"
    return value
