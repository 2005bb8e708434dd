"""Compares a configuration of another trainer with ScaleRL, component by component."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scalerl.trainers.base import Theirs, Trainer, Values
from scalerl.trainers.paper import COMPONENTS, SAME, fact


class Row(NamedTuple):
    """A line of the table.

    Example: Row("loss", "DAPO's clip, 0.2 and 0.28", "CISPO, ratio capped at 5", False, "ceiling 0.52 ...", "ceiling")
    """

    component: str
    theirs: str
    scalerl: str
    same: bool | None
    """None if the file does not say it."""
    measured: str
    moved: str
    settings: tuple[str, ...]
    """Names of the settings that were read, in the order in which they were."""


UNRESOLVED = "\0"
"""Value of a setting that a script computes, such as `$((a * b))`."""


def check(trainer: Trainer, settings: Mapping[str, Any]) -> list[Row]:
    """Return a row for each component of the recipe."""
    settings = adapted(trainer, settings)
    return [_row(trainer, component, settings) for component in COMPONENTS]


def adapted(trainer: Trainer, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by the names of a trainer, whose arguments in a script may be its fields: --loss_type."""
    if any(name.startswith("--") for name in trainer.defaults):
        return dict(settings)
    return {name[2:].replace("-", "_") if name.startswith("--") else name: settings[name] for name in settings}


def _row(trainer: Trainer, component: Any, settings: Mapping[str, Any]) -> Row:
    values = Values(settings, trainer.defaults)
    theirs = trainer.parts[component.key](values)
    used = tuple(dict.fromkeys(values.used))
    computed = [name for name in used if settings.get(name) == UNRESOLVED]
    if computed:
        theirs = Theirs(f"{computed[0]} is computed by the script", same=None)
    elif used and not any(name in settings for name in used):
        theirs = theirs._replace(words=f"{theirs.words} (default)")
    measured, moved = SAME if theirs.same or theirs.same is None else fact(component.key, theirs.kind)
    return Row(component.title, theirs.words, component.ours, theirs.same, measured, moved, used)


def recognized(trainers: Iterable[Trainer], settings: Mapping[str, Any]) -> list[Trainer]:
    """Return the trainers whose settings are in a file, the most probable first.

    A trainer counts by the number of its settings in the file. Files of Hydra and of scripts have other names too.
    """
    scores = {trainer.name: _matches(trainer, settings) for trainer in trainers}
    matches = [trainer for trainer in trainers if scores[trainer.name]]
    return sorted(matches, key=lambda trainer: -scores[trainer.name])


def _matches(trainer: Trainer, settings: Mapping[str, Any]) -> int:
    settings = adapted(trainer, settings)
    if trainer.required and not any(name.startswith(trainer.required) for name in settings):
        return 0
    names = {*trainer.defaults, *(setting.name for setting in trainer.settings)}
    return sum(name in names for name in settings)
