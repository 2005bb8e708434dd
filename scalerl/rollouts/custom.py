"""Makes engines that a user provides by import path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from scalerl.config.recipe import Custom
from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError, call, load_function
from scalerl.models.policy import Policy
from scalerl.rollouts.engine import Engine, Sampling
from scalerl.rollouts.interrupt import LengthRule
from scalerl.rollouts.local.slot_engine import Receive
from scalerl.rollouts.local.torch_engine import torch_engine

FIELD = "placement.engine"


@dataclass(frozen=True)
class EngineParts:
    """The parts that a user's engine is made from: the first argument of its class or factory.

    The `params` of the configuration follow as keyword arguments.

    Example:
        EngineParts(load_policy=..., model_path="Qwen/Qwen3-0.6B", slots=64, prompt_tokens=512, rule=LengthRule(...),
                    sampling=Sampling(temperature=1.0, top_p=1.0, stop=(151645,)), receive=..., evaluating=False)
    """

    load_policy: Callable[[], Policy]
    """Loads the model (models/policy.py) for engines that decode with it; the two engines of a generator share it."""
    model_path: str
    """Directory or hub name of the model and its tokenizer."""
    slots: int
    """Sequences to decode together."""
    prompt_tokens: int
    """Longest prompt, tokens."""
    rule: LengthRule
    """Length limits and interruption of completions; `rule.capacity` is the most tokens a completion can have."""
    sampling: Sampling
    """Temperature, nucleus and stop tokens."""
    receive: Receive
    """receive(version) -> weights by name, after they were sent; call it in `swap`."""
    evaluating: bool = False
    """Whether this engine is for evaluations. Each generator makes one engine for training and one for evaluations."""

    seed: int = 0
    """Seed of the run."""

    def torch_engine(self) -> Engine:
        """Return scalerl's PyTorch engine with these parts, to wrap or to compare with."""
        return torch_engine(
            self.load_policy(),
            slots=self.slots,
            prompt_tokens=self.prompt_tokens,
            rule=self.rule,
            sampling=self.sampling,
            receive=self.receive,
        )


def make_engine(choice: Custom, parts: EngineParts) -> Engine:
    """Import a user's class or factory and make an engine with it.

    Raises:
        ConfigError: It cannot be imported, takes other arguments, or raises.
    """
    function = load_function(choice.function, f"{FIELD}.function")
    try:
        return call(function, choice.function, parts, **choice.params)  # type: ignore[no-any-return]
    except PluginError as error:
        raise ConfigError(f"{FIELD}: {error}") from None


class Swapping:
    """An engine that passes every swap on to the evaluation engine."""

    def __init__(self, engine: Engine, evaluator: Engine) -> None:
        self._engine, self._evaluator = engine, evaluator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def version(self) -> int:
        """Version that both use: the older one while a swap is under way."""
        return min(self._engine.version, self._evaluator.version)

    def swap(self, version: int) -> None:
        """Swap the weights of both."""
        self._engine.swap(version)
        self._evaluator.swap(version)


def engine_pair(choice: Custom, parts: EngineParts) -> tuple[Engine, Engine]:
    """Return a user's engine for training and one for evaluations, which uses the same weights.

    Raises:
        ConfigError: See `make_engine`.
    """
    shared = replace(parts, load_policy=cache(parts.load_policy))
    evaluator = make_engine(choice, replace(shared, evaluating=True))
    engine: Any = Swapping(make_engine(choice, shared), evaluator)
    return engine, evaluator
