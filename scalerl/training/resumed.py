"""State that a resumed run takes over: its checkpoint, configuration and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.config import RunConfig, parse_config, read_config, to_toml
from scalerl.config.base import replace
from scalerl.config.recipe import LaterRate
from scalerl.core.errors import ConfigError
from scalerl.training.checkpoint import FORMAT, CheckpointStore, load_plain
from scalerl.training.manifest import Damaged, check_files
from scalerl.training.progress import Display, Progress
from scalerl.training.run_dir import RunDirectory


def sound_checkpoint(run: RunDirectory, store: CheckpointStore, note: Callable[[str], None]) -> Path | None:
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
            check_files(store.path(step))
            state = load_plain(store.path(step), "trainer")
            _check_format(state, run.path)
            run.check_rows(state)
        except Damaged as error:
            faults[step] = str(error)
            continue
        for newer, fault in faults.items():
            note(f"the checkpoint of step {newer} cannot be used: {fault}; it is kept as {store.set_aside(newer)}")
        if faults:
            note(f"going back to the checkpoint of step {step}; the steps since then are trained again")
        return store.path(step)
    if not faults and not _trained(run.path, store):
        return None
    what = "; ".join(f"step {step}: {fault}" for step, fault in faults.items()) if faults else "they were removed"
    raise ConfigError(
        f"{run.path}: this run had checkpoints, but none of them can be used ({what}). Starting over would remove its "
        "rows, so nothing was changed. Restore the files from a copy, or start a new run: "
        f"scalerl train {run.path}/config.toml{_from_export(run.path)}. `scalerl fit {run.path}` still reads its curve"
    )


def _check_format(state: Mapping[str, Any], path: Path) -> None:
    if state.get("format") != FORMAT:
        raise ConfigError(
            f"{path}: its checkpoints were written by another version of scalerl and cannot be resumed by this one. "
            f"`scalerl fit {path}` still reads its curve; to train it again: scalerl train {path}/config.toml; to "
            f"start a new run from its exported weights: scalerl train --model {path}/model"
        )


def _trained(path: Path, store: CheckpointStore) -> bool:
    """Return whether a run must have had a checkpoint, by its marker or by files that only a finished run has.

    The checkpoint directory is created before the first row, so rows without it mean that it was removed.
    """
    if not store.directory.exists() and any(file.stat().st_size for file in path.glob("*.jsonl")):
        return True
    return store.had_some or (path / "model").exists() or (path / "summary.json").exists()


def _from_export(path: Path) -> str:
    return f", or from its exported weights: --model {path}/model" if (path / "model/config.json").exists() else ""


def overrule(progress: Progress, display: Display) -> Progress:
    """Disable the condition that ended a run, because resuming the run means that it should continue."""
    if progress.stopped_by:
        display.note(
            f"the run had ended on the condition {progress.stopped_by!r}; this condition is ignored from now on"
        )
        progress.overruled = (*progress.overruled, progress.stopped_by)
        progress.stopped_by = ""
    return progress


LEARNING_RATE = "recipe.optimizer.learning_rate"

FREE = ("steps", "stop_when", "checkpoint", "placement", "loggers", "notify")
"""Fields of a configuration that a resume may change, because they do not affect completed steps."""


def with_options(
    path: Path,
    config: RunConfig,
    options: Mapping[str, Any] | Sequence[str],
    steps: int | None,
    checkpoint: Path | None,
) -> RunConfig:
    """Return the configuration of a run with the options of a resume.

    Args:
        path: The run directory.
        config: The configuration saved in the run directory.
        options: Command-line options, or values by dotted field name; without `--steps`.
        steps: Value of `--steps`.
        checkpoint: The checkpoint to resume. A new learning rate is recorded as valid from its step on.

    Raises:
        ConfigError: An option would make it a different run.
    """
    config = config if steps is None else replace(config, steps=steps)
    if not options:
        return config
    changed, optimizer = read_config(path / "config.toml", options), config.recipe.optimizer
    if any(word.removeprefix("--").partition("=")[0] == LEARNING_RATE for word in options):
        step = 0 if checkpoint is None else int(load_plain(checkpoint, "trainer")["progress"]["step"])
        rates = _rates_until(step, config)
        rates.append(LaterRate(after_step=step, learning_rate=changed.recipe.optimizer.learning_rate))
        optimizer = replace(optimizer, later_rates=tuple(rates))
    wanted = replace(config, **{name: getattr(changed, name) for name in FREE if name != "steps"})
    same = replace(changed.recipe.optimizer, learning_rate=optimizer.learning_rate)
    if replace(changed, steps=config.steps, recipe=replace(changed.recipe, optimizer=same)) != wanted:
        raise ConfigError(
            f"scalerl resume: got {' '.join(map(str, options))}; allowed: --steps, --{LEARNING_RATE}, and the fields "
            f"of {', '.join(FREE)}. Other options need a new run: scalerl train {path}/config.toml "
            "--run-dir ANOTHER, with these options"
        )
    return replace(wanted, recipe=replace(config.recipe, optimizer=optimizer))


def check_unchanged(config: RunConfig, checkpoint: Path, path: Path) -> None:
    """Refuse a checkpoint of another configuration, except for fields in FREE.

    Args:
        config: Configuration in the run directory.
        checkpoint: The checkpoint to resume.
        path: The run directory, for messages.

    Raises:
        ConfigError: The checkpoint cannot be resumed with this configuration.
    """
    state = load_plain(checkpoint, "trainer")
    before = parse_config(state["config"], f"{checkpoint}/trainer.json")
    free: dict[str, Any] = {name: getattr(before, name) for name in FREE}
    step, optimizer = int(state["progress"]["step"]), config.recipe.optimizer
    if _rates_until(step, config) == _rates_until(step, before):  # later ones may be new
        optimizer = replace(optimizer, later_rates=before.recipe.optimizer.later_rates)
        free["recipe"] = replace(config.recipe, optimizer=optimizer)
    if replace(config, **free) == before:
        return
    old, new = to_toml(before).splitlines(), to_toml(replace(config, **free)).splitlines()
    changed = [f"{line!r} instead of {was!r}" for was, line in zip(old, new, strict=False) if was != line]
    raise ConfigError(
        f"{path / 'config.toml'} was changed since the run was checkpointed: "
        f"{'; '.join(changed[:5]) or 'sections differ'}. "
        "Undo the change to resume, or start a new run with `scalerl train CONFIG.toml`"
    )


def _rates_until(step: int, config: RunConfig) -> list[LaterRate]:
    return [rate for rate in config.recipe.optimizer.later_rates if rate.after_step < step]
