"""Builds the coordinator and its engines from a configuration, inside the generator process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import torch

from scalerl.core.errors import ConfigError
from scalerl.core.types import AGENT, Prompt
from scalerl.training.config.placement import Placement
from scalerl.training.config.recipe import Custom
from scalerl.training.config.run import Scoring
from scalerl.training.engines.coordinator import Coordinator
from scalerl.training.engines.custom import EngineParts, engine_pair, make_engine
from scalerl.training.engines.engine import EVALUATION_CACHE, Engine, EnginePair, ExactEngine, Sampling
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.process_engine import EngineProcess
from scalerl.training.engines.schedule import Schedule
from scalerl.training.engines.served import EngineHandle, Restarter
from scalerl.training.engines.turns import with_turns
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.engines.worker import SaveState, WorkerParts
from scalerl.training.models.build import PolicySpec
from scalerl.training.models.loading import load_tokenizer
from scalerl.training.models.policy import Policy
from scalerl.training.models.sizes import ModelSizes
from scalerl.training.models.text import TokenText
from scalerl.training.placement.devices import Place, Places


@dataclass(frozen=True, slots=True)
class Decoding:
    """What the engines of a run decode.

    Example (the lab): Decoding(slots=256, evaluated=1024, seed=0, longest_prompt=14, rule=LengthRule(...),
                                sampling=Sampling(temperature=1.0, top_p=1.0, stop=(17,)), experts=False)
    """

    slots: int
    """Sequences decoded together by all generators."""
    evaluated: int
    """Sequences of an evaluation."""
    seed: int
    longest_prompt: int
    """Longest prompt, tokens; with environments, of a last turn."""
    rule: LengthRule
    sampling: Sampling
    experts: bool = False
    """Whether an engine reports the experts of each token."""


@dataclass(frozen=True)
class GeneratorSpec:
    """Picklable function that makes the coordinator and its engines in the generator process."""

    policy: PolicySpec
    vocabulary: int
    """Rows of the LM head."""
    sizes: ModelSizes
    """Sizes that the FLOPs are computed from."""
    device: str
    threads: int
    """CPU threads of all generators."""
    placement: Placement
    scoring: Scoring
    decoding: Decoding
    schedule: Schedule
    """The schedule, before its first group."""
    group_size: int
    """G: rollouts per prompt."""
    save: SaveState
    run: Path
    """The run directory, for logs."""
    make_engines: MakeEngines
    """Makes the engines; a module-level function, because it is pickled."""
    load_state: Callable[[], Any] | None = None
    """Reads the generator's part of the checkpoint to resume from; None for a new run."""
    devices: Places = field(default_factory=dict)
    """Devices of all processes."""
    environments: bool = False
    """Whether environments reply to completions."""
    agents: bool = False
    """Whether programs make rollouts."""

    def __call__(self, channel: WeightChannel) -> WorkerParts:
        """Load the model and restore the state, in the generator process."""
        notes: list[str] = []
        specs = [EngineSpec(self, channel, number) for number in range(self.placement.engines)]
        wrap = self.episodes()
        pairs = [pair.wrapped(wrap) for pair in self.make_engines(specs, notes.append)]
        engines, evaluators = zip(*pairs, strict=True)
        coordinator = Coordinator(engines, self.schedule, self.group_size, self.decoding.seed, evaluators)
        if self.load_state is not None:
            coordinator.load_state(self.load_state())
        return WorkerParts(coordinator, self.save, notes)

    def text(self) -> TokenText:
        """Load the tokenizer."""
        return TokenText(load_tokenizer(self.policy.path, self.policy.revision), self.decoding.sampling.stop)

    def episodes(self) -> Callable[[Engine], Engine]:
        """Return a function that adds the environments that reply, and the programs of agents, to an engine."""
        if self.environments or self.agents:
            return episodes(self.text(), self.scoring, self.environments, self.agents, self.placement.engines)
        return lambda engine: engine

    def load_policy(self) -> Policy:
        """Load the policy in an engine's process, with this engine's share of the CPU threads."""
        torch.set_num_threads(max(1, self.threads // self.placement.engines))
        return self.policy.load(self.device)


@dataclass(frozen=True)
class EngineSpec:
    """Picklable function that makes a training engine and an evaluation engine over one model."""

    generator: GeneratorSpec
    channel: WeightChannel
    number: int
    """Number of the generator, from 0."""
    evaluating: bool = False
    """Whether it is the engine of the evaluation process."""

    @property
    def name(self) -> str:
        """Name of the engine in messages."""
        number = f"generator {self.number + 1} of {self.generator.placement.engines}"
        return "the engine of evaluations" if self.evaluating else number

    @property
    def place(self) -> Place:
        """The engine's devices."""
        kind = "evaluator" if self.evaluating else "generator"
        return self.generator.devices.get((kind, self.number), Place())

    @property
    def slots(self) -> int:
        """The engine's share of the slots."""
        slots, count = self.generator.decoding.slots, self.generator.placement.engines
        return slots // count + (self.number < slots % count)

    def __call__(self) -> EnginePair:
        """Load the model, in the engine's process."""
        engine, parts = self.generator.placement.engine, self._parts()
        if isinstance(engine, Custom):
            return engine_pair(engine, parts, self.generator.placement, self.name)
        training, (evaluated, fit) = parts.torch_engine(), self._evaluated(parts.load_policy())
        return EnginePair(training, parts.torch_engine(evaluated, lender=training, spare_rows=max(1, fit)))

    def evaluator(self) -> tuple[ExactEngine, Policy]:
        """Make an engine that only evaluates, with a cache of its own, and a policy whose weights may be replaced.

        A torch engine decodes with this policy, and as many sequences together as one that borrows the cache of
        training may, so that it draws the same tokens.
        """
        engine, parts = self.generator.placement.engine, self._parts()
        policy = parts.load_policy()
        if isinstance(engine, Custom):
            # with a model of its own, because the replay loads weights into the other one
            own = replace(parts, evaluating=True, load_policy=self.generator.load_policy)
            engine_or_handle = make_engine(engine, own)
            if isinstance(engine_or_handle, EngineHandle):
                engine_or_handle.stop()
                raise ConfigError(
                    f"evaluation.overlap: got true with {engine.function!r}, which gives a handle of two engines; "
                    "allowed: false, or an ExactEngine"
                )
            evaluator: ExactEngine = engine_or_handle
            return evaluator, policy
        return parts.torch_engine(self._evaluated(policy)[0]), policy

    def _parts(self) -> EngineParts:
        generator, decoding = self.generator, self.generator.decoding
        return EngineParts(
            load_policy=cache(generator.load_policy),
            model_path=generator.policy.path,
            slots=self.slots,
            prompt_tokens=decoding.longest_prompt,
            rule=decoding.rule,
            sampling=decoding.sampling,
            receive=self.channel.receive,
            seed=decoding.seed,
        )

    def _evaluated(self, policy: Policy) -> tuple[int, int]:
        """Return the sequences that an evaluation decodes together, and how many fit in EVALUATION_CACHE."""
        decoding, count = self.generator.decoding, self.generator.placement.engines
        fit = EVALUATION_CACHE // (policy.cache_bytes * (decoding.longest_prompt + decoding.rule.capacity))
        return min(max(self.slots, fit), -(-decoding.evaluated // count)), fit


def has_agents(prompts: Iterable[Prompt]) -> bool:
    """Return whether programs make rollouts of a prompt."""
    return any(AGENT in prompt.columns for prompt in prompts)


def episodes(
    text: TokenText, scoring: Scoring, environments: bool, agents: bool, share: int
) -> Callable[[Engine], Engine]:
    """Return a function that adds environments that reply, and programs of agents, to an engine.

    All engines share one pool and one set of endpoints; `share` is the number of engines that train.
    """
    wraps = [with_turns(text, scoring)] if environments else []
    if agents:
        from scalerl.training.engines.agents.engine import with_agents  # its server is an extra

        wraps.append(with_agents(text, share))
    return lambda engine: reduce(lambda inner, wrap: wrap(inner), wraps, engine)


MakeEngines = Callable[[Sequence[EngineSpec], Callable[[str], None]], Sequence[EnginePair]]
"""(specs, note) -> a training engine and an evaluation engine per spec; `note` receives messages for the user."""


def local_engines(specs: Sequence[EngineSpec], note: Callable[[str], None]) -> Sequence[EnginePair]:
    """Make one engine in this process, or several in separate processes that step together."""
    if len(specs) == 1:
        return [specs[0]()]
    processes = [EngineProcess(spec, spec.name, spec.place.environment) for spec in specs]
    return [EnginePair(*process.engines()) for process in processes]


def served_engines(
    specs: Sequence[EngineSpec], begin: Callable[[EngineSpec], EngineHandle], note: Callable[[str], None]
) -> Sequence[EnginePair]:
    """Make engines that run asynchronously and are restarted when they die; they start in parallel.

    Args:
        specs: Specifications, one per engine.
        begin: Function that starts an engine; called again after each death.
        note: Function that gets a message about every death.
    """
    restarters = [
        Restarter(partial(begin, spec), spec.name, spec.slots, spec.generator.placement, note, spec.channel.sending)
        for spec in specs
    ]
    return [restarter.pair() for restarter in restarters]
