"""The functions of `import scalerl` about curves: each takes whatever has a run's points, as the commands read them.

That is the path of a file, a log or a run, a data frame, rows (dicts), columns by name, a `Curve`, or a fit. The
options of `ReadOptions` say how it is read; they have the names that they have on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from scalerl.core.calls import check_values, checked
from scalerl.core.outputs import check_output
from scalerl.core.rows import read_points
from scalerl.reading import curves as scaling
from scalerl.reading.curves import (
    Advice,
    Backtest,
    Comparison,
    Curve,
    CurveError,
    Fit,
    Forecast,
    Frontier,
    Prior,
    Together,
)
from scalerl.reading.curves.curve import READ_HABITS, ReadOptions
from scalerl.reading.curves.price import shared_price
from scalerl.reading.pages.outlook import (
    Source,
    check_hours,
    is_path,
    naming,
    read_sources,
    side_names,
    with_way_back,
)

CALL_HABITS = READ_HABITS | {
    words: hint
    for names, hint in {
        "horizon to until periods multiples n factor budgets": "at='4x', or at=['2x', '4x']",
        "steps": "at='+100' for 100 more, or columns={{'step': NAME}} for the column of the steps",
        "goal threshold reach": "target={value}",
        "cost gpu_price price_per_hour hourly": "price={value}, of a device-hour",
        "ci alpha confidence quantiles": "nothing, because every interval has 90%",
        "stderr sigma yerr error se": "Curve(compute, metric, stderr=...) in place of the data",
        "labels label": "names=('FIRST', 'SECOND')",
        "epsilon delta min_delta tolerance": "min_gain={value}",
        "out path filename save_to": "output={value}",
        "fraction split train_fraction train_size": "fractions={value}",
        "method": "scalerl.reading.curves.paper_fit(scalerl.Curve.read(data)) for the paper's procedure",
        "p0 init priors bounds_": "prior=scalerl.reading.curves.Prior(...), or r0=... for the level before training",
        "title": "names=(FIRST, SECOND) in compare, name= in plot",
        "skip burn_in warmup exclude start": "exclude_below={value}",
    }.items()
    for words in names.split()
}
"""What to write instead of keywords that users of other packages try."""

takes_data = checked(ReadOptions.__annotations__, CALL_HABITS)


@takes_data
def fit(  # type: ignore[misc]  # `metric` is in the options too
    data: Any,
    metric: Any = None,
    *,
    r0: float | None = None,
    exclude_below: float = 0.0,
    prior: Prior | None = None,
    **reading: Unpack[ReadOptions],
) -> Fit:
    """Fit R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) to a run, as `scalerl fit`.

    Args:
        data: Whatever has the points of one run (see the top of this module); or the compute of each point.
        metric: Name of the metric; or the metric of each point, `fit(hours, pass_rates)`.
        r0: Value at which R0 is fixed; None fits it.
        exclude_below: Compute below which points are left out (the paper drops the first epoch), except the point at
            compute 0, which is R0.
        prior: Prior of the parameters; None: the defaults of `Prior`.
        reading: How the data are read.

    Raises:
        CurveError: The data cannot be read or fitted; the message states what to do.

    Example:
        >>> fit([0, 100, 200, 400, 800], [0.20, 0.31, 0.42, 0.51, 0.56]).curve.last_compute
        800.0
    """
    check_values({"r0": r0, "exclude_below": exclude_below})
    if prior is not None and not isinstance(prior, Prior):
        raise CurveError(f"prior must be a Prior; got {prior!r:.60}")
    if metric is None or isinstance(metric, str):
        source = one_source(data, {**reading, "metric": metric})
    else:
        source = one_source(of_arrays(data, metric, reading), {})
    with naming(source):
        return scaling.fit(source.curve, r0=r0, exclude_below=exclude_below, prior=prior)


@takes_data
def forecast(
    data: Any,
    at: Any = ("2x", "4x"),
    target: float | None = None,
    *,
    mean_of: int = 1,
    exclude_below: float = 0.0,
    **reading: Unpack[ReadOptions],
) -> Forecast:
    """Forecast a run at more compute, as `scalerl forecast`.

    Args:
        data: A fit, or whatever has the points of one run.
        at: One or more amounts of compute: in the curve's unit, "4x" for four times the last point, or "+100" for 100
            more than it.
        target: Level of the metric; `Forecast.target` is the compute at which it is reached.
        mean_of: Number of successive evaluations around each compute whose mean `Forecast.evaluations` is.
        exclude_below: As for `fit`.
        reading: How the data are read.

    Raises:
        CurveError: The data cannot be read or fitted, or an amount or the target cannot be used.
    """
    check_values({"target": target, "mean_of": mean_of})
    run = fitted(data, reading, exclude_below)
    return scaling.forecast(run.fit, at, target, mean_of=mean_of)


@takes_data
def advise(
    data: Any,
    budget: float | str = "2x",
    min_gain: float | None = None,
    *,
    price: float | None = None,
    exclude_below: float = 0.0,
    **reading: Unpack[ReadOptions],
) -> Advice:
    """Say whether to continue a run, its gain and its price, as `scalerl fit`.

    Args:
        data: A fit, or whatever has the points of one run. A run directory has its own smallest gain and price.
        budget: Compute beyond the last point at which the gain is judged, in the curve's unit or as a multiple, "2x".
        min_gain: Smallest gain that is worth the compute, in the metric's unit; None: that of the run, or 0.02 of the
            metric's range.
        price: Price of a device-hour; None: that of the run, or costs are in device-hours.
        exclude_below: As for `fit`.
        reading: How the data are read.

    Raises:
        CurveError: The data cannot be read or fitted, the budget is already spent, or the gain or price cannot be used.
    """
    terms = {"min_gain": min_gain, "price": price}
    check_values(terms)
    run = fitted(data, reading, exclude_below)
    source = run.source
    if source is None:
        return scaling.advise(run.fit, budget, **terms)
    check_price([source], price)
    with naming(source):
        advice = scaling.advise(run.fit, budget, **source.terms(terms))
    if advice.action != "go back" or source.info is None:
        return advice
    return with_way_back(advice, source.path, read_points(source.path), source.info.tasks)


@checked(ReadOptions.__annotations__, CALL_HABITS, "several runs of a side are a list")
def compare(
    first: Any,
    second: Any = None,
    level: float | None = None,
    siblings: Sequence[Any] = (),
    names: tuple[str, str] | None = None,
    price: float | None = None,
    *,
    at: float | str | None = None,
    exclude_below: float = 0.0,
    **reading: Unpack[ReadOptions],
) -> Comparison:
    """Compare two recipes by their runs, as `scalerl compare`.

    Args:
        first: One or several seeds of one recipe: fits, or whatever has the points of a run. A dict has both recipes
            by name.
        second: One or several seeds of the other recipe.
        level: Metric level at which compute is compared; None: four fifths of the climb to the level that both sides
            have reached.
        siblings: Runs of other recipes with the same scatter between seeds, which only serve to estimate it.
        names: Names of both sides in the sentence; None: the names of their files.
        price: Price of a device-hour; None: that of the runs, or costs are in device-hours.
        at: Compute at which the lead is forecast, "4x" or a number; None: twice what both sides have reached.
        exclude_below: As for `fit`.
        reading: How the data are read.

    Raises:
        CurveError: A side is empty or cannot be read or fitted, the runs have different metrics or compute axes, or the
            level or price cannot be used.
    """
    if holds_runs(first):
        if len(first) != 2 or second is not None:
            raise CurveError(f"compare takes two recipes; got a dict of {len(first)}: {', '.join(map(str, first))}")
        (of_first, first), (of_second, second) = first.items()
        names = names or (str(of_first), str(of_second))
    if second is None:
        raise CurveError("compare takes two recipes: compare(first, second) or compare({'base': first, 'new': second})")
    check_values({"level": level, "price": price, "names": names})
    sides = run_list(first), run_list(second)
    others = [run_list(runs) for runs in siblings]
    if not all(sides):
        raise CurveError("each side of a comparison needs at least one run; got none")
    runs = all_fitted([run for side in (*sides, *others) for run in side], reading, exclude_below)
    parts, start = [], 0
    for side in (*sides, *others):
        parts.append(runs[start : start + len(side)])
        start += len(side)
    sources = [run.source for run in runs if run.source is not None]
    check_price(sources, price)
    read = [[run.source.name for run in part if run.source and run.named] for part in parts[:2]]
    if names is None:
        complete = all(len(side) == len(part) for side, part in zip(read, parts, strict=False))
        names = side_names(read) if complete else ("the first", "the second")
    fits = [[run.fit for run in part] for part in parts]
    price = shared_price(price, [source.terms({}).get("price") for source in sources]) if sources else price
    return scaling.compare(fits[0], fits[1], level, fits[2:], names, price, at)


@takes_data
def backtest(
    data: Any, fractions: Any = (0.3, 0.5, 0.7), *, exclude_below: float = 0.0, **reading: Unpack[ReadOptions]
) -> Backtest:
    """Fit the first part of a run, and score its forecast of the rest and every baseline, as `scalerl backtest`.

    Args:
        data: A fit, or whatever has the points of one run.
        fractions: Shares of the last compute at which to split, each in (0, 1).
        exclude_below: As for `fit`.
        reading: How the data are read.

    Raises:
        CurveError: The data cannot be read, a fraction is outside (0, 1), or there are too few points before a split or
            none after it.
    """
    check_values({"exclude_below": exclude_below})
    shares = [fractions] if np.ndim(fractions) == 0 else list(fractions)
    for share in shares:
        check_values({"fractions": share})
    source = one_source(data, reading)
    with naming(source):
        return scaling.backtest(source.curve.between(exclude_below), shares)


@checked(ReadOptions.__annotations__, CALL_HABITS, "several runs are a list, fit_together([first, second])")
def fit_together(runs: Any, *, exclude_below: float = 0.0, **reading: Unpack[ReadOptions]) -> Together:
    """Fit related runs, which should end alike, such as seeds of one recipe, as `scalerl fit --together`.

    Args:
        runs: At least two fits, or whatever has the points of a run, with one metric and one compute axis.
        exclude_below: As for `fit`.
        reading: How the data are read.

    Raises:
        CurveError: There are fewer than two runs, a run cannot be read or fitted, or the runs differ in metric or axis.
    """
    check_values({"exclude_below": exclude_below})
    curves = [source.curve for source in sources_of_runs(run_list(runs), reading)]
    return scaling.fit_together(curves, exclude_below=exclude_below)


@takes_data
def frontier(
    runs: Any,
    settings: Any,
    budget: float,
    published: bool = True,
    also: Sequence[Mapping[str, Any]] = (),
    price: float | None = None,
    *,
    exclude_below: float = 0.0,
    **reading: Unpack[ReadOptions],
) -> Frontier:
    """Return the setting with the highest level at a budget, as `scalerl frontier`.

    Args:
        runs: At least two fits, or whatever has the points of a run.
        settings: Settings of each run by name, in the order of the runs: dicts, or a data frame with a row for each.
        budget: Compute of one run, in the unit of the curves' axis.
        published: Whether exponents of ScaleRL's Table 1 are prior means (`scaling.frontier`).
        also: More settings to predict and to choose from.
        price: Price of a device-hour; None: costs are in device-hours.
        exclude_below: As for `fit`.
        reading: How the data are read.

    Raises:
        CurveError: The runs cannot be read or pooled, the settings do not fit to them, or the price cannot be used.
    """
    check_values({"budget": budget, "price": price})
    if hasattr(settings, "to_dict") and hasattr(settings, "columns"):
        settings = settings.to_dict("records")
    items = run_list(runs)
    rows = list(settings) if isinstance(settings, list | tuple) else []
    if len(rows) != len(items) or not all(isinstance(row, Mapping) for row in rows):
        raise CurveError(
            f"settings must be a list of {len(items)} dicts, one for each run, such as [{{'learning_rate': 1e-6}}, "
            f"...]; got {settings!r:.60}"
        )
    fits = [run.fit for run in all_fitted(items, reading, exclude_below)]
    return scaling.frontier(fits, rows, budget, published, also, price)


@takes_data
def report(
    runs: Any,
    versus: Any = (),
    output: str | Path = "report.html",
    *,
    figures: str | Path | None = None,
    exclude_below: float = 0.0,
    min_gain: float | None = None,
    price: float | None = None,
    at: str | float | None = None,
    **reading: Unpack[ReadOptions],
) -> Path:
    """Write one page about runs that needs no network, as `scalerl report`, and return its path.

    Args:
        runs: One or several fits, or whatever has the points of a run.
        versus: Runs of another recipe, with which they are compared.
        output: Path of the page.
        figures: Directory for the figures and tables as files for papers (`papers.save_page`); None: none.
        exclude_below: As for `fit`.
        min_gain: As for `advise`.
        price: As for `advise`.
        at: As for `compare`.
        reading: How the data are read.

    Raises:
        CurveError: The runs cannot be read, fitted or compared.
        ConfigError: The page would replace an input or a file that is not a page, or plotly is not installed.
    """
    from scalerl.reading.pages.analysis import analyze
    from scalerl.reading.pages.frozen import write_page
    from scalerl.reading.pages.report import page_of

    if is_path(versus) and Path(versus).suffix == ".html":
        raise CurveError(f"versus has the runs of another recipe; for the path of a page write output={str(versus)!r}")
    terms = {"min_gain": min_gain, "price": price}
    check_values({"exclude_below": exclude_below, "output": output, "figures": figures, **terms})
    first, second = run_list(runs), run_list(versus)
    place = check_output(Path(output), [Path(run) for run in (*first, *second) if is_path(run)])
    sources = sources_of_runs([*first, *second], reading)
    analysis = analyze(sources[: len(first)], sources[len(first) :], exclude_below, terms=terms, at=at)
    made = page_of(sources, analysis)
    if figures is not None:
        from scalerl.reading.pages.papers import save_page

        save_page(Path(figures), made.page, made.figures)
    write_page(place, made.page, made.large)
    return Path(output)


# -------------------------------------------------------------------------------------------------------- what is given


class Fitted(NamedTuple):
    """A fit, and the source of its curve unless it was given as a fit."""

    fit: Fit
    source: Source | None
    named: bool
    """Whether it is that of a path, which is a name for sentences."""


def fitted(data: Any, reading: ReadOptions, exclude_below: float) -> Fitted:
    """Return the fit of one run; a fit is returned as it is."""
    if not isinstance(data, Fit):
        one_run(data)
    return all_fitted([data], reading, exclude_below)[0]


def all_fitted(runs: Sequence[Any], reading: ReadOptions, exclude_below: float) -> list[Fitted]:
    """Return the fits of runs; fits are returned as they are."""
    options = {**reading, "exclude_below": exclude_below}
    check_values(options)
    given = [name for name, value in options.items() if value not in (None, 0.0)]
    if given and runs and all(isinstance(run, Fit) for run in runs):
        raise CurveError(f"a Fit has been read already; give {given[0]}= to scalerl.fit, or leave it out")
    sources = iter(read_sources([run for run in runs if not isinstance(run, Fit)], **reading))
    made = []
    for run in runs:
        if isinstance(run, Fit):
            made.append(Fitted(run, None, named=False))
            continue
        source = next(sources)
        with naming(source):
            result = scaling.fit(source.curve, exclude_below=exclude_below)
        made.append(Fitted(result, source, is_path(run)))
    return made


def one_source(data: Any, reading: Mapping[str, Any]) -> Source:
    """Return the source of one run; of a fit it is its curve."""
    one_run(data)
    return sources_of_runs([data], reading)[0]


def sources_of_runs(runs: Sequence[Any], reading: Mapping[str, Any]) -> list[Source]:
    """Return the sources of runs, of fits that of their curves."""
    return read_sources([run.curve if isinstance(run, Fit) else run for run in runs], **reading)


def one_run(data: Any) -> None:
    """Check that data are those of one run.

    Raises:
        CurveError: They are a list of runs.
    """
    if holds_runs(data) or (isinstance(data, list | tuple) and data and all(is_run_like(item) for item in data)):
        raise CurveError(
            f"got a {type(data).__name__} of {len(data)} runs; give one, or write scalerl.fit_together(runs) for seeds "
            "of one recipe"
        )


def holds_runs(data: Any) -> bool:
    """Return whether data are runs by name, each one or a list of several, and not columns by name."""
    if not isinstance(data, Mapping):
        return False
    items = [item for value in data.values() for item in (value if isinstance(value, list | tuple) else [value])]
    return bool(items) and not any(isinstance(item, list) for item in items) and all(map(is_run_like, items))


def is_run_like(item: Any) -> bool:
    """Return whether an item of a list is a run, and not a row or a number."""
    return is_path(item) or isinstance(item, Curve | Fit) or hasattr(item, "columns") or isinstance(item, list)


def run_list(runs: Any) -> list[Any]:
    """Return one run, or several, as a list; rows (dicts) are one run."""
    if holds_runs(runs):
        return [run for part in runs.values() for run in run_list(part)]
    if not isinstance(runs, list | tuple) or (runs and not is_run_like(runs[0])):
        return [runs]
    return list(runs)


def of_arrays(compute: Any, metric: Any, reading: Mapping[str, Any]) -> Curve:
    """Return the curve of arrays with the compute and the metric of each point."""
    if is_path(compute) or isinstance(compute, Curve | Fit | Mapping) or hasattr(compute, "columns"):
        raise CurveError(
            f"with an array as the metric, the data must be the compute of each point; got a {type(compute).__name__}. "
            "Of a column give the name, metric='accuracy'"
        )
    wrong = [name for name in reading if name not in ("bounds", "compute", "task", "answers")]
    if wrong:
        raise CurveError(f"{wrong[0]}= says how a file or frame is read; leave it out for arrays")
    bounds = reading.get("bounds") or (0.0, 1.0)
    axis, label = reading.get("compute") or "compute", reading.get("task") or ""
    curve = Curve(compute, metric, (bounds[0], bounds[1]), axis=axis, label=label)
    answers = reading.get("answers")
    return curve if answers is None else curve.with_answers(answers)


def check_price(sources: Sequence[Source], price: float | None) -> None:
    """Refuse the price of a device-hour for logs from which device-hours do not follow."""
    if price is not None:
        for source in sources:
            check_hours(source)
