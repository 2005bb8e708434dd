"""The files of a run and of a study: their names, and the records that readers need without any configuration.

Training writes these files. Everything that reads runs uses only what this module describes, so it needs neither the
configuration nor torch. docs/metrics.md lists the files with their columns.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.files import read_json, trouble
from scalerl.core.types import EvalPoint

SCHEMA = 1
"""Version of run.json and study.json; a reader rejects a higher one."""

CONFIG, RUN, STATUS, SUMMARY = "config.toml", "run.json", "status.json", "summary.json"
POINTS, METRICS, EVENTS, ROLLOUTS = "points.jsonl", "metrics.jsonl", "events.jsonl", "rollouts.jsonl"
SAMPLES, RECORDS = "rollouts/samples.jsonl", "rollouts/samples.bin"
CHECKPOINTS, MODEL, PICTURE, ERRORS, LOCK = "checkpoints", "model", "curve.png", "errors.log", ".lock"
"""Files and folders of a run directory."""

CHECKPOINT_NAME = re.compile(r"step_(\d{6,})$")
"""Pattern of the directory of a checkpoint, with its step."""

SAVED_SAMPLES = 16
"""Most rollouts of one group of the last batch that an evaluation adds to SAMPLES and RECORDS."""

PLAN, STUDY, JOURNAL, RESULTS, REPORT = "study.toml", "study.json", "journal.jsonl", "results.json", "report.html"
PREDICTED, ALLOCATION = "predicted.json", "allocation.jsonl"
"""Files of a study directory."""

ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
"""Pattern of the name of an arm of a study, which is also the name of its directory."""

Settings = dict[str, Any]
"""Fields of a configuration by their dotted names, with JSON values."""


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
    main: bool = False
    """Whether it is one of the few that matter first; the page shows them before the groups."""


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
    min_gain: float = 0.02
    """Smallest gain of the pass rate that is worth twice the compute."""
    price: float | None = None
    """Price of a device-hour; None: unknown."""
    steps: int = 0
    """Updates at the end of the run."""
    settings: Settings = field(default_factory=dict)
    """Every field of the configuration by its dotted name."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    """Description of the columns of metrics.jsonl, in display order; other columns are shown under their names."""

    def to_json(self) -> str:
        """Return the text of run.json."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"


@dataclass(frozen=True)
class RunKey:
    """One run of a study."""

    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}/seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class ArmInfo:
    """What study.json says about one arm.

    Example: ArmInfo(about="DAPO's loss", settings={"recipe.loss.kind": "dapo"}, seeds=(0, 1, 2), steps=480)
    """

    about: str = ""
    """What differs from the reference, in a few words."""
    settings: Settings = field(default_factory=dict)
    """Fields of the configuration that differ from those of the study; None: the arm has no such field."""
    seeds: tuple[int, ...] = ()
    steps: int = 0
    """Updates of each of its runs."""
    held_out: bool = False
    """Whether the arm is predicted from the others before it is run."""


@dataclass(frozen=True, kw_only=True)
class StudyInfo:
    """Content of study.json: what readers must know about a study.

    Example: StudyInfo(name="loo", reference="scalerl", about="Which component matters?", axis="flops",
        task="arithmetic", tasks={"arithmetic": (0.0, 1.0)}, notes=("12% of the reference answers are wrong",),
        settings={"recipe.loss.kind": "cispo"}, arms={"scalerl": ArmInfo(...), "dapo": ArmInfo(...)})
    """

    name: str
    about: str = ""
    """The question that the study answers."""
    reference: str
    """Name of the arm with which all others are compared."""
    axis: str = "step"
    """Default compute axis."""
    task: str | None = None
    """Task whose curves are compared by default; None: the only one of the runs."""
    tasks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Tasks and suites of all arms, with the bounds of their metric."""
    vary: tuple[str, ...] = ()
    """Fields whose values are the settings of an arm; empty: the arms are no grid."""
    notes: tuple[str, ...] = ()
    """What a reader of the curves must know about the data."""
    settings: Settings = field(default_factory=dict)
    """Every field of the configuration that the arms share, by its dotted name."""
    arms: dict[str, ArmInfo] = field(default_factory=dict)
    """The arms by name, in the order of the plan."""

    def to_json(self) -> str:
        """Return the text of study.json."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def runs(self) -> list[RunKey]:
        """Return all runs, the first seed of every arm first."""
        seeds = dict.fromkeys(seed for arm in self.arms.values() for seed in arm.seeds)
        return [RunKey(name, seed) for seed in seeds for name, arm in self.arms.items() if seed in arm.seeds]

    def settings_of(self, arm: str) -> Settings:
        """Return every field of an arm's configuration by its dotted name."""
        both = {**self.settings, **self.arms[arm].settings}
        return {name: value for name, value in both.items() if value is not None}


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


def is_study(path: Path) -> bool:
    """Return whether a directory is a study of this package, of any version."""
    return os.path.isfile(path / STUDY) or os.path.isfile(path / PLAN)


def is_closed(path: Path) -> bool:
    """Return whether a directory cannot be read."""
    return os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK, effective_ids=True)


def read_run(path: Path) -> RunInfo:
    """Return what run.json says; unknown fields are ignored.

    Raises:
        ConfigError: The directory is no run, is of another version, or run.json is damaged.
    """
    values = _checked(path, RUN)
    try:
        run_values = _fields_of(RunInfo, values)
        tasks = _tasks(run_values.pop("tasks", {}))
        metrics = _metrics(json.dumps(run_values.pop("metrics", {})))
        for name in ("suites", "notes"):
            run_values[name] = tuple(map(str, run_values.get(name, ())))
        info = RunInfo(**run_values, tasks=tasks, metrics=metrics)
        if not (isinstance(info.title, str) and isinstance(info.axis, str) and isinstance(info.settings, dict)):
            raise TypeError("title, axis or settings has another type")
        info = replace(info, settings={sys.intern(str(name)): _shared(value) for name, value in info.settings.items()})
    except (TypeError, ValueError, KeyError) as error:
        raise _damaged(path, RUN, str(error)) from error
    return info


def read_study(path: Path) -> StudyInfo:
    """Return what study.json says; unknown fields are ignored.

    Raises:
        ConfigError: The directory is no study, is of another version, or study.json is damaged.
    """
    values = _checked(path, STUDY)
    try:
        study_values = _fields_of(StudyInfo, values)
        tasks, arms = _tasks(study_values.pop("tasks", {})), _arms(study_values.pop("arms", {}))
        for name in ("vary", "notes"):
            study_values[name] = tuple(map(str, study_values.get(name, ())))
        info = StudyInfo(**study_values, tasks=tasks, arms=arms)
        texts = (info.name, info.about, info.reference, info.axis, "" if info.task is None else info.task)
        if not (all(isinstance(text, str) for text in texts) and isinstance(info.settings, dict)):
            raise TypeError("name, about, reference, axis, task or settings has another type")
        if info.reference not in arms:
            raise ValueError(f"the reference {info.reference!r:.60} is not one of its arms")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(path, STUDY, str(error)) from error
    return info


def _fields_of(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in (f.name for f in fields(record)) if name in values}


def _tasks(values: Any) -> dict[str, tuple[float, float]]:
    return {str(name): (float(low), float(high)) for name, (low, high) in dict(values).items()}


def _arms(values: Any) -> dict[str, ArmInfo]:
    arms = {}
    for name, arm in dict(values).items():
        if not isinstance(arm, dict):
            raise TypeError(f"the arm {name!r:.60} is no table of fields")
        if not ARM_NAME.fullmatch(str(name)):  # it is a directory, and must lie in that of the study
            raise ValueError(f"the arm {name!r:.60} has a name that no study gives")
        arm_values = _fields_of(ArmInfo, arm)
        seeds = tuple(arm_values.pop("seeds", ()))
        info = ArmInfo(**arm_values, seeds=seeds)
        numbers = (*seeds, info.steps)
        are_integers = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not are_integers or not isinstance(info.settings, dict) or not isinstance(info.about, str):
            raise TypeError(f"seeds, steps, about or settings of the arm {name} has another type")
        arms[str(name)] = info
    return arms


def _damaged(path: Path, name: str, problem: str) -> ConfigError:
    return ConfigError(f"{path / name} is damaged: {problem}; write it again with `scalerl upgrade {path}`")


def _checked(path: Path, name: str) -> Mapping[str, Any]:
    """Return the values of run.json or study.json of a version that this package reads."""
    try:
        values = read_json(path / name)
    except FileNotFoundError:
        if is_closed(path):
            raise ConfigError(trouble(PermissionError(errno.EACCES, "", str(path)))) from None
        source, what = {RUN: (CONFIG, "run"), STUDY: (PLAN, "study")}[name]
        if os.path.exists(path / source):
            raise ConfigError(
                f"{path / name} is missing, because another version of scalerl wrote this directory; make it with "
                f"`scalerl upgrade {path}`"
            ) from None
        raise ConfigError(f"{path}: no {what} here (no {name})") from None
    except OSError as error:
        raise ConfigError(trouble(error)) from error
    except ValueError as error:
        raise _damaged(path, name, str(error)) from error
    if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
        raise _damaged(path, name, "it has no schema")
    if values["schema"] > SCHEMA:
        raise ConfigError(
            f"{path / name}: got schema {values['schema']}; this scalerl reads up to {SCHEMA}: install a newer version"
        )
    return values


def _shared(value: Any) -> Any:
    """Return a value of the configuration; a text that many runs have is in memory once."""
    return sys.intern(value) if type(value) is str else value


@lru_cache(maxsize=64)
def _metrics(text: str) -> dict[str, Metric]:
    """Return the metrics that run.json describes; runs of one version share them, two thirds of what a run takes."""
    return {str(name): _metric(value) for name, value in dict(json.loads(text)).items()}


def _metric(value: Any) -> Metric:
    metric_values = {name: value[name] for name in (f.name for f in fields(Metric)) if name in value}
    for name in ("above", "below"):
        metric_values[name] = tuple(map(float, metric_values.get(name, ())))
    return Metric(**{"group": "other", "label": "", "meaning": "", **metric_values})


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of all complete checkpoints in a directory `checkpoints`, in order."""
    matches = [CHECKPOINT_NAME.match(path.name) for path in directory.glob("step_*")]
    return sorted(int(match[1]) for match in matches if match)


def held_out_rates(points: Iterable[EvalPoint], tasks: Collection[str]) -> dict[int, float]:
    """Return the mean held-out pass rate of a run's tasks by step.

    Args:
        points: Evaluations of the run.
        tasks: Its tasks, without suites; a step at which one of them was not evaluated is left out.
    """
    rates: dict[int, dict[str, float]] = defaultdict(dict)
    for point in points:
        if point.task in tasks:
            rates[point.step][point.task] = point.pass_rate
    means = {
        step: math.fsum(task_rates.values()) / len(task_rates)
        for step, task_rates in rates.items()
        if len(task_rates) == len(tasks)
    }
    return {step: mean for step, mean in means.items() if math.isfinite(mean)}


def best_step(steps: Iterable[int], rates: Mapping[int, float]) -> int | None:
    """Return the checkpoint with the highest pass rate, the last of equal ones; None if none was evaluated.

    Example: best_step([20, 40, 60], {20: 0.5, 40: 0.7, 50: 0.9}) == 40
    """
    return max((step for step in steps if step in rates), key=lambda step: (rates[step], step), default=None)
