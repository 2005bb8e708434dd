"""`scalerl design`: how to evaluate a run before it starts, and what tells two recipes apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

from scalerl.cli.curves import fit_source, log_lines, price_of, sources_of
from scalerl.cli.options import (
    Parser,
    add_json,
    add_price,
    add_reading_options,
    count,
    input_path,
    number,
)
from scalerl.cli.terminal import print_lines
from scalerl.core.rows import read_points
from scalerl.reading.curves import design, expected_curve, expected_of_runs
from scalerl.reading.pages.outlook import Source

DESCRIPTION = """find how to evaluate a run before it starts: runs like past ones, or like the paper's, are
simulated and fitted. Prints how likely the ceiling is identified, how wide the intervals are, and what more
evaluations, prompts or samples buy. With --difference: how many seeds tell two recipes apart (docs/planning.md)"""

PROMPTS, SAMPLES = 1000, 4
"""Size of an evaluation if neither an option nor a run says it."""


class Size(NamedTuple):
    """What the points of a run directory say about its evaluations and its batches."""

    prompts: int
    samples: int
    completions: float
    """Completions trained per unit of compute; NaN if unknown."""


def design_parser() -> Parser:
    """Return the parser of `scalerl design`."""
    parser = Parser(prog="scalerl design", description=DESCRIPTION)
    words = "past runs or logs, whose curves and noise are expected again; default: curves like the paper's"
    parser.add_argument("paths", nargs="*", type=input_path, metavar="RUN_OR_LOG", help=words)
    words = "compute of the planned run, in the unit of the axis (device-hours without runs)"
    parser.add_argument("--budget", type=number, required=True, metavar="C", help=words)
    words = "evaluations of the run with the one before training; default: the fewest that are enough"
    parser.add_argument("--evaluations", type=count, metavar="N", help=words)
    words = f"held-out prompts of one evaluation; default: those of the runs, or {PROMPTS:,}"
    parser.add_argument("--prompts", type=count, metavar="N", help=words)
    words = f"samples of each prompt; default: those of the runs, or {SAMPLES}"
    parser.add_argument("--samples", type=count, metavar="K", help=words)
    words = "completions that the budget trains, for costs; default: as in the runs of this package"
    parser.add_argument("--completions", type=number, metavar="N", help=words)
    words = "also find the seeds that show this difference in A between two recipes"
    parser.add_argument("--difference", type=number, metavar="D", help=words)
    add_price(parser)
    add_reading_options(parser)
    add_json(parser)
    return parser


def run_design(words: list[str]) -> int:
    """Print the design; return the exit code.

    Raises:
        CurveError: A number is outside its range, or a run cannot be fitted.
    """
    options = design_parser().parse_args(words)
    sources = sources_of(options.paths, options)
    sizes = [size_of(source) for source in sources]
    run_size = next((size for size in sizes if size), Size(PROMPTS, SAMPLES, math.nan))
    prompts, samples = options.prompts or run_size.prompts, options.samples or run_size.samples
    if sources:
        fits = [fit_source(source, options) for source in sources]
        past = [(size.prompts, size.samples) if size else None for size in sizes]
        expected = expected_of_runs(fits, past, (prompts, samples))
    else:
        expected = expected_curve(options.budget, options.compute or "device_hours")
    completions = run_size.completions * options.budget if options.completions is None else options.completions
    answer = design(
        expected,
        options.budget,
        count=options.evaluations,
        prompts=prompts,
        samples=samples,
        completions=completions,
        difference=options.difference,
        price=price_of(sources, options.price),
    )
    if options.json:
        print(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
    else:
        print_lines(*str(answer).split("\n"), *log_lines(sources))
    return 0


def size_of(source: Source) -> Size | None:
    """Return the size of the evaluations of a run directory; None for a file or log, which does not say it."""
    points = [] if source.info is None else read_points(Path(source.path))
    last = max(
        (point for point in points if point.task == source.curve.label), key=lambda point: point.step, default=None
    )
    if source.info is None or last is None or not (last.prompts >= 1 and last.samples_per_prompt >= 1):
        return None
    batch = 1.0
    for name in ("recipe.prompts_per_step", "recipe.generations_per_prompt"):
        value = source.info.settings.get(name)
        batch *= value if isinstance(value, int) else math.nan
    return Size(last.prompts, last.samples_per_prompt, batch * last.step / source.curve.last_compute)
