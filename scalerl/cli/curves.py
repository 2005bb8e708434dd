"""The commands that read curves: fit, forecast, compare, backtest. They print text, or JSON (docs/json.md).

Heavy modules are imported only when a command runs, because every `scalerl --help` builds these parsers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scalerl.cli.terminal import say

if TYPE_CHECKING:
    from scalerl.scaling import Fit
    from scalerl.view.outlook import Source


class Answer(NamedTuple):
    """The result of a command for one curve, or for a comparison."""

    source: str
    """Path of the curve; empty for a comparison."""
    values: dict[str, Any]
    text: str


def add_curve_parsers(commands: Any) -> None:
    """Add the parsers of these commands to the command line."""
    for name, (words, answer) in SUBCOMMANDS.items():
        parser = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        add_curve_options(parser)
        _add_options(name, parser)
        parser.set_defaults(run=partial(_print_answers, answer))


def add_curve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all these commands share."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="RUN_OR_FILE", help="run directory, or a file of points")
    parser.add_argument("--compute", help="compute axis: device_hours, flops, tokens or step")
    parser.add_argument("--task", help="name of the task; required if there are several")
    parser.add_argument(
        "--bounds", nargs=2, type=float, default=(0.0, 1.0), metavar=("LOW", "HIGH"),
        help="minimum and maximum of the metric; default 0 1; rewards may need -1 1",
    )  # fmt: skip
    parser.add_argument(
        "--exclude-below", type=float, default=0.0, metavar="C", help="leave out points below this compute, except 0"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def add_versus(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the option `--versus`, which names the runs of the other recipe."""
    words = "runs of the other recipe"
    parser.add_argument("--versus", nargs="+", type=Path, metavar="RUN_OR_FILE", required=required, help=words)


def fitted(source: Source, arguments: argparse.Namespace) -> Fit:
    """Fit one source with the given options."""
    from scalerl.scaling import fit
    from scalerl.view.outlook import naming

    with naming(source):
        return fit(source.curve, exclude_below=arguments.exclude_below)


def answer_fit(arguments: argparse.Namespace) -> list[Answer]:
    """Print the fit, forecast and advice for each curve."""
    from scalerl.scaling import paper_fit
    from scalerl.view.outlook import naming, source_outlook

    answers = []
    for source in _sources(arguments.paths, arguments):
        if arguments.method == "paper":
            with naming(source):
                best = paper_fit(source.curve, r0=arguments.r0, exclude_below=arguments.exclude_below)
            answers.append(Answer(str(source.path), best.to_dict(), str(best)))
        else:
            ahead = source_outlook(source, r0=arguments.r0, exclude_below=arguments.exclude_below)
            answers.append(Answer(str(source.path), ahead.to_dict(), "\n".join(ahead.lines())))
    return answers


def answer_forecast(arguments: argparse.Namespace) -> list[Answer]:
    """Print the forecast of each curve at more compute."""
    from scalerl.scaling import forecast
    from scalerl.view.outlook import forecast_dict

    at = [_amount(word) for word in arguments.at or ("2x", "4x")]
    answers = []
    for source in _sources(arguments.paths, arguments):
        ahead = forecast(fitted(source, arguments), at=at, target=arguments.target)
        answers.append(Answer(str(source.path), forecast_dict(ahead), str(ahead)))
    return answers


def answer_compare(arguments: argparse.Namespace) -> list[Answer]:
    """Print which of two recipes is better, and its probability."""
    from scalerl.scaling import compare

    first, second = (
        [fitted(source, arguments) for source in _sources(paths, arguments)]
        for paths in (arguments.paths, arguments.versus)
    )
    comparison = compare(first, second, arguments.level)
    return [Answer("", comparison.to_dict(), str(comparison))]


def answer_backtest(arguments: argparse.Namespace) -> list[Answer]:
    """Print how well fits of the first parts of each run forecast the rest."""
    from scalerl.scaling import backtest
    from scalerl.view.outlook import naming

    answers = []
    for source in _sources(arguments.paths, arguments):
        whole = fitted(source, arguments)
        with naming(source):
            scores = backtest(source.curve.between(arguments.exclude_below), arguments.fractions)
        answers.append(Answer(str(source.path), {**whole.to_dict(), **scores.to_dict()}, str(scores)))
    return answers


def _add_options(name: str, parser: argparse.ArgumentParser) -> None:
    """Add the options that only one command has."""
    if name == "fit":
        words = "posterior, for decisions, or paper, which repeats the paper's procedure and gives no uncertainty"
        parser.add_argument("--method", choices=("posterior", "paper"), default="posterior", help=words)
        words = "level before training, if it is known; by default it is fitted (paper: the point at compute 0)"
        parser.add_argument("--r0", type=float, metavar="LEVEL", help=words)
    elif name == "forecast":
        words = "amounts of compute, in the unit of the axis or as multiples of the last point; default 2x 4x"
        parser.add_argument("--at", nargs="+", action="extend", metavar="C", help=words)
        words = "level of the metric; also print the compute at which it is reached"
        parser.add_argument("--target", type=float, help=words)
    elif name == "compare":
        add_versus(parser, required=True)
        parser.add_argument("--level", type=float, help="level of the metric at which the compute needed is compared")
    elif name == "backtest":
        words = "shares of the compute to fit, each in (0, 1); default 0.3 0.5 0.7"
        parser.add_argument("--fractions", nargs="+", type=float, default=[0.3, 0.5, 0.7], metavar="F", help=words)


SUBCOMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace], list[Answer]]]] = {
    "fit": ("fit curves: ceiling, steepness, midpoint, and whether to continue training", answer_fit),
    "forecast": ("forecast the metric of a run at more compute", answer_forecast),
    "compare": ("compare two recipes, by one or several runs each", answer_compare),
    "backtest": ("fit the first part of a run and score its forecast of the rest", answer_backtest),
}
"""Help text and function of each command, in the order of the help."""


def _sources(paths: Sequence[Path], arguments: argparse.Namespace) -> list[Source]:
    from scalerl.view.outlook import read_sources

    return read_sources(paths, arguments.compute, arguments.task, arguments.bounds)


def _amount(word: str) -> float | str:
    """Convert a number to a float; return other text, such as the multiple 2x, unchanged for `forecast`."""
    try:
        return float(word)
    except ValueError:
        return word


def _print_answers(command: Callable[[argparse.Namespace], list[Answer]], arguments: argparse.Namespace) -> int:
    """Print one answer, or several with their paths; in JSON one object, or an array of objects."""
    answers = command(arguments)
    if arguments.json:
        values = [{**({"source": answer.source} if answer.source else {}), **answer.values} for answer in answers]
        print(json.dumps(values[0] if len(values) == 1 else values, indent=1, allow_nan=False))
    elif len(answers) == 1:
        say(*answers[0].text.split("\n"))
    else:
        for number, answer in enumerate(answers):
            say(*([""] if number else []), answer.source, *answer.text.split("\n"))
    return 0
