"""The trainer's part of a checkpoint: when it is written, and what a resume takes over from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError, short
from scalerl.core.manifest import Damaged, check_files
from scalerl.core.run_files import held_out_rates
from scalerl.core.serialization import leaves, to_plain
from scalerl.training.config import RunConfig, by_name, parse_config, read_config, to_toml
from scalerl.training.config.base import MOST_LISTED, replace
from scalerl.training.config.recipe import LaterRate
from scalerl.training.learner.base import BadGradient
from scalerl.training.learner.batch import TrainBatch
from scalerl.training.learner.checkpoint import TRAINER_FORMAT, WRITTEN_NAME, CheckpointStore, load_state, save_state
from scalerl.training.loop.display import RunDisplay
from scalerl.training.loop.progress import Progress, TrainingFailed
from scalerl.training.loop.resolve import arithmetic
from scalerl.training.loop.run import Run
from scalerl.training.loop.run_dir import RunDirectory


def save_if_due(run: Run) -> None:
    """Start a checkpoint after so many steps or minutes, and at the end, and commit those that are complete."""
    minutes, now = run.config.checkpoint.every_minutes, time.monotonic()
    if run.is_due(run.config.checkpoint.every) or (minutes and now - run.saved_at >= 60.0 * minutes):
        run.saved_at = now
        run.records.phase("saving")
        save(run)
        run.records.phase("training")
    commit(run)


def save(run: Run) -> None:
    """Begin the trainer's part of a checkpoint and request the generator's; both are needed to commit it.

    The weights are written while training goes on, those of one checkpoint at a time.

    Raises:
        TrainingFailed: A weight is not finite.
        OSError: From the last checkpoint, which could not be written.
    """
    directory, step, clock = run.records.directory, run.progress.step, run.compute.clock
    with clock.paused():
        run.pipeline.mark()
        for saving in run.saves.values():
            saving.result()
        path = run.store.begin(step)
        try:
            run.saves[step] = run.learner.begin_save(path)
        except BadGradient as error:
            raise failure(run, error) from None
        under_way = run.evaluator.under_way if run.evaluator else None
        if run.evaluator and under_way and under_way.step != step:
            run.saves[step] = run.evaluator.save_with(run.saves[step], path)
        clock.add(run.compute.generated_s())
        cursors = directory.cursors()
        state = {
            "format": TRAINER_FORMAT,
            "config": to_toml(directory.config),
            "progress": to_plain(run.progress),
            "curriculum": run.curriculum.state(),
            "scoring": run.scoring.state(),
            "device_hours": run.compute.device_hours,
            "arithmetic": arithmetic(directory.config.hardware.device),
            "cursors": cursors,
            "row_digests": directory.row_digests(cursors),
            "inputs": run.inputs,
            "evaluating": to_plain(under_way) if under_way else None,  # a resume evaluates these weights again
        }
        save_state(path, "trainer", state)
        run.pipeline.snapshot(step, path)


def commit(run: Run, wait: bool = False) -> None:
    """Commit the checkpoints whose parts are complete; with `wait`, wait for all that were started.

    Raises:
        OSError: The learner's part could not be written; the last checkpoint is whole.
    """
    missing = run.saves.keys() - run.saved_by_generator
    run.saved_by_generator.update(run.pipeline.snapshots_done(missing if wait else ()))
    done = sorted(step for step in run.saved_by_generator if wait or run.saves[step].done())
    if not done:
        return
    with run.compute.clock.paused():  # digesting and syncing a large checkpoint takes seconds
        if not wait:  # with `wait` the run is about to end, and its generator may have ended
            run.pipeline.mark()
        rates = held_out_rates(run.records.points, run.records.directory.config.main_tasks)
        under_way = run.evaluator.under_way if run.evaluator else None
        for step in done:
            run.saved_by_generator.discard(step)
            run.saves.pop(step).result()
            run.store.commit(step, rates, under_way.step if under_way else None)
        if not wait:
            run.compute.clock.add(run.compute.generated_s())


def failure(run: Run, error: BadGradient, batch: TrainBatch | None = None) -> TrainingFailed:
    """Return the error that ends a run whose loss, gradient or weights are not finite.

    Args:
        run: The run.
        error: The reason.
        batch: Batch of the failed update, which is saved; None if the weights are not finite.
    """
    path, step = run.records.directory.path, run.progress.step
    where = f"step {step}: {error}"
    if batch:
        directory = path / "bad_batch"
        save_state(directory, f"step_{step:06d}", _by_name(batch))
        where = f"step {step + 1}: {error}. The batch is saved in {directory}"
    commit(run, wait=True)
    optimizer = run.config.recipe.optimizer
    lower = optimizer.rate(max(step, optimizer.warmup_steps)) / 2
    steps = run.store.steps()
    earlier = f"go back to an earlier checkpoint with --from-step {steps[-2]}" if steps[1:] else "check the model"
    return TrainingFailed(
        f"{where}; the last good checkpoint is {run.store.latest() or 'none, so a resume starts at step 0'}. The "
        f"usual remedy is a lower learning rate: scalerl resume {path} --recipe.optimizer.learning_rate "
        f"{lower:.3g}. If it fails again, {earlier}"
    )


def _by_name(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name, and those of the records that it contains."""
    values = {part.name: getattr(record, part.name) for part in fields(record)}
    return {name: _by_name(value) if is_dataclass(value) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint with which a run continues.

    Example: Saved(path=Path("runs/a/checkpoints/step_000100"), trainer={"format": 5, "progress": {"step": 100}, ...})
    """

    path: Path
    """Its directory."""
    trainer: Mapping[str, Any]
    """The trainer's part, as `save` made it."""


def checkpoint_of(run: RunDirectory, store: CheckpointStore, step: int) -> Saved:
    """Return the checkpoint of a step to which the user goes back.

    Raises:
        ConfigError: There is none, or it is damaged, or its rows do not exist; nothing was changed.
    """
    option, steps = f"--from-step: got {step}, but", store.steps()
    others = ", ".join(str(own) for own in steps if own != step)
    if step not in steps:
        known = f"allowed: {others}" if steps else "there is no checkpoint at all"
        raise ConfigError(f"{option} {store.directory} has no checkpoint of that step; {known}. Nothing was changed")
    try:
        return _checked(run, store.path(step))
    except Damaged as error:
        raise ConfigError(
            f"{option} its checkpoint cannot be used: {error}; others: {others or 'none'}. Nothing was changed"
        ) from None


def _checked(run: RunDirectory, path: Path) -> Saved:
    """Return a checkpoint whose files are whole, and whose rows exist; raise `Damaged` for another."""
    check_files(path)
    trainer = load_state(path, "trainer")
    if trainer.get("format") != TRAINER_FORMAT:
        raise Damaged(f"it has the format {trainer.get('format')}; this version of scalerl reads {TRAINER_FORMAT}")
    run.check_rows(trainer)
    return Saved(path, trainer)


def sound_checkpoint(run: RunDirectory, store: CheckpointStore, note: Callable[[str], None]) -> Saved | None:
    """Return the newest undamaged checkpoint whose rows exist; None if the run had no checkpoint yet.

    Newer, damaged checkpoints are renamed, and a note names each with its fault.

    Args:
        run: Run directory, whose row files are compared with the checkpoint.
        store: The run's checkpoints.
        note: Function that gets lines for the user.

    Raises:
        ConfigError: The run had checkpoints, but none is usable; nothing was changed.
    """
    faults: dict[int, str] = {}
    for step in reversed(store.steps()):
        try:
            saved = _checked(run, store.path(step))
        except Damaged as error:
            faults[step] = str(error)
            continue
        for newer, fault in faults.items():
            note(f"the checkpoint of step {newer} cannot be used: {fault}; it is kept as {store.set_aside(newer)}")
        if faults:
            note(f"going back to the checkpoint of step {step}; the steps since then are trained again")
        return saved
    if not faults and not _trained(run.path, store):
        return None
    what = "; ".join(f"step {step}: {fault}" for step, fault in faults.items()) or "they were removed"
    export = f", or from its exported weights: --model {run.path}/model" if (run.path / "model").exists() else ""
    raise ConfigError(
        f"{run.path}: this run had checkpoints, but none of them can be used ({what}). Starting over would remove its "
        "rows, so nothing was changed. Restore the files from a copy, or start a new run: "
        f"scalerl train {run.path}/config.toml{export}. `scalerl fit {run.path}` still reads its curve"
    )


def _trained(path: Path, store: CheckpointStore) -> bool:
    """Return whether a run must have had a checkpoint, by its marker.

    The checkpoint directory is created before the first row, so rows without it mean that it was removed.
    """
    if not store.directory.exists():
        return any(file.stat().st_size for file in path.glob("*.jsonl"))
    return (store.directory / WRITTEN_NAME).exists()


def overrule(progress: Progress, display: RunDisplay) -> Progress:
    """Disable the condition that ended a run, because resuming the run means that it should continue."""
    if progress.stopped_by:
        display.note(
            f"the run had ended on the condition {progress.stopped_by!r}; this condition is ignored from now on"
        )
        progress.overruled = (*progress.overruled, progress.stopped_by)
        progress.stopped_by = ""
    return progress


LEARNING_RATE = "recipe.optimizer.learning_rate"

FREE_FIELDS = ("steps", "stop_when", "min_gain", "price", "checkpoint", "placement", "loggers")
"""Fields of a configuration that a resume may change, because they do not affect completed steps."""

MACHINE_SIZES = (
    ("rollouts", "slots"),
    ("learner", "micro_batch_tokens"),
    ("learner", "gradient_checkpointing"),
    ("learner", "compile"),
    ("hardware", "trainer_helpers"),
)
"""Fields that a resume may change for a machine with less memory or more. Later steps then differ by rounding, and with
other slots the sequences in flight are sampled again."""


def continued_config(
    path: Path,
    config: RunConfig,
    options: Mapping[str, Any] | Sequence[str],
    steps: int | None,
    saved: Saved | None,
) -> RunConfig:
    """Return the configuration with which a run continues.

    Args:
        path: The run directory.
        config: The configuration saved in the run directory.
        options: Command-line options, or values by dotted field name; without `--steps`.
        steps: Value of `--steps`; None keeps the number.
        saved: The checkpoint to resume. A new learning rate is recorded as valid from its step on.

    Raises:
        ConfigError: An option, or a change in config.toml since the checkpoint, would make it a different run.
    """
    before, step = config, 0
    if saved is not None:
        before = parse_config(saved.trainer["config"], f"{saved.path}/trainer.json")
        step = int(saved.trainer["progress"]["step"])
    wanted = read_config(path / "config.toml", options) if options else config
    optimizer = wanted.recipe.optimizer
    if any(word.removeprefix("--").partition("=")[0] == LEARNING_RATE for word in options):
        later = LaterRate(after_step=step, learning_rate=optimizer.learning_rate)
        rates = (*_rates_until(step, config), later)
        optimizer = replace(optimizer, learning_rate=config.recipe.optimizer.learning_rate, later_rates=rates)
    wanted = replace(wanted, steps=steps or config.steps, recipe=replace(wanted.recipe, optimizer=optimizer))
    same = replace(wanted, **{name: getattr(before, name) for name in FREE_FIELDS})
    for part, name in MACHINE_SIZES:
        own = replace(getattr(same, part), **{name: getattr(getattr(before, part), name)})
        same = replace(same, **{part: own})
    if _rates_until(step, wanted) == _rates_until(step, before):  # later ones may be new
        optimizer = replace(optimizer, later_rates=before.recipe.optimizer.later_rates)
        same = replace(same, recipe=replace(same.recipe, optimizer=optimizer))
    if same != before:
        changed = config_changes(before, same)
        more = f", and {len(changed) - MOST_LISTED} more" if len(changed) > MOST_LISTED else ""
        raise ConfigError(
            f"{path}: got {', '.join(changed[:MOST_LISTED])}{more} in an option or in config.toml, which would make it "
            f"a different run; allowed: --steps, --{LEARNING_RATE}, "
            f"{', '.join(map('.'.join, MACHINE_SIZES))}, and the fields of {', '.join(FREE_FIELDS)}. Undo "
            f"the change to resume, or start a new run: scalerl train {path}/config.toml --run-dir ANOTHER"
        )
    return wanted


def config_changes(before: RunConfig, after: RunConfig) -> list[str]:
    """Return the fields that differ between two configurations in words, such as "seed = 1 (was 0)"."""
    was, now = _by_task(before), _by_task(after)
    names = [name for name in dict.fromkeys([*now, *was]) if now.get(name) != was.get(name)]
    return [f"{name} = {short(now.get(name))} (was {short(was.get(name))})" for name in names]


def _by_task(config: RunConfig) -> dict[str, Any]:
    """Return the fields by dotted name; those of several tasks with the name of their task."""
    values = by_name(config)
    if isinstance(values.get("data"), list):
        values["data"] = ", ".join(config.tasks)
        for task in config.data:
            values |= {f"data.{task.curve}.{name}": value for name, value in leaves(task.model_dump(mode="json"))}
    return values


def _rates_until(step: int, config: RunConfig) -> list[LaterRate]:
    return [rate for rate in config.recipe.optimizer.later_rates if rate.after_step < step]
