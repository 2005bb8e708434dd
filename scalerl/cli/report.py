"""`scalerl report`: writes one self-contained page about runs."""

from __future__ import annotations

import json
from pathlib import Path

from scalerl.cli.curves import log_lines, sources_of
from scalerl.cli.exits import FAILED, complain
from scalerl.cli.options import (
    Parser,
    add_at,
    add_curve_options,
    add_decision_options,
    add_figures,
    add_versus,
    write_figures,
)
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import UserError
from scalerl.core.outputs import check_output
from scalerl.reading.pages.analysis import analyze
from scalerl.reading.pages.frozen import write_page
from scalerl.reading.pages.report import page_of


def report_parser() -> Parser:
    """Return the parser of `scalerl report`."""
    words = "Write one page about runs with verdicts, interactive figures and a sortable table; needs no network."
    parser = Parser(prog="scalerl report", description=words)
    add_curve_options(parser)
    add_decision_options(parser)
    add_versus(parser, required=False)
    add_at(parser)
    words = "page to write; default report.html"
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help=words)
    add_figures(parser)
    return parser


def run_report(words: list[str]) -> int:
    """Write the page, print the verdicts and its path; return 1 if the page cannot be written.

    Raises:
        CurveError: The runs cannot be fitted or compared.
        ConfigError: The page would replace an input, or a file that is not a page.
    """
    arguments = report_parser().parse_args(words)
    count = len(arguments.paths)
    paths = [*arguments.paths, *(arguments.versus or [])]
    place = check_output(arguments.output, paths)
    sources = sources_of(paths, arguments)
    terms = {"min_gain": arguments.min_gain, "price": arguments.price}
    analysis = analyze(sources[:count], sources[count:], arguments.exclude_below, terms=terms, at=arguments.at)
    written, figures = None, list[str]()
    try:
        made = page_of(sources, analysis)
        figures = write_figures(arguments, made.page, made.figures)
        write_page(place, made.page, made.large)
        written = str(arguments.output)
    except UserError as error:  # the verdicts are still printed
        complain(str(error))
    if arguments.json:
        print(json.dumps({"page": written, **analysis.to_dict()}, indent=1, allow_nan=False))
    else:
        print_lines(
            *log_lines(sources), *analysis.headlines(), *([f"page      {written}"] if written else []), *figures
        )
    return 0 if written else FAILED
