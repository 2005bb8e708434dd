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

from scalerl.cluster.connect import cluster_gpus
from scalerl.cluster.devices import counted
from scalerl.config import RunConfig
from scalerl.config.base import replace
from scalerl.config.hardware import Hardware
from scalerl.config.placement import Placement
from scalerl.core.errors import ConfigError
from scalerl.core.outputs import check_apart
from scalerl.core.serialization import from_plain
from scalerl.learn.custom import check_functions
from scalerl.loggers.base import Logger, makers_of
from scalerl.loggers.follow import Followers
from scalerl.models.layout import WeightLayout
from scalerl.models.loading import load_tokenizer
from scalerl.models.policy import Policy, check_vocabulary, stop_tokens
from scalerl.prompts.dataset import PromptSplit, load_prompts
from scalerl.prompts.mixture import make_curriculum
from scalerl.rollouts.build import GeneratorSpec, ModelFacts
from scalerl.rollouts.interrupt import LengthRule, length_rule
from scalerl.rollouts.pipeline import Pipeline
from scalerl.rollouts.weights.base import WeightChannel
from scalerl.tasks.references import reference_notes
from scalerl.tasks.reward_check import check_rewards
from scalerl.tasks.sandbox.detect import sandbox_notes
from scalerl.tasks.scoring import ScoringService
from scalerl.training.backends import BACKENDS, Backend
from scalerl.training.checkpoint import CheckpointStore, load_plain, load_state, save_state
from scalerl.training.learner.base import Learner
from scalerl.training.learner.policy_learner import batch_flops
from scalerl.training.learner.ranks import LearnerDied, LearnerGroup, single_learner
from scalerl.training.manifest import finish_stamps
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
from scalerl.training.start_notes import arithmetic_notes, length_notes, nucleus_notes
from scalerl.training.status import Heartbeat
from scalerl.training.stopwatch import Stopwatch


def resolve(config: RunConfig) -> RunConfig:
    """Replace every `auto` by the value for this machine, so that the saved configuration repeats the run elsewhere."""
    hardware = resolve_hardware(config.hardware, config.placement)
    rollouts = replace(config.rollouts, slots=config.slots)
    if config.lag_follows:
        rollouts = replace(rollouts, lag_ticks="follow")
    elif rollouts.lag_ticks == "auto" or not config.lag_is_used:
        rollouts = replace(rollouts, lag_ticks=replace(config, rollouts=rollouts).lag_ticks)
    config = replace(config, hardware=hardware, rollouts=rollouts)
    return replace(config, learner=replace(config.learner, micro_batch_tokens=config.micro_batch_tokens))


def resolve_hardware(hardware: Hardware, placement: Placement | None = None) -> Hardware:
    """Replace every `auto` in the hardware settings by the value for this machine, or for a cluster.

    Args:
        hardware: The settings.
        placement: Placement of a run's processes; None: this process computes everything.

    Raises:
        ConfigError: A GPU is requested, but there is none; or the cluster does not answer.
    """
    device, where = hardware.device, "torch sees no GPU here"
    if device != "cpu":
        gpus = torch.cuda.is_available()
        if placement and placement.backend == "ray":  # the trainer and the engines are elsewhere
            gpus, where = cluster_gpus(placement.ray_address) > 0, "the Ray cluster has no GPU"
        if device == "cuda" and not gpus:
            raise ConfigError(f"hardware.device: got 'cuda', but {where}; allowed: cpu, auto")
        device = "cuda" if gpus else "cpu"
    dtype = hardware.dtype if hardware.dtype != "auto" else "bfloat16" if device == "cuda" else "float32"
    half = max(1, (os.cpu_count() or 2) // 2)
    return replace(
        hardware,
        device=device,
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
    check_functions(config.recipe)
    makers = makers_of(config)
    backend = BACKENDS[config.placement.backend](config)
    model_path, directory = _model_of(config, path, display, directory, undo)
    tokenizer = load_tokenizer(model_path, revision_of(config))
    prompts = load_prompts(config, tokenizer)
    scoring = ScoringService(backend.scorers(config), partial(tokenizer.batch_decode, skip_special_tokens=True))
    policy = _policy(config, model_path, tokenizer)
    rule = length_rule(config.recipe.length, lambda text: tokenizer.encode(text, add_special_tokens=False))
    check_length(policy, rule, prompts.longest)
    check_sampled(config, policy, model_path)
    # before the adapters, which the engines' model does not have
    model = ModelFacts(model_path, revision_of(config), policy.vocab_size, policy.sizes)
    policy = with_adapters(config, policy)
    before = "" if checkpoint is None else load_plain(checkpoint, "trainer")["arithmetic"]
    notes = _notes(config, prompts, rule, resumed=checkpoint is not None)
    notes += arithmetic_notes(config.hardware, before)
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
        devices=backend.devices,
    )
    channel = backend.channel(WeightLayout.of(sent_weights(config, policy)), path)
    learner = _learner(config, model_path, policy, channel, backend, path)
    session = Session(
        config=config,
        directory=directory,
        learner=learner,
        checkpoints=CheckpointStore.create(path / "checkpoints", config.checkpoint.keep),
        pipeline=Pipeline(spec, channel, scoring.submit, stop_requested, backend.launch, learner.watch),
        curriculum=make_curriculum(config, prompts.training),
        prompts=prompts,
        scoring=scoring,
        tokenizer=tokenizer,
        display=display,
        stop_requested=stop_requested,
        devices=counted(backend.devices),
    )
    return _begin(session, checkpoint, makers)


def _directory(config: RunConfig, path: Path, directory: RunDirectory | None, *, resumed: bool) -> RunDirectory:
    """Return the run directory with the resolved configuration; a warm start may have created it."""
    if directory is None:
        return RunDirectory.create(path, config)
    if not resumed:
        directory.save_config(config)
    return directory


def _policy(config: RunConfig, model_path: str, tokenizer: Any) -> Policy:
    """Load the model, which this process only inspects if others train."""
    policy = load_of(config, model_path, config.loop_device)
    check_vocabulary(tokenizer, policy, model_path)
    return policy


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
    if config.trains_in_loop:
        return single_learner(config, policy)
    placement, sizes, checkpointing = config.placement, policy.sizes, config.learner.gradient_checkpointing
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
