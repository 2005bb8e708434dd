"""The input of this package: the metric of a run against compute, checked when it is created.

Axes in names: N evaluation points.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike

from scalerl.core import VIEWS
from scalerl.core.calls import checked
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.notebook import PLOT_HABITS, Guided, Scale
from scalerl.reading.curves.units import UNITS as UNITS
from scalerl.reading.curves.units import compute_text
from scalerl.reading.tables.errors import CurveError
from scalerl.reading.tables.names import AXES, METRIC_COLUMNS
from scalerl.reading.tables.table import MOST_WORDS, Table, table_of

TRAINING_REWARD = "training reward"
"""What the column `kind` of imported rows says, if the metric is the reward of training."""


LARGEST_NUMBER = 1e100
"""Largest compute, metric and standard error. Their squares and products are finite."""


Kind = TypeVar("Kind")


class LogChoices(TypedDict, total=False):
    """How the log of another trainer is read; the arguments of `importers.read`.

    Example: `{"metric": "eval/accuracy", "devices": 8.0}`
    """

    source: str | None
    """Trainer of the log; None: recognized by its columns."""
    metric: str | None
    """Metric of the log; None: a score on held-out prompts, else the reward of training."""
    run: str | None
    """Name of the run; required if a log has several."""
    devices: float | None
    """Number of accelerators, for device-hours."""
    columns: Mapping[str, str] | None
    """Column by role, `{"step": "iteration"}`: step, seconds, clock, tokens, step_tokens, device_hours, flops, task or
    stderr."""


READ_HABITS = {
    words: hint
    for names, hint in {
        "x step x_col xcol on index time": "columns={{'step': {value}}} for the column of the steps",
        "y acc accuracy metric_name metric_key y_col ycol key score value column": "metric={value}",
        "gpus n_gpus num_gpus ngpus gpu num_devices n_devices world_size": "devices={value}",
        "axis unit compute_axis x_axis": "compute={value}",
        "name run_name run_id experiment": "run={value}",
        "range limits ylim min_max": "bounds=(LOW, HIGH)",
        "trainer format from_ framework": "source={value}",
    }.items()
    for words in names.split()
}
"""What to write instead of keywords that users of other packages try, by keyword; `{value}` stands for the argument."""


class ReadOptions(LogChoices, total=False):
    """How the points of a run are read: the options of the commands that read curves, with their names.

    Example: `{"metric": "eval_accuracy", "columns": {"step": "global_step"}, "devices": 8, "bounds": (0, 100)}`
    """

    compute: str | None
    """Compute axis: device_hours, flops, tokens or step; None: that of the run, or the first that the rows have."""
    task: str | None
    """Name of the task; required if there are several."""
    bounds: Sequence[float] | None
    """Minimum and maximum of the metric; None: by its name, or from its values."""
    answers: float | None
    """Answers behind each point of rows without a column stderr or answers, which give its noise."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Curve(Guided):
    """The metric of a run on held-out prompts, against the compute used up to each evaluation.

    Repairs, each recorded in `notes`: rows out of order are sorted, rows at the same compute are averaged, rows
    without a number are left out. Any other problem is a `CurveError`.

    Example:
        >>> curve = Curve(compute=[0, 100, 200, 400, 800], metric=[0.20, 0.31, 0.42, 0.51, 0.56])
        >>> len(curve), curve.last_compute
        (5, 800.0)
    """

    compute: Array
    """Compute used, shape (N,), ascending, >= 0, any unit; 0 is the evaluation before training."""

    metric: Array
    """Mean score at that compute, shape (N,), within `bounds`."""

    bounds: tuple[float, float] = (0.0, 1.0)
    """Smallest and largest possible value of the metric: (0, 1) for a pass rate, (-1, 1) for some rewards."""

    stderr: Array | None = None
    """Standard error of each metric value, shape (N,), or None. The posterior estimates the noise from the scatter of
    the points, and uses the standard errors for their relative weights and for the noise if all values are equal."""

    answers: Array | None = None
    """Number of answers behind each metric value, a share of correct ones, shape (N,), or None. The weights of the
    points follow from it, and standard errors if there are none."""

    axis: str = "compute"
    """Name of the compute axis: device_hours, flops, tokens, step, or any other name."""

    label: str = ""
    """Name of the run or task, for reports."""

    notes: tuple[str, ...] = ()
    """Repairs; fits include them in their warnings."""

    measured: str = ""
    """What a file says about its rows, such as "arithmetic, 512 prompts, FLOPs by rule 1"; "": nothing. Curves are
    compared only if it is the same."""

    hours_per_unit: float = math.nan
    """Device-hours per unit of compute, for prices; 1 on the axis device_hours, NaN if unknown."""

    prompts: int = 0
    """Prompts of one evaluation; 0 if unknown."""

    training: bool = False
    """Whether the metric is the reward of training prompts, and not a score on held-out ones."""

    metric_name: str = ""
    """Name of the metric in the log of another trainer, for figures, such as "val_accuracy"; "": a pass rate."""

    @checked(also="Curve.read(data) reads files, runs, data frames and rows")
    def __init__(
        self,
        compute: ArrayLike,
        metric: ArrayLike,
        bounds: tuple[float, float] = (0.0, 1.0),
        stderr: ArrayLike | None = None,
        axis: str = "compute",
        label: str = "",
        notes: tuple[str, ...] = (),
        measured: str = "",
        hours_per_unit: float = math.nan,
        prompts: int = 0,
        training: bool = False,
        answers: ArrayLike | None = None,
        metric_name: str = "",
    ) -> None:
        low, high = checked_bounds(bounds)
        given = {"compute": compute, "metric": metric, "stderr": stderr, "answers": answers}
        columns = {name: as_numbers(name, values) for name, values in given.items() if values is not None}
        lengths = {name: len(column_N) for name, column_N in columns.items()}
        if len(set(lengths.values())) > 1:
            raise CurveError(f"columns must have the same length; got {lengths}")
        columns, repairs = repaired(columns, axis)
        check_range(columns["compute"], columns["metric"], low, high)
        if "answers" in columns:
            columns["answers"][columns["answers"] < 1] = np.nan
        if "answers" in columns and "stderr" not in columns:
            columns["stderr"] = errors_of_share(columns["metric"], columns["answers"], (low, high))
        for name in ("stderr", "answers"):
            if name in columns and not np.isfinite(columns[name]).any():
                del columns[name]
        for column_N in columns.values():
            column_N.flags.writeable = False
        values = {
            "bounds": (low, high), "axis": axis, "label": label, "notes": (*notes, *repairs), "measured": measured,
            "hours_per_unit": 1.0 if axis == "device_hours" else float(hours_per_unit), "prompts": int(prompts),
            "training": training, "metric_name": metric_name,
        }  # fmt: skip
        for name, value in {"stderr": None, "answers": None, **columns, **values}.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.compute)

    def __repr__(self) -> str:
        return f"Curve({self})"

    @checked(habits=PLOT_HABITS)
    def plot(self, ax: Any = None, *, name: str = "", scale: Scale = "log", dark: bool = False) -> Any:
        """Draw the points with their fit, forecast and ceiling on matplotlib axes; None: new ones. Return the axes."""
        return VIEWS["plot"](self, ax, name=name, scale=scale, dark=dark)

    def __str__(self) -> str:
        name = f"{self.label}: " if self.label else ""
        climb = f"metric {self.metric[0]:.4g} to {self.metric[-1]:.4g}"
        return f"{name}{len(self)} points to {self.text(self.last_compute)}, {climb}"

    @property
    def last_compute(self) -> float:
        """Compute of the last point."""
        return float(self.compute[-1])

    @property
    def unit(self) -> str:
        """Unit of compute in text."""
        return UNITS.get(self.axis, self.axis)

    def text(self, compute: float) -> str:
        """Return an amount of compute with its unit, as people say it: 12.4 TFLOP, 310 device-hours."""
        return compute_text(compute, self.axis)

    @property
    def level_format(self) -> str:
        """Format of levels: three decimals for a pass rate, the same relative precision for other metrics."""
        low, high = self.bounds
        return f".{max(0, 3 - round(math.log10(high - low)))}f"

    def with_answers(self, answers: float) -> Curve:
        """Return the curve of shares of correct answers with their number behind each point.

        Raises:
            CurveError: The number is not positive, or the rows have standard errors already.
        """
        if not (np.isfinite(answers) and answers >= 1):
            raise CurveError(f"the number of answers behind each point must be at least 1; got {answers:g}")
        if self.stderr is not None:
            raise CurveError("the rows have standard errors already; leave out the number of answers")
        return replace(self, answers=np.full(len(self), float(answers)))

    @property
    def what(self) -> str:
        """What the points are, in text."""
        return f"points of {TRAINING_REWARD}" if self.training else "evaluations"

    def between(self, least: float = 0.0, most: float = np.inf) -> Curve:
        """Return the curve of the points with least <= compute <= most, and of the point at compute 0, which is R0.

        Raises:
            CurveError: No point after compute 0 lies in that range.
        """
        keep_N = ((self.compute >= least) | (self.compute == 0)) & (self.compute <= most)
        if not (keep_N & (self.compute > 0)).any():
            range_text = f"from {least:.4g} to {most:.4g}" if np.isfinite(most) else f"at or above {least:.4g}"
            raise CurveError(
                f"no evaluation lies {range_text} {self.unit}; the curve goes from "
                f"{self.compute[self.compute > 0][0]:.4g} to {self.last_compute:.4g}"
            )
        return self._select(keep_N)

    def first(self, count: int) -> Curve:
        """Return the curve of the first points."""
        return self._select(np.arange(len(self)) < count)

    def _select(self, keep_N: Any) -> Curve:
        def kept(column_N: Array | None) -> Any:
            return None if column_N is None else column_N[keep_N]

        return replace(
            self,
            compute=kept(self.compute),
            metric=kept(self.metric),
            stderr=kept(self.stderr),
            answers=kept(self.answers),
        )

    @classmethod
    @checked(ReadOptions.__annotations__, READ_HABITS)
    def read(cls, data: Any, **reading: Unpack[ReadOptions]) -> Curve:
        """Read the curve of whatever has its points, as the commands do.

        Args:
            data: The path of a file, run or log; a data frame, rows (dicts) or columns by name.
            reading: How it is read (`ReadOptions`).

        Raises:
            CurveError: It cannot be read as a curve; the message states what to do.
        """
        curve: Curve = VIEWS["curve_from"](data, **reading)
        return curve

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], **choices: Any) -> Curve:
        """Return the curve of rows (dicts), such as the lines of a points.jsonl; keyword arguments as in `of_table`."""
        return cls.of_table(table_of(rows), "the rows", **choices)

    @classmethod
    def of_table(
        cls, table: Table, source: str, axis: str | None = None, task: str | None = None, metric: str | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Curve:  # fmt: skip
        """Return the curve of a table with the columns of points.

        Args:
            table: The table.
            source: Its name for messages.
            axis: Compute column; None: the first of `AXES` that exists.
            task: Name of the task; required if there are several.
            metric: Metric column; None: the first of `METRIC_COLUMNS` that exists.
            bounds: Smallest and largest possible value of the metric; None: as the rows say, or 0 and 1.

        Raises:
            CurveError: The table or its columns cannot be used; the message states what to do.
        """
        table, label = one_task(table, task, source)
        axis_name = column(table, axis, AXES, "compute", source)
        metric_name = column(table, metric, METRIC_COLUMNS, "metric", source)
        compute_N, metric_N = (number_column(table, name) for name in (axis_name, metric_name))
        stderr_N, answers_N = (
            number_column(table, name) if name in table.columns else None for name in ("stderr", "answers")
        )
        training = last_label(table, "kind") == TRAINING_REWARD
        if training:  # its name in every figure, page and comparison
            label = f"{label} ({TRAINING_REWARD})".strip()
        prompts = last_label(table, "prompts") or ""
        return cls(
            compute_N, metric_N, bounds or stored_bounds(table, source), stderr_N, axis_name,
            label, table.notes, measured(table, label, axis_name),
            hours_per_unit(table, compute_N), int(prompts) if prompts.isdecimal() else 0, training, answers_N,
        )  # fmt: skip


def checked_curve(data: Any) -> Curve:
    """Return a curve after checking that it is one; `scalerl.fit` and its like read whatever else has the points."""
    return checked_kind(data, Curve, "Curve(compute, metric) or Curve.read(data)", "scalerl.fit")


def checked_kind(data: Any, kind: type[Kind], example: str, reader: str) -> Kind:
    """Return data of a kind; an error has an example, and the function that reads whatever else has the points."""
    if isinstance(data, kind):
        return data
    raise CurveError(
        f"got a {type(data).__name__}; allowed: a {kind.__name__}, such as {example}. {reader} and its like read "
        "files, runs, data frames and rows"
    )


def hours_per_unit(table: Table, compute_N: Array) -> float:
    """Return the device-hours per unit of compute at the last row that has both; NaN if no row has."""
    hours_N = table.column("device_hours")
    both_N = (hours_N > 0) & (compute_N > 0)
    last = np.flatnonzero(both_N)[np.argmax(compute_N[both_N])] if both_N.any() else None
    return math.nan if last is None else float(hours_N[last] / compute_N[last])


def errors_of_share(metric_N: Array, answers_N: Array, bounds: tuple[float, float]) -> Array:
    """Return the standard errors of shares of correct answers, with one answer added on each side; NaN without number.

    The added answers keep the error above zero if all answers are right.
    """
    low, high = bounds
    share_N = ((metric_N - low) / (high - low) * answers_N + 1.0) / (answers_N + 2.0)
    return np.asarray((high - low) * np.sqrt(share_N * (1.0 - share_N) / answers_N))


def last_label(table: Table, name: str) -> str | None:
    """Return the cell of the last row in a column as text, or None."""
    return table.labels(name)[-1] if table.size else None


def stored_bounds(table: Table, source: str) -> tuple[float, float]:
    """Return the bounds that the rows of an import have, or 0 and 1."""
    if (text := last_label(table, "bounds")) is None:
        return (0.0, 1.0)
    if (pair := re.fullmatch(r"\[([-+.e\d]+), ([-+.e\d]+)\]", text)) is None:
        raise CurveError(f"{source}: bounds must be two numbers, such as [0, 2]; got {text!r:.60}")
    return float(pair[1]), float(pair[2])


def measured(table: Table, task: str, axis: str) -> str:
    """Return the held-out set and the rule of counted FLOPs, as far as the rows have them."""
    columns = {"prompts": "{} prompts", **({"flops_rule": "FLOPs by rule {}"} if axis == "flops" else {})}
    last = {text: last_label(table, name) for name, text in columns.items()}
    return ", ".join([*([task] if task else []), *(text.format(cell) for text, cell in last.items() if cell)])


def checked_bounds(bounds: Iterable[float]) -> tuple[float, float]:
    """Return the bounds of a metric after checking them."""
    low, high = (float(bound) for bound in bounds)
    if not -LARGEST_NUMBER <= low < high <= LARGEST_NUMBER:
        raise CurveError(
            f"bounds must be two finite numbers in ascending order, from -{LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}; "
            f"got {low:g} and {high:g}"
        )
    return low, high


def column(table: Table, choice: str | None, default_names: tuple[str, ...], what: str, source: str) -> str:
    """Return the column to use: the user's choice, or the first default that exists and is not empty."""
    if choice is not None:
        if choice not in table.columns:
            raise CurveError(f"{source} has no {what} column {choice!r}; it has {', '.join(table.columns) or 'none'}")
        return choice
    for name in default_names:
        if name in table.columns:
            return name
    raise CurveError(
        f"{source} has no {what} column: looked for {', '.join(default_names)}, found "
        f"{', '.join(table.columns) or 'none'}; name one"
    )


def number_column(table: Table, name: str) -> Array:
    """Return a column of numbers, shape (N,); NaN where a row has none."""
    if name in table.words:
        raise CurveError(f"{name} must be numbers; got {table.words[name].words[0]!r:.60}")
    return as_numbers(name, table.column(name))


def one_task(table: Table, task: str | None, source: str) -> tuple[Table, str]:
    """Return the rows of one task and its name; several tasks without a choice are an error."""
    label_N = table.labels("task")
    if "task" in table.words and not table.words["task"].words:
        raise CurveError(f"{source} has more than {MOST_WORDS} tasks; give the rows of one")
    names = sorted({name for name in label_N if name is not None})
    if not names:
        if task is not None:
            raise CurveError(f"task {task!r} was given, but {source} has no task column")
        return table, ""
    if task is None and len(names) > 1:
        raise CurveError(f"{source} mixes tasks {', '.join(names)}; choose one with task=")
    if task is not None and task not in names:
        raise CurveError(f"{source} has no task {task!r}; it has {', '.join(names)}")
    selected = task if task is not None else names[0]
    both = (selected,) if task is not None else (None, selected)
    keep_N = np.array([label in both for label in label_N], dtype=bool)
    return (table if keep_N.all() else table.select(keep_N)), selected


def as_numbers(name: str, values: ArrayLike) -> Array:
    """Return a flat array of floats; None and empty cells become NaN."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise CurveError(f"{name} must be numbers: {error}") from error
    if array.ndim != 1:
        raise CurveError(f"{name} must be one column of numbers; got an array of shape {array.shape}")
    if (wrong := array[np.abs(array) > LARGEST_NUMBER]).size:
        raise CurveError(
            f"{name} must be finite numbers from -{LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}; got {wrong[0]:g}"
        )
    return array


def repaired(columns: dict[str, Array], axis: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the columns without empty rows, in order of compute, with one row per compute, and notes about repairs."""
    notes: list[str] = []
    full_N = ~(np.isnan(columns["compute"]) | np.isnan(columns["metric"]))
    if not full_N.all():
        notes.append(f"left out because they have no number (NaN or empty): {rows(int((~full_N).sum()))}")
        columns = {name: column_N[full_N] for name, column_N in columns.items()}
    if (np.diff(columns["compute"]) < 0).any():
        notes.append("rows were not in order of compute and were sorted")
    # a stable sort: equal compute keeps the order of the file
    order_N = np.argsort(columns["compute"], kind="stable")
    columns = given = {name: column_N[order_N] for name, column_N in columns.items()}
    distinct, first, count = np.unique(columns["compute"], return_index=True, return_counts=True)
    if len(distinct) < len(order_N):
        shared = [f"{n} at {compute_text(c, axis)}" for c, n in zip(distinct, count, strict=True) if n > 1]
        notes.append(f"averaged because they have the same compute: {listed(shared)}")
        sums = {name: np.add.reduceat(column_N, first) for name, column_N in columns.items()}
        columns = {**sums, "compute": distinct, "metric": sums["metric"] / count}
        if "stderr" in given:
            columns["stderr"] = np.sqrt(np.add.reduceat(given["stderr"] ** 2, first)) / count
    return columns, tuple(notes)


def listed(items: Sequence[str], most: int = 4) -> str:
    """Return the first items in one line, and how many more there are."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return ", ".join([*items[:most], *more])


def rows(count: int) -> str:
    """Return a number of rows as text."""
    return "1 row" if count == 1 else f"{count} rows"


def check_range(compute_N: Array, metric_N: Array, low: float, high: float) -> None:
    """Raise if the data cannot be repaired: no points, negative compute, a metric outside its bounds."""
    if not len(compute_N):
        raise CurveError("the curve has no points; each needs a compute and a metric value")
    if compute_N[0] < 0:
        raise CurveError(f"compute must be >= 0; got {compute_N[0]:.6g}. Give the compute used so far, counted from 0")
    if compute_N[-1] == 0:
        raise CurveError("every point is at compute 0; a curve needs points after training began")
    # tolerance for rounding in means
    slack = 1e-9 * (high - low)
    outside = metric_N[(metric_N < low - slack) | (metric_N > high + slack)]
    if len(outside):
        hint = "give bounds=(least, greatest), --bounds on the command line"
        if low == 0 and high == 1:
            hint = "a percentage needs bounds=(0, 100), a reward in [-1, 1] needs bounds=(-1, 1), or --bounds -1 1"
        raise CurveError(
            f"metric must lie in [{low:g}, {high:g}]; {len(outside)} values do not, such as {outside[0]:.6g}: {hint}"
        )


def thinned(curve: Curve, most: int) -> Curve:
    """Return a curve with at most this many points: neighbors are averaged in groups of nearly equal size.

    Averaging changes the metric only to second order (by the curvature within one group) and keeps all information
    about its level. The point at compute 0 is averaged too, because alone it would be noisier than all others.
    """
    if len(curve) <= most:
        return curve
    edges = np.linspace(0, len(curve), most + 1).astype(int)[:-1]
    count = np.diff(np.append(edges, len(curve)))
    compute = np.add.reduceat(curve.compute, edges) / count
    metric = np.clip(np.add.reduceat(curve.metric, edges) / count, *curve.bounds)
    note = f"{len(curve)} points were averaged in groups to {len(compute)}"
    return replace(curve, compute=compute, metric=metric, stderr=None, answers=None, notes=(*curve.notes, note))
