"""The files of a run and of a study: their names, and the records that readers need without any configuration.

Training writes these files. Everything that reads runs uses only what this module describes, so it needs neither the
configuration nor torch. docs/metrics.md lists the files with their columns.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.files import read_json, trouble

SCHEMA = 1
"""Version of run.json and study.json; a reader rejects a higher one."""

CONFIG, RUN, STATUS, SUMMARY = "config.toml", "run.json", "status.json", "summary.json"
POINTS, METRICS, EVENTS, ROLLOUTS = "points.jsonl", "metrics.jsonl", "events.jsonl", "rollouts.jsonl"
SAMPLES, RECORDS = "rollouts/samples.jsonl", "rollouts/samples.bin"
CHECKPOINTS, MODEL, PICTURE, ERRORS, LOCK = "checkpoints", "model", "curve.png", "errors.log", ".lock"
"""Files and folders of a run directory."""

PLAN, STUDY, JOURNAL, RESULTS, REPORT = "study.toml", "study.json", "journal.jsonl", "results.json", "report.html"
"""Files of a study directory."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of a column of metrics.jsonl.

    Example: Metric("length", "Truncated", "share of rollouts that reached their limit", above=(0.05, 0.1), share=True)
    """

    group: str
    label: str
    meaning: str
    unit: str = ""
    above: tuple[float, ...] = ()
    """Upper thresholds: above the first, caution; above the second, training is usually unstable."""
    below: tuple[float, ...] = ()
    """Lower thresholds, with the same meaning for values below them."""
    share: bool = False
    """Whether the value is a share, shown in percent."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Content of run.json: what readers must know about a run.

    Example: RunInfo(title="scalerl-lab", about="Reinforcement learning of a tiny Qwen3 on arithmetic.", axis="flops",
        tasks={"arithmetic": (0.0, 1.0)}, notes=("12% of the reference answers are wrong on purpose",), seed=0,
        devices=1.0, steps=480, settings={"model.width": 64}, metrics={"reward": Metric("learning", "Reward", "...")})
    """

    title: str
    """Name of the recipe."""
    about: str = ""
    """What the run does, for readers who do not know it."""
    axis: str = "step"
    """Default compute axis."""
    tasks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Curves of the run that have a forecast, with the bounds of their metric."""
    suites: tuple[str, ...] = ()
    """Curves that are only evaluated."""
    notes: tuple[str, ...] = ()
    """What a reader of the curve must know about the data and the run."""
    seed: int = 0
    devices: float = 1.0
    """Devices whose hours count."""
    price: float | None = None
    """Price of a device-hour; None: unknown."""
    steps: int = 0
    """Updates at the end of the run."""
    settings: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Every field of the configuration by its dotted name."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    """Description of the columns of metrics.jsonl, in display order; other columns are shown under their names."""

    def to_json(self) -> str:
        """Return the text of run.json."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"


def active_warnings(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the texts of the warnings that hold after these rows of events.jsonl, by key, the latest last.

    Example of two rows: {"step": 120, "kind": "warning", "key": "truncated", "text": "12% of the rollouts ..."} and
    {"step": 160, "kind": "over", "key": "truncated"}, after which no warning holds.
    """
    active: dict[str, str] = {}
    for event in events:
        key, text = str(event.get("key", "")), str(event.get("text", ""))
        if event.get("kind") == "warning":
            active[key] = text
        elif event.get("kind") == "over":
            active.pop(key, None)
    return active


def is_run(path: Path) -> bool:
    """Return whether a directory is a run of this package, of any version."""
    # os.path: a directory that this user may not enter is no error here
    return os.path.exists(path / RUN) or os.path.exists(path / CONFIG)


def is_closed(path: Path) -> bool:
    """Return whether a directory cannot be read."""
    return os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK, effective_ids=True)


def read_run(path: Path) -> RunInfo:
    """Return what run.json says; unknown fields are ignored.

    Args:
        path: Run directory.

    Raises:
        ConfigError: The directory is no run, is of another version, or run.json is damaged.
    """
    values = _checked(path, RUN)
    wrong = f"{path / RUN} is damaged: "
    try:
        known = {name: values[name] for name in (f.name for f in fields(RunInfo)) if name in values}
        tasks = {str(name): (float(low), float(high)) for name, (low, high) in dict(known.pop("tasks", {})).items()}
        metrics = {str(name): _metric(value) for name, value in dict(known.pop("metrics", {})).items()}
        for name in ("suites", "notes"):
            known[name] = tuple(map(str, known.get(name, ())))
        info = RunInfo(**known, tasks=tasks, metrics=metrics)
        if not (isinstance(info.title, str) and isinstance(info.axis, str) and isinstance(info.settings, dict)):
            raise TypeError("title, axis or settings has another type")
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"{wrong}{error}; `scalerl upgrade {path}` writes it again from {CONFIG}") from error
    return info


def _checked(path: Path, name: str) -> Mapping[str, Any]:
    """Return the values of run.json or study.json of a version that this package reads."""
    try:
        values = read_json(path / name)
    except FileNotFoundError:
        if is_closed(path):
            raise ConfigError(trouble(PermissionError(errno.EACCES, "", str(path)))) from None
        if os.path.exists(path / CONFIG) or os.path.exists(path / PLAN):
            raise ConfigError(
                f"{path / name} is missing, because another version of scalerl wrote this directory; make it with "
                f"`scalerl upgrade {path}`"
            ) from None
        raise ConfigError(f"{path}: no run or study here (no {name})") from None
    except OSError as error:
        raise ConfigError(trouble(error)) from error
    except ValueError as error:
        raise ConfigError(f"{path / name} is damaged: {error}; write it again with `scalerl upgrade {path}`") from error
    if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
        raise ConfigError(f"{path / name} is damaged: it has no schema; write it again with `scalerl upgrade {path}`")
    if values["schema"] > SCHEMA:
        raise ConfigError(
            f"{path / name}: got schema {values['schema']}; this scalerl reads up to {SCHEMA}: install a newer version"
        )
    return values


def _metric(value: Any) -> Metric:
    known = {name: value[name] for name in (f.name for f in fields(Metric)) if name in value}
    for name in ("above", "below"):
        known[name] = tuple(map(float, known.get(name, ())))
    return Metric(**{"group": "other", "label": "", "meaning": "", **known})
