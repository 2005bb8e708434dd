"""Makes engines that a user provides by import path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError, call, load_function
from scalerl.training.config.placement import Placement
from scalerl.training.config.recipe import Custom
from scalerl.training.engines.engine import EnginePair, EngineWrapper, ExactEngine, Sampling
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.local.slot_engine import Receive, SlotEngine
from scalerl.training.engines.local.torch_engine import torch_engine
from scalerl.training.engines.served import EngineHandle, Restarter
from scalerl.training.models.policy import Policy

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
    """Loads the model (training/models/policy.py) for engines that decode with it; both engines of a generator share
    it."""
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

    def torch_engine(self, slots: int = 0, **shared: Any) -> SlotEngine:
        """Return scalerl's PyTorch engine with these parts, to wrap or to compare with.

        Args:
            slots: Sequences to decode together; 0: `slots` of the parts.
            shared: `lender` and `spare_rows` of an engine that uses the cache of another one (torch_engine.py).
        """
        return torch_engine(
            self.load_policy(), slots=slots or self.slots, prompt_tokens=self.prompt_tokens, rule=self.rule,
            sampling=self.sampling, receive=self.receive, **shared,
        )  # fmt: skip


def make_engine(choice: Custom, parts: EngineParts) -> Any:
    """Import a user's class or factory and make an engine, or the handle of two, with it.

    Raises:
        ConfigError: It cannot be imported, takes other arguments, or raises.
    """
    function = load_function(choice.function, f"{FIELD}.function")
    try:
        return call(function, choice.function, parts, **choice.params)
    except PluginError as error:
        raise ConfigError(f"{FIELD}: {error}") from None


class OwnWeights(EngineWrapper):
    """A training engine whose evaluation engine has weights of its own: both get every version."""

    def __init__(self, engine: ExactEngine, evaluator: ExactEngine) -> None:
        """Wrap the training engine."""
        super().__init__(engine)
        self._evaluator = evaluator

    @property
    def version(self) -> int:
        """Version that both use."""
        return min(self.inner.version, self._evaluator.version)

    def swap(self, version: int) -> None:
        """Swap the weights of both."""
        self.inner.swap(version)
        self._evaluator.swap(version)


def engine_pair(
    choice: Custom,
    parts: EngineParts,
    placement: Placement | None = None,
    name: str = "the engine",
    note: Callable[[str], None] = print,
) -> EnginePair:
    """Return a user's engine for training and one for evaluations, which use the same weights.

    Args:
        choice: Import path and parameters of an exact engine, which is made twice, or of a handle of both.
        parts: Parts of the engine for training.
        placement: Time limits of a handle; None: the defaults.
        name: Name of a handle in messages.
        note: Function that gets a message about every failure of a handle.

    Raises:
        ConfigError: See `make_engine`.
    """
    shared = replace(parts, load_policy=cache(parts.load_policy))
    made = make_engine(choice, shared)
    if not isinstance(made, EngineHandle):
        evaluator = make_engine(choice, replace(shared, evaluating=True))
        return EnginePair(OwnWeights(made, evaluator), evaluator)
    first = [made]

    def begin() -> EngineHandle:
        return first.pop() if first else make_engine(choice, shared)

    return Restarter(begin, name, parts.slots, placement or Placement(), note).pair()
