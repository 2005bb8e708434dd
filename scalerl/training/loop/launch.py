"""Assembly of a run: model, prompts, processes and restored state. The training loop is in loop.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scalerl.core.rows import read_rows
from scalerl.core.run_files import EVENTS, METRICS
from scalerl.core.serialization import from_plain
from scalerl.core.types import Prompt
from scalerl.training.config import HuggingFaceModel, RunConfig
from scalerl.training.config.base import chosen
from scalerl.training.config.overrides import plain_values
from scalerl.training.config.run import Checkpointing
from scalerl.training.config.trust import code_of
from scalerl.training.engines.channels import CHANNELS, evaluation_channel
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.pipeline import Pipeline
from scalerl.training.engines.schedule import first_visits
from scalerl.training.engines.turns import check_replies
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.base import Learner, LearnerSpec
from scalerl.training.learner.checkpoint import CheckpointStore, load_plain, load_state, references
from scalerl.training.learner.ranks import LearnerDied, LearnerGroup, single_learner
from scalerl.training.loop.backends import BACKENDS, Backend
from scalerl.training.loop.display import RunDisplay
from scalerl.training.loop.evaluation_process import evaluation_process
from scalerl.training.loop.evaluator import Evaluator, HeldOut, Snapshot, saved_weights
from scalerl.training.loop.inputs import (
    check_model,
    check_prompts,
    code_inputs,
    code_notes,
    model_inputs,
    prompt_inputs,
)
from scalerl.training.loop.progress import Progress, RunCompute, Stopwatch
from scalerl.training.loop.records import Records
from scalerl.training.loop.resolve import (
    Inputs,
    Placed,
    arithmetic_notes,
    dated,
    length_notes,
    pinned,
    place_processes,
    resolve,
)
from scalerl.training.loop.run import Run, draw_first
from scalerl.training.loop.run_dir import RunDirectory, recorded
from scalerl.training.loop.run_info import default_axis, run_info
from scalerl.training.loop.run_model import (
    check_length,
    check_sampled,
    generator_spec,
    known_sizes,
    model_path_of,
)
from scalerl.training.loop.saved import Saved, checkpoint_of, continued_config, overrule, sound_checkpoint
from scalerl.training.loop.warnings import KEPT_ROWS, RunWarnings
from scalerl.training.machines.doctor import host_notes
from scalerl.training.machines.memory import check_disk
from scalerl.training.machines.sizing import cure, memory_here
from scalerl.training.models.build import PolicySpec, sent_weights
from scalerl.training.models.loading import end_tokens, load_tokenizer
from scalerl.training.models.policy import Policy, check_vocabulary, stop_tokens
from scalerl.training.models.sizes import SizedModel
from scalerl.training.models.text import TokenText
from scalerl.training.models.weights import WeightLayout
from scalerl.training.placement.choices import loop_device, policy_spec
from scalerl.training.placement.devices import devices_held
from scalerl.training.prompts.curriculum import make_curriculum
from scalerl.training.prompts.dataset import PromptSplit, load_prompts
from scalerl.training.recipe.custom import check_functions
from scalerl.training.rewards.checks import (
    check_rewards,
    containment_notes,
    reference_notes,
    repetition_notes,
    sandbox_notes,
)
from scalerl.training.rewards.scoring import ScoringService
from scalerl.training.trackers.base import Logger, makers_of
from scalerl.training.trackers.follow import Followers


def start(config: RunConfig, path: Path, display: RunDisplay, stop_requested: Callable[[], bool]) -> Run:
    """Start a new run: check the configuration and its inputs, then start the generator.

    Raises:
        ConfigError: A check failed. Nothing remains in the run directory.
    """
    placed = place_processes(config)
    placed = dataclasses.replace(placed, config=pinned(placed.config, display.note))
    makers = makers_of(placed.config.loggers)
    directory = RunDirectory.create(path, placed.config)
    with directory.discarded_on_error(), ExitStack() as opened:
        run = _assemble(directory, placed, None, display, stop_requested)
        opened.callback(run.close)
        _begin(run, makers)
        opened.pop_all()
    return run


def resume(
    path: Path,
    steps: int | None,
    display: RunDisplay,
    stop_requested: Callable[[], bool],
    options: Mapping[str, Any] | Sequence[str] = (),
    from_step: int | None = None,
) -> Run:
    """Resume a run from its last good checkpoint, or from an earlier one.

    Args:
        path: The run directory.
        steps: New total number of steps, to train beyond the old one; None keeps it.
        display: RunDisplay of the run.
        stop_requested: Function called while waiting; if it returns true, the run stops.
        options: Values for the few fields that a resume may change (saved.py).
        from_step: Step of the checkpoint to which the run goes back; later checkpoints and rows are removed. None: the
            last one.

    Raises:
        ConfigError: There is no run, its configuration was changed, or an option would make it a different run.
    """
    directory = RunDirectory.resume(path)
    with directory.discarded_on_error():  # closes it; a run that existed before keeps its files
        config, store = directory.config, store_of(directory.config.checkpoint, path)
        if from_step is None:
            saved = sound_checkpoint(directory, store, display.note)
        else:
            saved = checkpoint_of(directory, store, from_step)
        placed = place_processes(continued_config(path, config, options, steps, saved))
        makers = makers_of(placed.config.loggers)
        run = _assemble(directory, placed, saved, display, stop_requested)
        if directory.config != config:
            directory.save_config(directory.config)
        if saved is None:
            _begin(run, makers)
            display.note("no checkpoint yet: starting over from step 0")
        else:
            _continue(run, saved, makers)
            words = "" if from_step is None else "; later checkpoints and rows were removed"
            display.note(f"resumed at step {run.progress.step}{words}")
            display.point(run.records.points)
    return run


def _assemble(
    directory: RunDirectory,
    placed: Placed,
    saved: Saved | None,
    display: RunDisplay,
    stop_requested: Callable[[], bool],
) -> Run:
    """Check the inputs of a run, then make its objects; the generator is not started yet."""
    path, state = directory.path, saved.trainer if saved else {}
    display.belongs_to(path)
    torch.set_num_threads(chosen(placed.config.hardware.trainer_threads))
    check_functions(placed.config.recipe)
    backend = BACKENDS[placed.config.placement.backend](placed)

    inputs, model, loaded = _read(placed.config, path, saved is not None, display.note)
    assert inputs.prompts is not None  # only a plan has none
    prompts, tokenizer = inputs.prompts, inputs.tokenizer
    digests: dict[str, Any] = {"prompts": prompt_inputs(prompts)}
    if state:
        check_prompts(state["inputs"]["prompts"], digests["prompts"], prompts, path)
    written = sum(file.stat().st_size for file in path.glob("checkpoints/**/*") if file.is_file())
    resolved = resolve(inputs)
    check_disk(resolved.sizes, path, written)
    assert resolved.rule is not None
    config, sizes, rule = resolved.config, resolved.sizes, resolved.rule
    device = loop_device(config)
    if saved is None:
        directory.save_config(config)
    directory.config = config

    policy = loaded if loaded is not None else model.load(device)
    check_vocabulary(tokenizer, policy, model.path)
    stop = stop_tokens(policy, tokenizer)
    digests |= {"model": model_inputs(model, policy, tokenizer, prompts, reference=config.recipe.kl_coefficient > 0)}
    digests |= {"code": code_inputs(code_of(config))}
    if state:
        check_model(state["inputs"]["model"], digests["model"], model.path, path)
    check_length(policy, rule, sizes.longest_prompt)
    check_sampled(config.placement, config.recipe, sizes.schedule, device, model, policy)

    text = TokenText(tokenizer, stop)
    scoring = ScoringService(backend.scorers(config.data, config.scoring), text.judged)
    check_replies(prompts.all_prompts, tokenizer, config.scoring)
    notes = [*placed.notes, *_notes(config, prompts, rule, state)]
    notes += code_notes(state["inputs"].get("code", {}), digests["code"]) if state else []

    load_saved = partial(load_state, saved.path, "generator", _in_flight(saved.path, prompts)) if saved else None
    parts = {"make_engines": backend.make_engines, "devices": placed.devices, "load_state": load_saved}
    parts |= {"environments": resolved.environments, "agents": resolved.agents}
    spec = generator_spec(sizes, config.scoring, model, policy, rule, stop, path, **parts)
    policy = model.adapted(policy)
    display.configured(config)
    for note in [*resolved.lines, *notes]:
        display.note(note)

    less = cure(sizes.slots, config.placement.engines)
    layout = WeightLayout.of(sent_weights(policy, model.sent))
    channels, evaluator = [CHANNELS[sizes.channel](layout, path, config.placement, config.lora)], None
    held_out = HeldOut.of(config.evaluation, config.data, prompts.held_out)
    if config.evaluation.overlap:
        channels.append(evaluation_channel(sizes.channel, layout, path, config.lora))
        process = evaluation_process(spec, config.data, channels[1], held_out)
        evaluator = Evaluator(partial(backend.launch_evaluator, process, cure=less), channels[1], display.note)
    ranks = config.placement.trainer_ranks
    settings = LearnerSpec(model, config.recipe, config.learner, config.hardware, config.placement, ranks=ranks)
    learner = _learner(settings, policy if sizes.in_loop else None, channels, backend, path)
    launch = partial(backend.launch, cure=less)
    pipeline = Pipeline(spec, channels[0], scoring.submit, stop_requested, launch, learner.watch)

    devices = devices_held(placed.devices)
    judge = RunWarnings(config.recipe, sizes.slots, config.main_tasks, default_axis(config))
    return Run(
        config=config,
        first_visits=first_visits(sizes),
        sizes=policy.sizes,
        text=text,
        held_out=held_out,
        curriculum=make_curriculum(config.data, prompts.training, config.seed, config.recipe.retire_pass_rate),
        scoring=scoring,
        pipeline=pipeline,
        learner=learner,
        progress=overrule(from_plain(Progress, state["progress"]), display) if state else Progress(),
        compute=RunCompute(Stopwatch(3600.0 * state.get("device_hours", 0.0) / devices.held), devices, pipeline),
        records=Records(directory, display, judge),
        store=store_of(config.checkpoint, path),
        inputs=digests,
        stop_requested=stop_requested,
        evaluator=evaluator,
    )


def store_of(settings: Checkpointing, path: Path) -> CheckpointStore:
    """Return the checkpoints of a run, kept as its settings say."""
    return CheckpointStore(path / "checkpoints", settings.keep, settings.keep_every)


def _read(
    config: RunConfig, run: Path, begun: bool, note: Callable[[str], None]
) -> tuple[Inputs, PolicySpec, Policy | None]:
    """Read the model's directory and the prompts; return them, and the model if only that tells its sizes.

    The lab's model is warm-started first.
    """
    threads = chosen(config.hardware.trainer_threads) + chosen(config.hardware.generator_threads)
    model = policy_spec(config, model_path_of(config.model, config.data, threads, run, note))
    tokenizer = load_tokenizer(model.path, model.revision)
    if not begun:
        config = dated(config, tokenizer, note)
    named = isinstance(config.model, HuggingFaceModel)
    prompts = load_prompts(config, tokenizer, end_tokens(model.path, model.revision, tokenizer) if named else ())
    sizes, loaded = known_sizes(config.model), None
    if sizes is None:
        loaded = model.load(loop_device(config))
        sizes = loaded.sizes
    machine = memory_here(config.hardware, config.placement)
    return Inputs(config, SizedModel(sizes, model.path), machine, tokenizer, prompts, begun), model, loaded


def _in_flight(checkpoint: Path, prompts: PromptSplit) -> dict[tuple[str, str], Prompt]:
    """Return the prompts that the generator's part of a checkpoint refers to, as their rows are now."""
    by_reference = {prompt.reference: prompt for prompt in prompts.training}
    return {one: by_reference[one] for one in set(references(load_plain(checkpoint, "generator")))}


def _notes(config: RunConfig, prompts: PromptSplit, rule: LengthRule, state: Mapping[str, Any]) -> list[str]:
    """Return the notes of checks that are printed before a run; a new run has no state. Raises as the checks."""
    tasks, scoring, all_prompts = config.data, config.scoring, prompts.all_prompts
    repeated = check_rewards(tasks, scoring, prompts.training, repetitions=not state)
    notes = [*prompts.notes, *length_notes(rule), *sandbox_notes(tasks, scoring.sandbox, all_prompts)]
    notes += containment_notes(all_prompts)
    if not state:  # a resumed run has passed this check when it started
        notes += [*reference_notes(tasks, scoring, all_prompts), *repetition_notes(tasks, scoring, all_prompts)]
    arithmetic = arithmetic_notes(config.hardware, state.get("arithmetic", ""))
    return [*notes, *host_notes(config), *arithmetic, *repeated]


def _learner(
    spec: LearnerSpec, policy: Policy | None, channels: Sequence[WeightChannel], backend: Backend, run: Path
) -> Learner:
    """Return the learner: this process, which owns the policy from then on, or ranks, which load their own."""
    if policy is not None:
        return single_learner(spec, policy)
    try:
        return LearnerGroup(
            backend.start_ranks(spec, channels),
            channels,
            step_timeout_s=spec.placement.step_timeout_s,
            transfer_timeout_s=spec.placement.transfer_timeout_s,
        )
    except LearnerDied as error:
        raise LearnerDied(recorded(error, run)) from None


def _begin(run: Run, makers: Mapping[str, Callable[[], Logger]]) -> None:
    """Start the generator and the loggers of a run without a checkpoint."""
    directory = run.records.directory
    run.store.directory.mkdir(exist_ok=True)
    directory.rewind({})
    run.records.explain(0, run.learner.notes())
    run.pipeline.start(run.learner.send, 0, draw_first(run))
    if run.evaluator is not None:
        run.evaluator.start()
    run.records.followers = _followers(run, makers)


def _continue(run: Run, saved: Saved, makers: Mapping[str, Callable[[], Logger]]) -> None:
    """Restore learner, curriculum and rows; start the generator with the weights in use, and the loggers."""
    checkpoint, state = saved.path, saved.trainer
    directory, display, step = run.records.directory, run.records.display, run.progress.step
    run.learner.load(checkpoint, step)
    run.curriculum.load_state(state["curriculum"])
    run.scoring.load_state(state["scoring"])
    went_back = run.store.remove_after(step)  # before their rows
    for note in directory.rewind(state):
        display.note(note)
    run.records.points = directory.points()
    rows, events = (read_rows(directory.path / name) for name in (METRICS, EVENTS))
    run.records.warnings.go_on(rows[-KEPT_ROWS:], events)
    run.records.explain(step, run.learner.notes(), events)
    sampling = load_plain(checkpoint, "generator")["sampling_version"]
    if sampling == step:
        run.pipeline.start(run.learner.send, sampling)
    else:  # within a round of PPO-off-policy, which samples with older weights
        weights = load_state(checkpoint, "round_weights")
        run.pipeline.start(lambda version, channel: channel.send(version, weights.items()), sampling)
    if run.evaluator is not None:
        run.evaluator.start()
        if state.get("evaluating"):
            snapshot = from_plain(Snapshot, state["evaluating"])
            run.evaluator.begin(snapshot, run.learner.send if snapshot.step == step else saved_weights(checkpoint))
    run.records.followers = _followers(run, makers, step, went_back)


def _followers(
    run: Run, makers: Mapping[str, Callable[[], Logger]], resumed_step: int | None = None, went_back: bool = False
) -> Followers:
    """Start the loggers; arguments as for `Followers`."""
    settings, records = plain_values(run.config, mode="json"), run.records
    path, note = records.directory.path, records.display.note
    return Followers(settings, run_info(run.config), path, makers, note, resumed_step, went_back)
