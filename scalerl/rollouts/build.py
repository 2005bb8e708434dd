"""From a configuration to a coordinator and its engines, inside the generator's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scalerl.config.recipe import Custom
from scalerl.config.run import RunConfig
from scalerl.models.flops import ModelShape
from scalerl.models.policy import Policy
from scalerl.rollouts.coordinator import Coordinator
from scalerl.rollouts.custom import EngineParts, engine_pair
from scalerl.rollouts.engine import Engine, Sampling
from scalerl.rollouts.interrupt import LengthRule
from scalerl.rollouts.local.torch_engine import torch_engine
from scalerl.rollouts.process_engine import EngineProcess
from scalerl.rollouts.schedule import schedule_of
from scalerl.rollouts.supervised import Life, Limits, Supervisor, supervise
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.rollouts.worker import WorkerParts

EVALUATION_CACHE = 1 << 28
"""Bytes of cache up to which an evaluation decodes more sequences together than training does: all wait for it."""


class StateFiles(Protocol):
    """Where the generator's part of a checkpoint lies."""

    def load(self) -> Any:
        """Return the state to resume from; None for a new run."""
        ...

    def save(self, path: Path, name: str, state: dict[str, Any]) -> None:
        """Write a part of a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What an engine that loads the model itself must know of it.

    Example: ModelFacts(path="Qwen/Qwen3-8B", revision="main", vocabulary=151936, shape=ModelShape(...))
    """

    path: str
    """A directory, or a name on the hub."""
    revision: str
    """Branch, tag or commit, for a name on the hub."""
    vocabulary: int
    """Rows of the LM head."""
    shape: ModelShape
    """What the FLOPs depend on."""


@dataclass(frozen=True)
class GeneratorSpec:
    """How to make the coordinator and its engines; handed over by pickling."""

    config: RunConfig
    """Resolved."""
    load_policy: Callable[[], Policy]
    longest_prompt: int
    """Tokens."""
    rule: LengthRule
    stop: tuple[int, ...]
    """Token ids that end a sequence."""
    files: StateFiles
    model: ModelFacts
    run: Path
    """The run directory, for logs."""
    make_engines: MakeEngines
    """Where the engines live; a function of a module, for pickling."""

    def __call__(self, channel: WeightChannel) -> WorkerParts:
        """Load the model and restore the state, in the generator's process."""
        config, recipe = self.config, self.config.recipe
        notes: list[str] = []
        specs = [EngineSpec(self, channel, number) for number in range(config.placement.engines)]
        pairs = self.make_engines(specs, notes.append)
        schedule = schedule_of(config, -1 if config.rollouts.lag_ticks == "measure" else config.lag_ticks)
        engines, evaluators = zip(*pairs, strict=True)
        coordinator = Coordinator(engines, schedule, recipe.generations_per_prompt, config.seed, evaluators)
        state = self.files.load()
        if state is not None:
            coordinator.load_state(state)
        return WorkerParts(coordinator, self.files.save, notes)


@dataclass(frozen=True)
class EngineSpec:
    """How to make one engine for training and one for evaluation over one model; handed over by pickling."""

    generator: GeneratorSpec
    channel: WeightChannel
    number: int
    """Which of the generators."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"generator {self.number + 1} of {self.generator.config.placement.engines}"

    @property
    def slots(self) -> int:
        """The engine's share of the slots."""
        config = self.generator.config
        count = config.placement.engines
        return config.slots // count + (self.number < config.slots % count)

    def __call__(self) -> tuple[Engine, Engine]:
        """Load the model, in the engine's process."""
        config = self.generator.config
        if isinstance(config.placement.engine, Custom):
            return engine_pair(config.placement.engine, self._parts())
        policy = self.generator.load_policy()
        count, own = config.placement.engines, self.slots
        sequences = config.evaluated_sequences
        positions = self.generator.longest_prompt + self.generator.rule.capacity
        fit = EVALUATION_CACHE // (policy.cache_bytes * positions)
        return self._engine(policy, own), self._engine(policy, min(max(own, fit), -(-sequences // count)))

    def _parts(self) -> EngineParts:
        """Return what an engine of the user is made from."""
        generator, recipe = self.generator, self.generator.config.recipe
        return EngineParts(
            load_policy=generator.load_policy,
            model_path=generator.model.path,
            slots=self.slots,
            prompt_tokens=generator.longest_prompt,
            rule=generator.rule,
            sampling=Sampling(recipe.temperature, recipe.top_p, generator.stop),
            receive=self.channel.receive,
        )

    def _engine(self, policy: Policy, slots: int) -> Engine:
        recipe = self.generator.config.recipe
        return torch_engine(
            policy,
            slots=slots,
            prompt_tokens=self.generator.longest_prompt,
            rule=self.generator.rule,
            sampling=Sampling(recipe.temperature, recipe.top_p, self.generator.stop),
            refill=self.generator.config.rollouts.refill,
            receive=self.channel.receive,
        )


MakeEngines = Callable[[Sequence[EngineSpec], Callable[[str], None]], Sequence[Sequence[Engine]]]
"""Makes, for each spec, an engine for training and one for evaluation; is given what to call with a note."""


def local_engines(specs: Sequence[EngineSpec], note: Callable[[str], None]) -> Sequence[Sequence[Engine]]:
    """Make one engine in this process, or several each in a process of its own, which step together."""
    if len(specs) == 1:
        return [specs[0]()]
    processes = [EngineProcess(spec, spec.name) for spec in specs]
    return [process.engines() for process in processes]


def supervised_engines(
    specs: Sequence[EngineSpec], begin: Callable[[EngineSpec], Life], note: Callable[[str], None]
) -> Sequence[Sequence[Engine]]:
    """Make engines that run on their own and are replaced when they die; they start at the same time.

    Args:
        specs: one an engine.
        begin: begins a life of one; called again after each death.
        note: told of every death.
    """

    def supervisor(spec: EngineSpec) -> Supervisor:
        limits = Limits(transfer_s=spec.generator.config.placement.transfer_timeout_s)
        return Supervisor(lambda: begin(spec), spec.name, (spec.slots, spec.slots), limits, note)

    return supervise([supervisor(spec) for spec in specs])
