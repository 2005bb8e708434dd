"""Assembly of a run: model, prompts, processes and restored state. The training loop is in loop.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scalerl.config import RunConfig
from scalerl.config.base import ConfigError, replace
from scalerl.config.hardware import Hardware
from scalerl.learn.custom import check_functions
from scalerl.loggers.base import Logger
from scalerl.loggers.build import makers_of
from scalerl.loggers.follow import Followers
from scalerl.models.layout import WeightLayout
from scalerl.models.loading import load_tokenizer
from scalerl.models.policy import Policy, check_vocabulary, stop_tokens
from scalerl.outputs import check_apart
from scalerl.prompts.dataset import PromptSplit, load_prompts
from scalerl.prompts.mixture import make_curriculum
from scalerl.rollouts.build import GeneratorSpec, ModelFacts
from scalerl.rollouts.interrupt import LengthRule, length_rule
from scalerl.rollouts.pipeline import Pipeline
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.serialization import from_plain
from scalerl.tasks.references import reference_notes
from scalerl.tasks.reward_check import check_rewards
from scalerl.tasks.sandbox.detect import sandbox_notes
from scalerl.tasks.scoring import ScoringService
from scalerl.training.backends import BACKENDS, Backend
from scalerl.training.checkpoint import CheckpointStore, load_plain, load_state, save_state
from scalerl.training.devices import devices_of
from scalerl.training.learner.base import Learner
from scalerl.training.learner.helpers import helpers_of
from scalerl.training.learner.policy_learner import batch_flops
from scalerl.training.learner.ranks import LearnerDied, LearnerGroup
from scalerl.training.learner.single import SingleLearner
from scalerl.training.manifest import finish_stamps
from scalerl.training.matmul import check_matmul, resolve_kernels, resolve_matmul, use_kernels
from scalerl.training.pinned import pinned
from scalerl.training.progress import Display, Progress
from scalerl.training.recovery import recorded
from scalerl.training.resumed import (
    check_unchanged,
    hours_of,
    overrule,
    sound_checkpoint,
    with_options,
)
from scalerl.training.run_dir import RunDirectory, check_empty, inputs_of
from scalerl.training.run_model import (
    LoadPolicy,
    check_length,
    check_sampled,
    load_of,
    model_path_of,
    needs_warm_start,
    revision_of,
    sent_weights,
    with_adapters,
)
from scalerl.training.session import Session
from scalerl.training.start_notes import length_notes, nucleus_notes
from scalerl.training.status import Heartbeat
from scalerl.training.stopwatch import Stopwatch


def resolve(config: RunConfig) -> RunConfig:
    """Replace every `auto` by the value for this machine, so that the saved configuration repeats the run elsewhere."""
    hardware = resolve_hardware(config.hardware)
    device = hardware.device
    ranks = config.placement.trainer_ranks
    if ranks > 1 and device == "cuda" and config.placement.backend == "local" and torch.cuda.device_count() < ranks:
        raise ConfigError(
            f"placement.trainer_ranks: got {ranks}, but torch sees {torch.cuda.device_count()} GPUs on this machine; "
            "allowed: a GPU for each rank, placement.backend = 'ray' for the GPUs of a cluster, or hardware.device = "
            "'cpu'"
        )
    rollouts = replace(config.rollouts, slots=config.slots)
    if config.lag_follows:
        rollouts = replace(rollouts, lag_ticks="follow")
    elif rollouts.lag_ticks == "auto" or not config.lag_is_used:
        rollouts = replace(rollouts, lag_ticks=replace(config, rollouts=rollouts).lag_ticks)
    config = replace(config, hardware=hardware, rollouts=rollouts)
    return replace(config, learner=replace(config.learner, micro_batch_tokens=config.micro_batch_tokens))


def resolve_hardware(hardware: Hardware) -> Hardware:
    """Replace every `auto` in the hardware settings by the value for this machine.

    Raises:
        ConfigError: A GPU is requested, but torch sees none.
    """
    device = hardware.device if hardware.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("hardware.device: got 'cuda', but torch sees no GPU here; allowed: cpu, auto")
    dtype = hardware.dtype if hardware.dtype != "auto" else "bfloat16" if device == "cuda" else "float32"
    half = max(1, (os.cpu_count() or 2) // 2)
    return replace(
        check_matmul(replace(hardware, device=device)),
        dtype=dtype,
        generator_threads=hardware.generator_threads or half,
        trainer_threads=hardware.trainer_threads or half,
    )


def start(config: RunConfig, path: Path, display: Display, stop_requested: Callable[[], bool]) -> Session:
    """Start a new run: check the configuration and its inputs, then start the generator.

    Raises:
        ConfigError: A check failed. The run directory is created only after all checks have passed.
    """
    config = pinned(resolve(config), display.note)
    check_empty(path)  # before the warm start, which takes minutes
    check_apart(path, inputs_of(config), "--run-dir")
    with ExitStack() as undo:
        return _assemble(config, path, display, stop_requested, undo, checkpoint=None)


def resume(
    path: Path,
    steps: int | None,
    display: Display,
    stop_requested: Callable[[], bool],
    options: Mapping[str, Any] | Sequence[str] = (),
) -> Session:
    """Resume a run from its last good checkpoint.

    Args:
        path: The run directory.
        steps: New total number of steps, to train beyond the old one; None keeps it.
        display: Display of the run.
        stop_requested: Function called while waiting; if it returns true, the run stops.
        options: Values for the few fields that a resume may change (resumed.py).

    Raises:
        ConfigError: There is no run, its configuration was changed, or an option would make it a different run.
    """
    directory, config = RunDirectory.resume(path)
    try:
        return _resume(directory, config, steps, options, display, stop_requested)
    except BaseException:
        directory.close()
        raise


def _resume(
    directory: RunDirectory,
    config: RunConfig,
    steps: int | None,
    options: Mapping[str, Any] | Sequence[str],
    display: Display,
    stop_requested: Callable[[], bool],
) -> Session:
    path = directory.path
    store = CheckpointStore(path / "checkpoints", config.checkpoint.keep)
    checkpoint = sound_checkpoint(directory, store, display.note)
    if checkpoint is not None:
        check_unchanged(config, checkpoint, path)
    saved, config = config, with_options(path, config, options, steps, checkpoint)
    if config != saved:
        directory.save_config(config)
    session = _assemble(config, path, display, stop_requested, ExitStack(), checkpoint, directory)
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
    undo: ExitStack,
    checkpoint: Path | None,
    directory: RunDirectory | None = None,
) -> Session:
    torch.set_num_threads(config.hardware.trainer_threads)
    use_kernels("torch")  # until the run's choice is known, so that a cached warm start does not depend on it
    check_functions(config.recipe)
    makers = makers_of(config)
    backend = BACKENDS[config.placement.backend](config)
    model_path, directory = _model_of(config, path, display, directory, undo)
    tokenizer = load_tokenizer(model_path, revision_of(config))
    prompts = load_prompts(config, tokenizer)
    scoring = ScoringService(backend.scorers(config), partial(tokenizer.batch_decode, skip_special_tokens=True))
    config = resolve_kernels(config, display.note, resumed=checkpoint is not None)
    config, policy = _policy(config, model_path, tokenizer, resumed=checkpoint is not None)
    rule = length_rule(config.recipe.length, lambda text: tokenizer.encode(text, add_special_tokens=False))
    check_length(policy, rule, prompts.longest)
    check_sampled(config, policy, model_path)
    # before the adapters, which the engines' model does not have
    model = ModelFacts(model_path, revision_of(config), policy.vocab_size, policy.sizes)
    policy = with_adapters(config, policy)
    notes = _notes(config, prompts, rule, resumed=checkpoint is not None)
    directory = _directory(config, path, directory, resumed=checkpoint is not None)
    undo.pop_all()  # all checks have passed
    _tell(notes, display)
    spec = GeneratorSpec(
        config=config,
        load_policy=LoadPolicy(config, model_path),
        longest_prompt=prompts.longest,
        rule=rule,
        stop=stop_tokens(policy, tokenizer),
        files=LoadState(checkpoint),
        model=model,
        run=path,
        make_engines=backend.make_engines,
    )
    channel = backend.channel(WeightLayout.of(sent_weights(config, policy)), path)
    session = Session(
        config=config,
        directory=directory,
        learner=_learner(config, model_path, policy, channel, backend, path),
        checkpoints=CheckpointStore.create(path / "checkpoints", config.checkpoint.keep),
        pipeline=Pipeline(spec, channel, scoring.submit, stop_requested, backend.launch),
        curriculum=make_curriculum(config, prompts.training),
        prompts=prompts,
        scoring=scoring,
        tokenizer=tokenizer,
        display=display,
        stop_requested=stop_requested,
        devices=devices_of(config),
    )
    return _begin(session, checkpoint, makers)


def _directory(config: RunConfig, path: Path, directory: RunDirectory | None, *, resumed: bool) -> RunDirectory:
    """Return the run directory with the resolved configuration; a warm start may have created it."""
    if directory is None:
        return RunDirectory.create(path, config)
    if not resumed:
        directory.save_config(config)
    return directory


def _policy(config: RunConfig, model_path: str, tokenizer: Any, *, resumed: bool) -> tuple[RunConfig, Policy]:
    """Load the model; with several ranks, this process only inspects it. Then choose the library for its products."""
    device = "cpu" if config.placement.trainer_ranks > 1 else config.hardware.device
    policy = load_of(config, model_path, device, config.hardware.trainer_matmul)
    check_vocabulary(tokenizer, policy, model_path)
    return resolve_matmul(config, policy, resumed=resumed), policy


def _model_of(
    config: RunConfig, path: Path, display: Display, directory: RunDirectory | None, undo: ExitStack
) -> tuple[str, RunDirectory | None]:
    """Return the path of the model, and the run directory if it exists.

    A warm start takes minutes, so it creates the directory of a new run, where others can follow it. `undo` removes
    the directory again if the start fails.
    """
    if not needs_warm_start(config):
        return model_path_of(config, display, lambda phase, message: None), directory
    if directory is None:
        directory = RunDirectory.create(path, config)
        undo.callback(directory.discard)
    with Heartbeat(path, phase="warm start") as beating:
        return model_path_of(config, display, beating.phase), directory


def _notes(config: RunConfig, prompts: PromptSplit, rule: LengthRule, *, resumed: bool) -> list[str]:
    """Return notes for the user before the first step; references are checked only when a run starts."""
    check_rewards(config, prompts.training)
    notes = [*prompts.notes, *length_notes(rule), *nucleus_notes(config.recipe.top_p), *sandbox_notes(config)]
    return notes if resumed else notes + reference_notes(config, (*prompts.training, *prompts.held_out))


def _tell(notes: Sequence[str], display: Display) -> None:
    for note in notes:
        display.note(note)


def _learner(
    config: RunConfig, model_path: str, policy: Policy, channel: WeightChannel, backend: Backend, run: Path
) -> Learner:
    """Return the learner: this process, which owns the policy from then on, or ranks, which use only its sizes."""
    placement, settings = config.placement, config.learner
    if placement.trainer_ranks == 1:
        return SingleLearner.of(
            policy,
            config.recipe,
            config.micro_batch_tokens,
            settings.gradient_checkpointing,
            packing=settings.packing,
            checkpoint_names=placement.engine == "vllm",
            helpers=helpers_of(config.hardware),
        )
    sizes, checkpointing = policy.sizes, settings.gradient_checkpointing
    try:
        return LearnerGroup(
            backend.start_ranks(config, model_path, [channel]),
            [channel],
            lambda batch: batch_flops(sizes, batch, checkpointing),
            step_timeout_s=placement.step_timeout_s,
            transfer_timeout_s=placement.transfer_timeout_s,
        )
    except LearnerDied as error:
        raise LearnerDied(recorded(error, run)) from None


def _begin(session: Session, checkpoint: Path | None, makers: Mapping[str, Callable[[], Logger]]) -> Session:
    """Start the generator, or resume it; then start the loggers."""
    if checkpoint is None:
        session.directory.rewind({})
        session.pipeline.start(session.learner.send, 0, session.initial_visits())
    else:
        _restore(session, checkpoint)
    resumed = None if checkpoint is None else session.progress.step
    session.followers = Followers(session.config, session.directory.path, makers, session.display.note, resumed)
    return session


def _restore(session: Session, checkpoint: Path) -> None:
    """Restore the trainer, and start the generator with the weights that were in use."""
    state = load_state(checkpoint, "trainer")
    session.progress = overrule(from_plain(Progress, state["progress"]), display=session.display)
    session.learner.load(checkpoint, session.progress.step)
    session.curriculum.load_state(state["curriculum"])
    session.clock = Stopwatch(3600.0 * hours_of(state) / session.devices.held)
    _tell(session.directory.rewind(state), session.display)
    session.points = session.directory.points()
    sampling = load_plain(checkpoint, "generator")["sampling_version"]
    if sampling == session.progress.step:
        session.pipeline.start(session.learner.send, sampling)
    else:  # within a round of PPO-off-policy, which samples with older weights
        weights = load_state(checkpoint, "round_weights")
        session.pipeline.start(lambda version, channel: channel.send(version, weights.items()), sampling)


@dataclass(frozen=True)
class LoadState:
    """Picklable object that reads and writes the generator's part of a checkpoint."""

    checkpoint: Path | None

    def load(self) -> Any:
        """Return the generator's part of the checkpoint to resume from; None for a new run."""
        return None if self.checkpoint is None else load_state(self.checkpoint, "generator")

    def save(self, path: Path, name: str, state: dict[str, Any]) -> None:
        """Write a part of a checkpoint with its digests, which another process adds to the manifest."""
        save_state(path, name, state)
        finish_stamps(path)
