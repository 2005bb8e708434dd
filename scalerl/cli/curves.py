"""The commands that read curves: fit, forecast, compare, backtest. They print text, or JSON (docs/json.md).

What only one of them needs is imported by it, so that a fit loads nothing of comparisons.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.cli.options import (
    Parser,
    add_at,
    add_curve_options,
    add_decision_options,
    add_price,
    add_versus,
    count,
    number,
    read_options,
)
from scalerl.cli.terminal import print_lines
from scalerl.reading.curves import CurveError, Fit, advise, fit, forecast
from scalerl.reading.curves.fit import usable_points
from scalerl.reading.curves.price import shared_price
from scalerl.reading.pages.outlook import (
    Outlook,
    Source,
    check_hours,
    forecast_dict,
    naming,
    read_sources,
    side_names,
    source_outlook,
)


class CommandResult(NamedTuple):
    """The result of a command for one curve, or for a comparison."""

    source: str
    """Path of the curve; empty for a comparison."""
    values: dict[str, Any]
    text: str


def run_fit(words: list[str]) -> int:
    """Print the fit, forecast and advice for each curve."""
    parser = curve_parser("fit", "Fit curves: ceiling, steepness, midpoint, and whether to continue training.")
    about = "posterior, for decisions, or paper, which repeats the paper's procedure and gives no uncertainty"
    parser.add_argument("--method", choices=("posterior", "paper"), default="posterior", help=about)
    about = "level before training, if it is known; by default it is fitted (paper: the point at compute 0)"
    parser.add_argument("--r0", type=number, metavar="LEVEL", help=about)
    for name, what in (("--asymptotes", "A"), ("--midpoints", "C_mid")):
        about = f"with --method paper: N equal steps of {what} to try; the paper has {PAPER_RANGES[what]}"
        parser.add_argument(name, nargs=3, type=number, metavar=("LOW", "HIGH", "N"), help=about)
    about = "fit related runs together, such as seeds: each shrinks toward what all of them share"
    parser.add_argument("--together", action="store_true", help=about)
    about = "also print what stands behind the advice: probability, trend, ceiling, naive forecasts, price of a point"
    parser.add_argument("--explain", action="store_true", help=about)
    add_decision_options(parser)
    options = parser.parse_args(words)
    for name in ("asymptotes", "midpoints"):
        if getattr(options, name) and options.method != "paper":
            raise CurveError(f"--{name} is the grid of --method paper; add that, or leave out --{name}")
    if options.together:
        return fit_runs_together(options)
    answers = []
    for source in sources_of(options.paths, options):
        if options.method == "paper":
            from scalerl.reading.curves import PaperGrid, paper_fit

            grid = PaperGrid(*(equal_steps(name, getattr(options, name)) for name in ("asymptotes", "midpoints")))
            with naming(source):
                best = paper_fit(source.curve, r0=options.r0, exclude_below=options.exclude_below, grid=grid)
            answers.append(answer_of(source, best.to_dict(), str(best)))
        else:
            outlook = source_outlook(
                source,
                r0=options.r0,
                exclude_below=options.exclude_below,
                min_gain=options.min_gain,
                price=options.price,
            )
            answers.append(outlook_answer(source, outlook, options))
    return print_answers(answers, as_json=options.json)


PAPER_RANGES = {"A": "0.45 0.8 71", "C_mid": "100 40000 100, for its small runs 100 4000 100"}
"""Grids of the paper, in device-hours."""


def equal_steps(name: str, ends: Sequence[float] | None) -> list[float] | None:
    """Return the values between the ends of an option LOW HIGH N, or None without it."""
    if ends is None:
        return None
    low, high, number = ends
    if not (math.isfinite(low) and math.isfinite(high) and low < high and number in range(2, MOST_STEPS + 1)):
        raise CurveError(
            f"--{name}: got {low:g} {high:g} {number:g}; allowed: LOW < HIGH, and a whole number N from 2 to "
            f"{MOST_STEPS}"
        )
    return [low + (high - low) * step / (number - 1) for step in range(int(number))]


MOST_STEPS = 1000
"""Largest number of steps of a grid: a thousand for both take seconds."""


def fit_runs_together(options: argparse.Namespace) -> int:
    """Print what related runs share, and the fit, forecast and advice for each.

    Raises:
        UserError: There is one run, or an option that a fit of several lacks.
    """
    from scalerl.reading.curves import fit_together

    if options.method == "paper" or options.r0 is not None:
        name = "--r0" if options.r0 is not None else "--method paper"
        raise CurveError(f"--together has no {name}; leave out one of the two")
    sources = sources_of(options.paths, options)
    for source in sources:
        with naming(source):
            usable_points(source.curve, options.exclude_below)
    both = fit_together([source.curve for source in sources], exclude_below=options.exclude_below)
    terms = {"min_gain": options.min_gain, "price": options.price}
    answers = [
        outlook_answer(source, source_outlook(source, fit_result, **terms), options)
        for source, fit_result in zip(sources, both.fits, strict=True)
    ]
    if options.json:
        runs = [{"source": answer.source, **answer.values} for answer in answers]
        print(json.dumps({"shared": both.to_dict(), "runs": runs}, indent=1, allow_nan=False))
        return 0
    print_lines(*str(both).split("\n"), "")
    return print_answers(answers, as_json=False)


def run_forecast(words: list[str]) -> int:
    """Print the forecast of each curve at more compute."""
    parser = curve_parser("forecast", "Forecast the metric of a run at more compute.")
    about = "amounts of compute: multiples of the last point (2x), more than it (+100) or totals; default 2x 4x"
    parser.add_argument("--at", nargs="+", action="extend", metavar="C", help=about)
    about = "level of the metric; also print the compute at which it is reached"
    parser.add_argument("--target", type=number, help=about)
    about = "band of the mean of N successive evaluations around each amount, instead of one evaluation"
    parser.add_argument("--mean-of", type=count, default=1, metavar="N", help=about)
    add_decision_options(parser)
    options = parser.parse_args(words)
    answers = []
    for source in sources_of(options.paths, options):
        with naming(source):
            request = {"at": options.at or ("2x", "4x"), "target": options.target, "mean_of": options.mean_of}
            result = forecast(fit_source(source, options), **request)
            advice = advise(result.fit, **source.terms({"min_gain": options.min_gain, "price": options.price}))
        values = {**forecast_dict(result), "advice": advice.to_dict()}
        answers.append(answer_of(source, values, f"{advice}\n{result}"))
    return print_answers(answers, as_json=options.json)


def run_compare(words: list[str]) -> int:
    """Print which of two recipes is better, and its probability."""
    from scalerl.reading.curves import compare

    parser = curve_parser("compare", "Compare two recipes, by one or several runs each.")
    add_versus(parser, required=True)
    parser.add_argument("--level", type=number, help="level of the metric at which the compute needed is compared")
    add_at(parser)
    add_price(parser)
    options = parser.parse_args(words)
    sources = sources_of([*options.paths, *options.versus], options)
    sides = sources[: len(options.paths)], sources[len(options.paths) :]
    first, second = ([fit_source(source, options) for source in side] for side in sides)
    names = side_names([[source.name for source in side] for side in sides])
    price = price_of(sources, options.price)
    comparison = compare(first, second, options.level, names=names, price=price, at=options.at)
    text = "\n".join([str(comparison), *log_lines(sources)])
    return print_answers([CommandResult("", comparison.to_dict(), text)], as_json=options.json)


def run_backtest(words: list[str]) -> int:
    """Print how well fits of the first parts of each run forecast the rest."""
    from scalerl.reading.curves import backtest

    parser = curve_parser("backtest", "Fit the first part of a run and score its forecast of the rest.")
    about = "shares of the compute to fit, each in (0, 1); default 0.3 0.5 0.7"
    parser.add_argument("--fractions", nargs="+", type=number, default=[0.3, 0.5, 0.7], metavar="F", help=about)
    options = parser.parse_args(words)
    answers = []
    for source in sources_of(options.paths, options):
        full = fit_source(source, options)
        with naming(source):
            scores = backtest(source.curve.between(options.exclude_below), options.fractions)
        answers.append(answer_of(source, {**full.to_dict(), **scores.to_dict()}, str(scores)))
    return print_answers(answers, as_json=options.json)


def price_of(sources: Sequence[Source], price: float | None) -> float | None:
    """Return the price of a device-hour for several runs: that of the option, else the one that all runs have."""
    return shared_price(price, [source.terms({}).get("price") for source in sources])


def answer_of(source: Source, values: dict[str, Any], text: str) -> CommandResult:
    """Return the answer for one curve; if it is that of a log, with what was read first."""
    log = {} if source.log is None else {"log": source.log.to_dict()}
    return CommandResult(str(source.path), {**values, **log}, "\n".join([*source.log_lines(), text]))


def outlook_answer(source: Source, outlook: Outlook, options: argparse.Namespace) -> CommandResult:
    """Return the answer of a fit, with what stands behind its advice if that is asked for."""
    why = outlook.explanation() if options.explain else []
    values = {**outlook.to_dict(), **({"explanation": why} if why else {})}
    return answer_of(source, values, "\n".join([*outlook.lines(), *why]))


def log_lines(sources: Sequence[Source]) -> list[str]:
    """Return what was read of the logs among some sources: what is the same in all, then what differs, by path."""
    lines = {str(source.path): source.log_lines() for source in sources if source.log}
    shared = [line for line in next(iter(lines.values()), []) if all(line in other for other in lines.values())]
    if len(lines) < 2 or not shared:
        return [line for path, own in lines.items() for line in (path, *own)]
    different = [(path, [line for line in own if line not in shared]) for path, own in lines.items()]
    return [f"all {len(lines)} logs", *shared, *(line for path, own in different for line in (path, *own) if own)]


def curve_parser(name: str, description: str) -> Parser:
    """Return the parser of a command that reads curves."""
    parser = Parser(prog=f"scalerl {name}", description=description)
    add_curve_options(parser)
    return parser


def sources_of(paths: Sequence[Path], options: argparse.Namespace) -> list[Source]:
    """Read the curves of runs and files, as the options of `add_curve_options` say.

    Raises:
        UserError: A path has no curve, or several.
    """
    sources = read_sources(paths, **read_options(options))
    if getattr(options, "price", None) is not None:
        for source in sources:
            check_hours(source)
    return sources


def fit_source(source: Source, options: argparse.Namespace) -> Fit:
    """Fit the curve of one source, as the options say."""
    with naming(source):
        return fit(source.curve, exclude_below=options.exclude_below)


def print_answers(answers: Sequence[CommandResult], *, as_json: bool) -> int:
    """Print one answer, or several with their paths; in JSON one object, or an array of objects. Return 0."""
    if as_json:
        values = [{**({"source": answer.source} if answer.source else {}), **answer.values} for answer in answers]
        print(json.dumps(values[0] if len(values) == 1 else values, indent=1, allow_nan=False))
    elif len(answers) == 1:
        print_lines(*answers[0].text.split("\n"))
    else:
        for number, answer in enumerate(answers):
            print_lines(*([""] if number else []), answer.source, *answer.text.split("\n"))
    return 0
