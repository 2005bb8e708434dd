"""Fit, forecast and advice for one curve, as text; and the one reader of curves, for commands and Python."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from scalerl.core.calls import check_values
from scalerl.core.rows import read_points
from scalerl.core.run_files import (
    CHECKPOINTS,
    POINTS,
    RunInfo,
    best_step,
    held_out_rates,
    is_run,
    read_run,
    saved_steps,
)
from scalerl.core.types import EvalPoint
from scalerl.reading.curves import Advice, Curve, CurveError, Estimate, Fit, Forecast, advise, fit, forecast
from scalerl.reading.curves.advise import MIN_GAIN, share_that_gained
from scalerl.reading.curves.baselines import LEAST_POINTS, trend
from scalerl.reading.curves.curve import LogChoices, ReadOptions, checked_bounds
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.tables.errors import LogError
from scalerl.reading.tables.forms import read_table
from scalerl.reading.tables.names import AXES, METRIC_COLUMNS

if TYPE_CHECKING:
    from scalerl.reading.logs import Imported
    from scalerl.reading.tables.table import Table

HORIZON = ("2x", "4x")


@dataclass(frozen=True, slots=True)
class Outlook:
    """A fit with its forecast and advice."""

    fit: Fit
    forecast: Forecast
    advice: Advice

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as JSON values, with the additional keys forecast and advice."""
        return {**forecast_dict(self.forecast), "advice": self.advice.to_dict()}

    def with_way_back(self, path: Path, points: Sequence[EvalPoint], tasks: Collection[str]) -> Outlook:
        """Return the outlook of a run with the checkpoint and the command, if the advice is to go back.

        Args:
            path: The run directory.
            points: Evaluations of the run, of all tasks.
            tasks: Its tasks, without suites.
        """
        if self.advice.action != "go back":
            return self
        return replace(self, advice=with_way_back(self.advice, path, points, tasks))

    def lines(self) -> list[str]:
        """Return the outlook as text for a terminal, the decision first."""
        at = [f"at {name:<6} {level:.3f}" for name, level in zip(HORIZON, self.forecast.at, strict=True)]
        return [str(self.advice), *str(self.fit).split("\n"), *at]

    def explanation(self) -> list[str]:
        """Return what stands behind the advice, as lines for a terminal: `scalerl fit --explain`."""
        fit, advice = self.fit, self.advice
        probability, recent = fit.probability_of_gain(advice.budget, advice.limit), trend(fit.curve)
        likely = f"probability {probability:.2f} of a gain above {advice.limit:g}"
        if advice.counted is not None and advice.limit == MIN_GAIN * float(np.ptp(fit.curve.bounds)):
            likely += f"; of public cases with about this probability {share_that_gained(probability):.0%} gained more"
        naive = ", ".join(f"{name} {values[0]:.3f}" for name, values in self.forecast.baselines.items())
        point = advice.cost.of_point()
        return [
            f"gain      {likely}",
            f"trend     {recent.rise:.3f} ± {recent.error:.3f} over the last doubling of compute",
            f"ceiling   {'' if fit.identified else 'NOT '}identified: {fit.reason}",
            f"naive     at {HORIZON[0]}: {naive}",
            *([f"price     {point}, a hundredth of the metric's range"] if point else []),
            *(f"future    {sentence}" for sentence in fit.posterior.sentences()),
        ]


def forecast_numbers(outlook: Outlook) -> dict[str, float]:
    """Return a forecast as numbers for trackers: levels at more compute and the ceiling, with their 90% intervals."""
    numbers = {"identified": float(outlook.fit.identified)}
    for name, level in zip(HORIZON, outlook.forecast.at, strict=True):
        numbers |= named_numbers(name, level)
    return numbers | named_numbers("ceiling", outlook.fit.asymptote)


def named_numbers(name: str, estimate: Estimate) -> dict[str, float]:
    """Return an estimate as numbers for trackers: its mean, and the ends of its interval."""
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def forecast_dict(forecast: Forecast) -> dict[str, Any]:
    """Return the fit as JSON values, with the additional key forecast."""
    values = forecast.to_dict()
    return {**values.pop("fit"), "forecast": values}


def outlook(
    curve: Curve,
    *,
    r0: float | None = None,
    exclude_below: float = 0.0,
    min_gain: float | None = None,
    price: float | None = None,
) -> Outlook:
    """Fit a curve, forecast it and give advice.

    Args:
        curve: The curve.
        r0: As for `fit`.
        exclude_below: As for `fit`.
        min_gain: Smallest gain that is worth twice the compute, in the metric's unit; None: the default of `advise`.
        price: Price of a device-hour; None: costs are in device-hours.

    Raises:
        CurveError: The curve cannot be fitted; the message has the reason.
    """
    return outlook_of(fit(curve, r0=r0, exclude_below=exclude_below), min_gain, price)


def outlook_of(fit_result: Fit, min_gain: float | None = None, price: float | None = None) -> Outlook:
    """Return a fit with its forecast and advice; gain and price are those of `outlook`."""
    return Outlook(fit_result, forecast(fit_result, at=HORIZON), advise(fit_result, min_gain=min_gain, price=price))


def with_way_back(advice: Advice, path: Path, points: Sequence[EvalPoint], tasks: Collection[str]) -> Advice:
    """Return the advice to go back, with the checkpoint and the command; arguments as for `way_back`."""
    return replace(advice, sentence=f"{advice} {way_back(path, points, tasks)}")


def way_back(path: Path, points: Sequence[EvalPoint], tasks: Collection[str]) -> str:
    """Return what to do about a run that has fallen: its best checkpoint, and the command that goes back to it.

    Args:
        path: The run directory.
        points: Evaluations of the run, of all tasks.
        tasks: Its tasks, without suites.
    """
    rates = held_out_rates(points, tasks)
    steps, mean = saved_steps(path / CHECKPOINTS), "mean " if len(tasks) > 1 else ""
    top = max(rates, key=lambda step: (rates[step], step), default=None)
    step = best_step(steps, rates)
    what = f"the best checkpoint, step {step}"
    # a checkpoint nearer to the fallen level than to the best one is of the fall
    if top is not None and (step is None or 2 * rates[step] < rates[top] + rates[max(rates)]):
        step = max((saved for saved in steps if saved <= top), default=None)
        what = f"the last checkpoint before the best evaluation, step {step}"
    if step is None:
        return "No checkpoint from before the fall is left to go back to."
    rate = f" ({mean}pass rate {rates[step]:.3f})" if step in rates else ""
    return f"{what[0].upper()}{what[1:]}{rate}: scalerl resume {path} --from-step {step}"


def points_by_task(points: Sequence[EvalPoint]) -> dict[str, list[EvalPoint]]:
    """Return a run's evaluations by task, in their order."""
    by_task: dict[str, list[EvalPoint]] = {}
    for point in points:
        by_task.setdefault(point.task, []).append(point)
    return by_task


def run_outlook(
    points: Sequence[EvalPoint], axis: str, min_gain: float | None = None, price: float | None = None
) -> Outlook:
    """Return the outlook of a run, from its evaluations of one task, on one compute axis.

    Results are cached, because the display and the loggers of a run need the same ones. Gain and price are those of
    `outlook`.

    Raises:
        CurveError: There are too few evaluations.
    """
    with _FITTING:  # threads that need the same fit wait for it
        return _kept_outlook(tuple(points), axis, min_gain, price)


_FITTING = threading.Lock()


@lru_cache(maxsize=16)
def _kept_outlook(points: tuple[EvalPoint, ...], axis: str, min_gain: float | None, price: float | None) -> Outlook:
    return outlook(curve_of(points, axis), min_gain=min_gain, price=price)


def curve_of(points: Sequence[EvalPoint], axis: str) -> Curve:
    """Return the curve of a run's evaluations of one task, on one compute axis."""
    assert len({point.task for point in points}) <= 1, points
    return Curve(
        compute=[getattr(point, axis) for point in points],
        metric=[point.pass_rate for point in points],
        stderr=[point.stderr for point in points],
        axis=axis,
        label=points[0].task,
        hours_per_unit=_hours_per_unit(points, axis),
        prompts=points[-1].prompts if points else 0,
    )


def _hours_per_unit(points: Sequence[EvalPoint], axis: str) -> float:
    """Return the device-hours per unit of compute of a run so far; NaN before any compute."""
    last = max((getattr(point, axis), point.device_hours) for point in points) if points else (0.0, 0.0)
    return float(last[1] / last[0]) if last[0] > 0 and last[1] > 0 else math.nan


# ------------------------------------------------------------------------------------------- curves that a user names


@dataclass(frozen=True, eq=False)
class Source:
    """One curve and its source.

    Example: `Source(path=Path("runs/mine"), name="mine", curve=Curve(...), info=None)`
    """

    path: Path
    """Path as given by the user."""

    name: str
    """Short name, unique among the sources read together."""

    curve: Curve
    """Points of the curve."""

    info: RunInfo | None
    """What run.json says, if the path is a run directory of this package."""

    log: Imported | None = None
    """How the log of another trainer was read; None for a run directory and a file of points."""

    suites: tuple[Curve, ...] = ()
    """Evaluation suites of the run, each labeled with its name; they have points and no forecast."""

    def terms(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options of `advise` or `outlook`; None for gain or price stands for that of the run, if it has one."""
        run = {"min_gain": self.info.min_gain, "price": self.info.price} if self.info else {}
        return {**run, **{name: value for name, value in options.items() if value is not None}}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the curve must know about its data."""
        return self.info.notes if self.info else self.log.notes if self.log else ()

    def log_lines(self) -> list[str]:
        """Return what was read of a log, as `Imported.lines`; empty for points."""
        if self.log is None:
            return []
        caution = self.about_bounds
        return [*self.log.lines(), *([f"caution   {caution}"] if caution else [])]

    @property
    def about_bounds(self) -> str:
        """What to know about bounds that are those of the values so far, if the run would soon pass them; else empty.

        A forecast cannot exceed its bounds, so its gain is too small if the trend of the last doubling of compute would
        lead beyond them in the next one.
        """
        if self.log is None:
            return ""
        from scalerl.reading.logs.bounds import FROM_VALUES

        if self.log.bounds_origin != FROM_VALUES or len(self.curve) < LEAST_POINTS:
            return ""
        low, high = self.curve.bounds
        if self.curve.metric[-LEAST_POINTS:].mean() + trend(self.curve).rise <= high:
            return ""
        return (
            f"the bounds {low:g} to {high:g} are those of the values so far, and the run may soon pass them; the "
            "forecast cannot, so its gain is too small; --bounds LOW HIGH sets the range of the metric"
        )


def read_sources(runs: Sequence[Any], **options: Unpack[ReadOptions]) -> list[Source]:
    """Read whatever has the points of runs: the one reader of the commands and of Python.

    Args:
        runs: Paths of run directories, of files of points and of what `importers.read` takes; curves; data frames and
            rows (`tables.frames`); what `importers.read` returned.
        options: How they are read. Options that only a log has make a file of points one.

    Raises:
        CurveError: One of them has no curve, or several.
        ConfigError: The run.json of a run directory cannot be used.
    """
    check_values(options)
    paths = iter(names_of([Path(run) for run in runs if is_path(run)]))
    names = [next(paths) if is_path(run) else _name(run, number, len(runs)) for number, run in enumerate(runs, 1)]
    curves = [name for name, run in zip(names, runs, strict=True) if isinstance(run, Curve)]
    if len(set(curves)) < len(curves):
        pairs = enumerate(zip(names, runs, strict=True), 1)
        names = [f"{name} ({number})" if isinstance(run, Curve) else name for number, (name, run) in pairs]
    return [_read(run, name, options) for run, name in zip(runs, names, strict=True)]


def is_path(run: Any) -> bool:
    """Return whether a run is given as a path; `api.Run` is one too."""
    return isinstance(run, str | os.PathLike)


def curve_from(data: Any, **options: Unpack[ReadOptions]) -> Curve:
    """Return the curve of whatever has its points; arguments and errors as for `read_sources`."""
    return read_sources([data], **options)[0].curve


def _name(run: Any, number: int, count: int) -> str:
    """Return the name of a run that is in Python."""
    if isinstance(run, Curve):
        return run.label or (f"run {number}" if count > 1 else "the curve")
    if isinstance(run, list | tuple | Mapping):
        return f"rows {number}" if count > 1 else "the list of rows"
    return f"data frame {number}" if count > 1 else "the data frame"


@contextmanager
def naming(source: Source) -> Iterator[None]:
    """Add the path of the file to an error about its curve."""
    try:
        yield
    except CurveError as error:
        few = len(source.curve) < MIN_POINTS and source.log is not None
        merged = f" ({'; '.join(source.log.merged)})" if few and source.log and source.log.merged else ""
        raise CurveError(f"{source.path}: {error}{merged}") from error


def source_outlook(source: Source, fit_result: Fit | None = None, **options: Any) -> Outlook:
    """Fit the curve of a source, forecast it and give advice, for a run with commands; options are those of `outlook`.

    Args:
        source: The curve.
        fit_result: Its fit, if it is known; options are then those of `outlook_of`.
        **options: Options of `outlook`.

    A run of this package has its own smallest gain and price, unless they are given.

    Raises:
        CurveError: As for `outlook`, with the path.
    """
    with naming(source):
        terms = source.terms(options)
        result = outlook(source.curve, **terms) if fit_result is None else outlook_of(fit_result, **terms)
    if source.info is None:
        return result
    return result.with_way_back(source.path, read_points(source.path), source.info.tasks)


def _read(run: Any, name: str, options: ReadOptions) -> Source:
    if isinstance(run, Curve):
        if given := [option for option, value in options.items() if value is not None and option != "answers"]:
            raise CurveError(f"{name} is a Curve, which has been read; give {given[0]}= to Curve.read, or leave it out")
        return _with_answers(Source(Path(name), name, run, None), options)
    path, info, log = Path(run) if is_path(run) else Path(name), None, None
    if is_path(run) and is_run(path):
        info = read_run(path)
        options = {**options, "compute": options.get("compute") or info.axis}
        if options.get("task") is None and len(info.tasks) == 1:
            options["task"] = next(iter(info.tasks))  # the others are evaluation suites
    guessed = choices_made({**options, "run": None})
    if is_path(run):
        table = read_table(path / POINTS if info is not None else path, points=not guessed)
    else:
        from scalerl.reading.tables.frames import table_from  # a fit of a file does not load it

        rows = getattr(run, "rows", None)
        table = table_from(rows if isinstance(rows, list) else run, name)  # `rows` of what `importers.read` returned
    if table.points and options.get("metric") == METRIC_COLUMNS[0]:  # which is read without its name too
        options = {**options, "metric": None}
        guessed = choices_made({**options, "run": None})
    if table.points and info is None and not guessed:
        table, options = _one_run(table, options.get("compute"), options.get("run")), {**options, "run": None}
    if guessed or not table.points:
        from scalerl.reading.logs.points import of_tables  # a fit of points does not load what guesses

        log = of_tables([table], paths=[path], **import_options(options))
    return source_of(table, log, path, name, options, info)


def _one_run(table: Table, axis: str | None, run: str | None) -> Table:
    """Return the points of one run; those of several at one compute would be averaged.

    Raises:
        CurveError: There are several runs and none was chosen; the message has their names and what tells them apart.
    """
    axis = axis or next((name for name in AXES if name in table.names), None)
    metric = next((name for name in METRIC_COLUMNS if name in table.names), None)
    if axis is None or metric is None:  # no numbers: the curve says so
        return table
    compute = table.column(axis)
    picked = np.flatnonzero(np.isfinite(compute) & np.isfinite(table.column(metric)))
    if run is None and ("task" in table.words or len(np.unique(compute[picked])) == len(picked)):
        return table
    from scalerl.reading.logs.runs import rows_of_run  # a fit of points does not load what guesses

    rows = rows_of_run(table, metric, picked, compute, run)
    return table if rows is None else table.select(rows)


def source_of(
    table: Table, log: Imported | None, path: Path, name: str, options: ReadOptions, info: RunInfo | None = None
) -> Source:
    """Return the curve of a table.

    Args:
        table: Rows with the columns of points, unless they are those of a log.
        log: What was read of the log; None: the table has the points.
        path: Where it is from.
        name: Name of the source.
        options: How it is read.
        info: What run.json says of a run of this package.

    Raises:
        CurveError: It has no curve, or not on the compute axis that was asked for.
    """
    axis = options.get("compute")
    if log is None:
        curve = Curve.of_table(table, str(path), axis, options.get("task"), bounds=_limits(options))
    else:
        if axis is not None and axis not in log.rows[-1]:
            known = ", ".join(known for known in AXES if known in log.rows[-1])
            raise CurveError(
                f"{name} has no compute {axis!r}; it has {known}. A column of the log becomes one with "
                "columns={'device_hours': NAME} (--column device_hours=NAME)"
            )
        curve = Curve.from_rows(log.rows, axis=axis or log.axis)
    suites = [replace(Curve.of_table(table, str(path), curve.axis, suite), label=suite) for suite in info.suites] \
        if info else []  # fmt: skip
    name_of_metric = log.metric if log else ""
    curve = replace(curve, label=curve.label or path.stem, metric_name=name_of_metric)
    return _with_answers(Source(path, name, curve, info, log, tuple(suites)), options)


def _with_answers(source: Source, options: ReadOptions) -> Source:
    if (answers := options.get("answers")) is None:
        return source
    with naming(source):
        return replace(source, curve=source.curve.with_answers(answers))


def _limits(options: ReadOptions) -> tuple[float, float] | None:
    bounds = options.get("bounds")
    return None if bounds is None else checked_bounds(bounds)


def import_options(options: ReadOptions) -> dict[str, Any]:
    """Return the options as arguments of `importers.points.of_tables`."""
    choices = {name: value for name, value in options.items() if name in LogChoices.__annotations__}
    return {**choices, "task": options.get("task"), "bounds": _limits(options)}


def choices_made(options: ReadOptions) -> bool:
    """Return whether anything was chosen that only the log of another trainer has."""
    return any(options.get(name) not in (None, {}) for name in LogChoices.__annotations__)


def check_hours(source: Source) -> None:
    """Refuse the price of a device-hour for a log from which device-hours do not follow.

    Raises:
        LogError: The number of devices is missing, or the time of the steps.
    """
    log = source.log
    if log is None or "device_hours" in log.rows[0]:
        return
    if log.clock:
        raise LogError(
            f"a price needs device-hours: {source.name} has the time of its steps, but not the number of devices; give "
            "it as devices= (--devices)",
            add=("--devices", "N"),
        )
    raise LogError(
        f"a price needs device-hours: {source.name} has no time of its steps. If a column has the seconds of each "
        "step, give it as columns={'seconds': NAME} (--column seconds=NAME), with devices=; else leave out the price",
        without="--price",
    )


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are unique; a path given twice has the same name twice."""
    parts, depth = [_telling_parts(path) for path in paths], 1
    while len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def side_names(sides: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Return a name for each of two sides of a comparison: that of its run, or what the names of its runs share."""
    shared = [side[0] if len(set(side)) == 1 else _shared_start(side).rstrip("0123456789-_./ ") for side in sides]
    first, second = (name or ", ".join(side[:3]) for name, side in zip(shared, sides, strict=True))
    return (first, second) if first != second else (f"{first} (first)", f"{second} (second)")


def _shared_start(names: Sequence[str]) -> str:
    """Return the characters with which all names start."""
    alike = [len(set(letters)) == 1 for letters in zip(*names, strict=False)]
    return names[0][: [*alike, False].index(False)]


def _telling_parts(path: Path) -> tuple[str, ...]:
    """Return the parts of a path that can identify a run: without the extension, and without the name points.jsonl."""
    full = Path(os.path.realpath(path))  # Path.resolve raises for circular links
    if full.is_dir():
        return full.parts[1:]
    return full.parts[1:-1] if full.stem == "points" else (*full.parts[1:-1], full.stem)
