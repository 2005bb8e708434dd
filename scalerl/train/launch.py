"""Puts a run together: model, prompts, processes, restored state. The loop itself is in loop.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scalerl.config import HuggingFaceModel, RunConfig, TinyModel, parse_config, to_toml
from scalerl.config.base import ConfigError, replace
from scalerl.config.data import PromptFile
from scalerl.models.policy import Policy, WeightLayout, check_vocabulary, load_policy, load_tokenizer
from scalerl.prompts.dataset import load_prompts
from scalerl.prompts.mixture import make_curriculum
from scalerl.rollouts.coordinator import Generator
from scalerl.rollouts.engine import Sampling
from scalerl.rollouts.interrupt import LengthRule, length_rule
from scalerl.rollouts.local.slot_engine import SlotEngine
from scalerl.rollouts.local.torch_engine import check_engine, torch_engine
from scalerl.rollouts.pipeline import Pipeline
from scalerl.rollouts.schedule import Schedule
from scalerl.rollouts.worker import WorkerParts
from scalerl.serialization import from_plain
from scalerl.tasks.scoring import make_scorer
from scalerl.train.checkpoint import CheckpointStore, load_plain, load_state, save_state
from scalerl.train.learner.single import Learner
from scalerl.train.run_dir import RunDirectory, check_empty
from scalerl.train.session import Display, Progress, Session
from scalerl.train.stopwatch import Stopwatch
from scalerl.train.warm_start import warm_start, warm_start_directory


def resolve(config: RunConfig) -> RunConfig:
    """Replace every `auto` by what this machine has, so that the saved configuration repeats the run elsewhere too."""
    hardware = config.hardware
    device = hardware.device if hardware.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("hardware.device: got 'cuda', but torch sees no GPU here; allowed: cpu, auto")
    dtype = hardware.dtype if hardware.dtype != "auto" else "bfloat16" if device == "cuda" else "float32"
    half = max(1, (os.cpu_count() or 2) // 2)
    hardware = replace(
        hardware,
        device=device,
        dtype=dtype,
        generator_threads=hardware.generator_threads or half,
        trainer_threads=hardware.trainer_threads or half,
    )
    return replace(config, hardware=hardware, rollouts=replace(config.rollouts, slots=config.slots))


def start(config: RunConfig, path: Path, display: Display, stop_requested: Callable[[], bool]) -> Session:
    """Start a new run: check everything a user can get wrong, then start the generator.

    Raises:
        ConfigError: see the parts; the run directory is only made when all checks have passed.
    """
    config = resolve(config)
    check_empty(path)  # before the warm start, which takes minutes
    return _assemble(config, path, display, stop_requested, checkpoint=None)


def resume(path: Path, steps: int | None, display: Display, stop_requested: Callable[[], bool]) -> Session:
    """Go on with a run from its last good checkpoint.

    Args:
        path: run directory.
        steps: a new total number of steps, to train on beyond the old one; None keeps it.
        display: shows the run.
        stop_requested: asked while waiting.

    Raises:
        ConfigError: no run there, or its configuration was changed.
    """
    directory, config = RunDirectory.resume(path)
    checkpoint = CheckpointStore(path / "checkpoints", config.checkpoint.keep).latest()
    if checkpoint is not None:
        _check_unchanged(config, checkpoint, path)
    if steps is not None:
        config = replace(config, steps=steps)
        directory.save_config(config)
    session = _assemble(config, path, display, stop_requested, checkpoint, directory)
    if checkpoint is None:
        display.note("no checkpoint yet: starting over from step 0")
    else:
        display.note(f"resumed at step {session.progress.step}")
        display.point(session.points)
    return session


def _assemble(
    config: RunConfig,
    path: Path,
    display: Display,
    stop_requested: Callable[[], bool],
    checkpoint: Path | None,
    directory: RunDirectory | None = None,
) -> Session:
    torch.set_num_threads(config.hardware.trainer_threads)
    model_path = _model_path(config, display)
    tokenizer = load_tokenizer(model_path, _revision(config))
    prompts = load_prompts(config, tokenizer)
    scorer = make_scorer(config)
    policy = _load(config, model_path)
    check_vocabulary(tokenizer, policy, model_path)
    rule = length_rule(config.recipe.length, lambda text: tokenizer.encode(text, add_special_tokens=False))
    _check_length(policy, rule, prompts.longest)
    check_engine(policy)
    directory = directory or RunDirectory.create(path, config)
    for note in (*prompts.notes, *_length_notes(rule)):
        display.note(note)
    spec = GeneratorSpec(config, model_path, prompts.longest, rule, _stop_tokens(policy, tokenizer), checkpoint)
    recipe = config.recipe
    session = Session(
        config=config,
        directory=directory,
        checkpoints=CheckpointStore(path / "checkpoints", config.checkpoint.keep),
        pipeline=Pipeline(spec, WeightLayout.of(policy).total, stop_requested),
        learner=Learner(policy, recipe.optimizer, recipe.temperature, config.learner.gradient_checkpointing),
        curriculum=make_curriculum(config, prompts.training),
        prompts=prompts,
        scorer=scorer,
        tokenizer=tokenizer,
        evaluation_engine=spec.engine(policy, len(prompts.held_out) * config.evaluation.samples),
        display=display,
        stop_requested=stop_requested,
    )
    visits = () if checkpoint else session.initial_visits()
    if checkpoint:
        _restore(session, checkpoint)
    else:
        directory.rewind({})
    session.pipeline.start(session.write_weights(), session.progress.step, visits)
    return session


def _restore(session: Session, checkpoint: Path) -> None:
    state = load_state(checkpoint, "trainer")
    session.progress = from_plain(Progress, state["progress"])
    session.learner.load_tensors(state["learner"], session.progress.step)
    session.curriculum.load_state(state["curriculum"])
    session.clock = Stopwatch(state["training_s"])
    session.directory.rewind(state["cursors"])
    session.points = session.directory.points()


def _check_unchanged(config: RunConfig, checkpoint: Path, path: Path) -> None:
    """Refuse to go on under another configuration than the checkpoint was made with; more steps are allowed."""
    before = parse_config(load_plain(checkpoint, "trainer")["config"], f"{checkpoint}/trainer.json")
    free = {"steps": before.steps, "checkpoint": before.checkpoint}
    if replace(config, **free) == before:
        return
    old, new = to_toml(before).splitlines(), to_toml(replace(config, **free)).splitlines()
    changed = [f"{line!r} instead of {was!r}" for was, line in zip(old, new, strict=False) if was != line]
    raise ConfigError(
        f"{path / 'config.toml'} was changed since the run was checkpointed: "
        f"{'; '.join(changed[:5]) or 'sections differ'}. "
        "Put it back to resume, or start a new run with `scalerl train CONFIG.toml`"
    )


def _model_path(config: RunConfig, display: Display) -> str:
    if isinstance(config.model, HuggingFaceModel):
        return config.model.path
    assert isinstance(config.model, TinyModel) and not isinstance(config.data, PromptFile)
    directory = warm_start_directory(config.model, config.data)
    if not (directory / "warm_start.json").exists():
        display.note(f"warm start: training a tiny Qwen3 on noisy traces (once; kept in {directory})")
        torch.set_num_threads(config.hardware.trainer_threads + config.hardware.generator_threads)
    path = warm_start(config.model, config.data, directory, lambda row: display.note(_warm_line(row)))
    torch.set_num_threads(config.hardware.trainer_threads)
    return str(path)


def _warm_line(row: dict[str, float]) -> str:
    return "  warm start " + "  ".join(f"{name} {value:g}" for name, value in row.items())


def _revision(config: RunConfig) -> str:
    return config.model.revision if isinstance(config.model, HuggingFaceModel) else "main"


def _load(config: RunConfig, model_path: str) -> Policy:
    hardware = config.hardware
    return load_policy(
        model_path,
        revision=_revision(config),
        device=hardware.device,
        dtype=hardware.dtype,
        fp32_head=config.recipe.fp32_head,
    )


def _check_length(policy: Policy, rule: LengthRule, longest_prompt: int) -> None:
    limit = getattr(policy.config, "max_position_embeddings", None)
    needed = longest_prompt + rule.capacity
    if limit is not None and needed > limit:
        raise ConfigError(
            f"recipe.length: the longest prompt ({longest_prompt} tokens) and completion ({rule.capacity}) need "
            f"{needed} positions; this model has {limit}. Lower recipe.length's limits or data.max_prompt_tokens"
        )


def _length_notes(rule: LengthRule) -> list[str]:
    if len(rule.end_tag) <= 1:
        return []
    return [
        f"the end-of-thinking tag is {len(rule.end_tag)} tokens in this vocabulary; where the model writes it with "
        "other tokens the end goes unnoticed and the phrase is written after it. A single added token avoids that"
    ]


def _stop_tokens(policy: Policy, tokenizer: Any) -> tuple[int, ...]:
    """Return every id that ends a sequence, by the model's generation settings and by its tokenizer."""
    eos = policy.model.generation_config.eos_token_id
    ids = set(eos if isinstance(eos, list) else [eos]) | {tokenizer.eos_token_id}
    return tuple(sorted(i for i in ids if i is not None))


@dataclass(frozen=True)
class GeneratorSpec:
    """How to make the generator inside its own process; handed over by pickling."""

    config: RunConfig
    model_path: str
    longest_prompt: int
    rule: LengthRule
    stop: tuple[int, ...]
    checkpoint: Path | None = None

    def __call__(self) -> WorkerParts:
        """Load the model and restore the state, in the generator's process."""
        config, recipe = self.config, self.config.recipe
        torch.set_num_threads(config.hardware.generator_threads)
        policy = _load(config, self.model_path)
        schedule = Schedule(
            recipe.off_policy,
            recipe.prompts_per_step,
            config.rollouts.lag_ticks,
            eager=config.rollouts.schedule == "eager",
        )
        training = self.engine(policy, config.slots)
        generator = Generator(training, schedule, recipe.generations_per_prompt, config.seed)
        weights = None
        if self.checkpoint is not None:
            state = load_state(self.checkpoint, "generator")
            generator.load_state(state)
            weights = state.get("weights")
        held_out = len(config.tasks) * config.evaluation.prompts
        evaluation = self.engine(policy, held_out // 2 * config.evaluation.samples)
        return WorkerParts(generator, evaluation, config.seed, _save_generator, weights)

    def engine(self, policy: Policy, sequences: int) -> SlotEngine:
        """Make an engine for at most `sequences` at once, and at most the configured slots."""
        recipe, rollouts = self.config.recipe, self.config.rollouts
        return torch_engine(
            policy,
            slots=max(1, min(sequences, self.config.slots)),
            prompt_tokens=self.longest_prompt,
            rule=self.rule,
            sampling=Sampling(recipe.temperature, recipe.top_p, self.stop),
            refill=rollouts.refill,
        )


def _save_generator(path: Path, state: dict[str, Any]) -> None:
    save_state(path, "generator", state)
