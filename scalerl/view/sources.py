"""Reads the curves that the user names on the command line: run directories and files of points."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scalerl.config import RunConfig, read_config
from scalerl.scaling import Curve, CurveError
from scalerl.view.summary import data_note, default_axis


@dataclass(frozen=True, eq=False)
class Source:
    """One curve and its source.

    Example: `Source(path=Path("runs/mine"), name="mine", curve=Curve(...), config=None, note="")`
    """

    path: Path
    """Path as given by the user."""

    name: str
    """Short name, unique among the sources read together."""

    curve: Curve
    """Points of the curve."""

    config: RunConfig | None
    """Configuration of the run, if the path is a run directory of this package."""

    note: str
    """A note about the data; empty if there is none."""

    suites: tuple[Curve, ...] = ()
    """Evaluation suites of the run, each labeled with its name; they have points and no forecast."""


def read_sources(
    paths: Sequence[Path], axis: str | None = None, task: str | None = None, bounds: Sequence[float] = (0.0, 1.0)
) -> list[Source]:
    """Read run directories and files of points.

    Args:
        paths: As in `Curve.read`.
        axis: Compute axis; None: the default for the device of a run directory, or the first axis in a file.
        task: Name of the task; required if there are several.
        bounds: Minimum and maximum of the metric.

    Raises:
        CurveError: A path has no curve.
        ConfigError: The config.toml of a run directory is invalid.
    """
    return [_read(path, name, axis, task, bounds) for path, name in zip(paths, names_of(paths), strict=True)]


@contextmanager
def naming(source: Source) -> Iterator[None]:
    """Add the path of the file to an error about its curve."""
    try:
        yield
    except CurveError as error:
        raise CurveError(f"{source.path}: {error}") from error


def _read(path: Path, name: str, axis: str | None, task: str | None, bounds: Sequence[float]) -> Source:
    config = read_config(path / "config.toml", []) if (path / "config.toml").exists() else None
    if axis is None and config is not None:
        axis = default_axis(config)
    if task is None and config is not None and len(config.main_tasks) == 1 < len(config.tasks):
        task = config.main_tasks[0]  # the others are evaluation suites
    curve = Curve.read(path, axis=axis, task=task, bounds=(bounds[0], bounds[1]))
    suites = _suites(path, config, curve.axis) if config else ()
    return Source(path, name, curve, config, data_note(config) if config else "", suites)


def _suites(path: Path, config: RunConfig, axis: str) -> tuple[Curve, ...]:
    """Return the curves of a run's evaluation suites, on the axis of its held-out curve."""
    names = [task for task in config.tasks if task not in config.main_tasks]
    return tuple(replace(Curve.read(path, axis=axis, task=name), label=name) for name in names)


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are unique; a path given twice has the same name twice."""
    parts = [_telling_parts(path) for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if max(Counter(names).values(), default=0) <= max(Counter(map(tuple, parts)).values(), default=0):
            return names
    return [str(path) for path in paths]


def _telling_parts(path: Path) -> tuple[str, ...]:
    """Return the parts of a path that can identify a run: without the extension, and without the name points.jsonl."""
    full = Path(os.path.realpath(path))  # Path.resolve raises for circular links
    if full.is_dir():
        return full.parts[1:]
    return full.parts[1:-1] if full.stem == "points" else (*full.parts[1:-1], full.stem)
