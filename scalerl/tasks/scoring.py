"""From completions to rewards: in this process, in killable processes, or by the user's own function.

It knows verifiers and prompts, no tokens and no tensors. A verifier that hangs costs its own completion (counted as
wrong, and in `timeouts`), never the run.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scalerl.config import RunConfig
from scalerl.config.base import ConfigError
from scalerl.config.data import PromptFile
from scalerl.tasks import math
from scalerl.tasks.lab import arithmetic, programs
from scalerl.types import Prompt

CORRECT, INCORRECT = 1.0, -1.0
"""Rewards of a verified completion (paper appendix A.3)."""

TIMEOUT_S = 10.0
"""Seconds a verifier may take for one completion."""

VERIFIERS: dict[str, Callable[[str, str], bool]] = {
    "arithmetic": arithmetic.verify,
    "math": math.verify,
    "programs": programs.verify,
}


class RewardError(RuntimeError):
    """The user's reward function failed; the message says where."""


@dataclass(frozen=True, slots=True)
class Score:
    """What one completion is worth.

    Example: Score(reward=1.0, passed=True)
    """

    reward: float
    """Enters the advantages."""
    passed: bool
    """Enters the pass rate, the curriculum and the curve."""


class Scorer(Protocol):
    """Judges completions."""

    timeouts: int
    """Completions whose verifier had to be stopped, so far."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Score]:
        """Return one score a completion; `prompts` names the prompt of each."""
        ...

    def failed(self, score: Score) -> Score:
        """Return what a completion is worth that was truncated before it could answer."""
        ...

    def close(self) -> None:
        """Stop whatever runs."""
        ...


def make_scorer(config: RunConfig) -> Scorer:
    """Return the scorer that a configuration asks for.

    Raises:
        ConfigError: the reward function cannot be imported.
    """
    data = config.data
    if isinstance(data, PromptFile) and data.reward:
        return FunctionScorer(load_function(data.reward), data.reward, data.pass_reward)
    if isinstance(data, PromptFile) and data.task == "math":
        return PooledScorer("math")
    return InlineScorer()


class InlineScorer:
    """Calls the verifiers of the prompts' tasks, which must be quick and unable to hang."""

    timeouts = 0

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Score]:
        """Return +1 for a pass, -1 for a failure."""
        return [_binary(_verify(p.task, c, p.answer)) for p, c in zip(prompts, completions, strict=True)]

    def failed(self, score: Score) -> Score:
        """Return the score of a wrong answer."""
        return _binary(False)

    def close(self) -> None:
        """Do nothing."""


class PooledScorer:
    """Calls a verifier in processes that are killed when they take too long."""

    def __init__(self, task: str, processes: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        from multiprocessing import get_context

        from pebble import ProcessPool

        self._task, self._timeout_s, self.timeouts = task, timeout_s, 0
        workers = processes or max(1, (os.cpu_count() or 2) - 1)
        self._pool = ProcessPool(max_workers=workers, context=get_context("spawn"), initializer=_quiet)

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Score]:
        """Return +1 for a pass, -1 for a failure, a crash or a timeout of the verifier."""
        futures = [
            self._pool.schedule(_verify, args=(self._task, completion, prompt.answer), timeout=self._timeout_s)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        return [_binary(self._result(future)) for future in futures]

    def _result(self, future: Any) -> bool:
        from pebble import ProcessExpired

        try:
            return bool(future.result())
        except (TimeoutError, ProcessExpired):
            self.timeouts += 1
            return False

    def failed(self, score: Score) -> Score:
        """Return the score of a wrong answer."""
        return _binary(False)

    def close(self) -> None:
        """Kill the processes."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()


class FunctionScorer:
    """Calls a user's reward function in TRL's form: f(prompts, completions, **columns) -> list of float."""

    def __init__(self, function: Callable[..., Any], name: str, pass_reward: float) -> None:
        self._function, self._name, self._pass_reward, self.timeouts = function, name, pass_reward, 0
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._takes = {p.name for p in parameters}

    def score(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Score]:
        """Return the function's rewards; a reward at or above `pass_reward` passes.

        Raises:
            RewardError: the function raised, or returned something other than one finite number a completion.
        """
        names = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
        columns = {name: [prompt.columns.get(name) for prompt in prompts] for name in names}
        asked = columns.pop("prompt", [prompt.text for prompt in prompts])
        chat = [isinstance(prompt, list) for prompt in asked]
        answers: list[Any] = [
            [{"role": "assistant", "content": c}] if is_chat else c
            for c, is_chat in zip(completions, chat, strict=True)
        ]
        if not self._takes_all:
            columns = {name: values for name, values in columns.items() if name in self._takes}
        try:
            rewards = list(self._function(prompts=asked, completions=answers, **columns))
        except (Exception, SystemExit) as error:  # user code: whatever it raises is reported with its place
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise RewardError(
                f"reward function {self._name} raised {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            ) from error
        if len(rewards) != len(completions):
            raise RewardError(
                f"reward function {self._name} returned {len(rewards)} rewards for {len(completions)} completions"
            )
        return [self._one(reward) for reward in rewards]

    def _one(self, reward: Any) -> Score:
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = float("nan")
        if not abs(value) < float("inf"):
            raise RewardError(
                f"reward function {self._name} returned {reward!r}; allowed: a finite number for each completion"
            )
        return Score(value, value >= self._pass_reward)

    def failed(self, score: Score) -> Score:
        """Return the function's own reward, which has a scale of its own, but no pass."""
        return Score(score.reward, False)

    def close(self) -> None:
        """Do nothing."""


def load_function(name: str) -> Callable[..., Any]:
    """Import `package.module:function`, with the current directory on the path.

    Raises:
        ConfigError: it is not there.
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise ConfigError(f"data.reward: got {name!r}; allowed: package.module:function")
    try:
        module = _import_here(module_name)
    except (ImportError, SystemExit) as error:
        reason = f"it calls sys.exit({error})" if isinstance(error, SystemExit) else error
        raise ConfigError(f"data.reward: cannot import {module_name!r} from {os.getcwd()} ({reason})") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"data.reward: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


def _import_here(name: str) -> Any:
    """Import a module with the current directory on the path.

    A module of the same name that was imported from another directory is replaced: a process that changes its directory
    (a notebook, a test) would otherwise train with the wrong function.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    loaded = sys.modules.get(name)
    if loaded is not None and "." not in name:
        importlib.invalidate_caches()
        found = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
        if found is not None and found.origin and found.origin != getattr(loaded, "__file__", None):
            del sys.modules[name]
    return importlib.import_module(name)


def _binary(passed: bool) -> Score:
    return Score(CORRECT if passed else INCORRECT, passed)


def _verify(task: str, completion: str, answer: str) -> bool:
    return VERIFIERS[task](completion, answer)


def _quiet() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns, at every call, that its own limit is off
