"""`scalerl report`: writes one self-contained page about runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from scalerl.cli.curves import add_curve_options, add_versus
from scalerl.cli.exits import FAILED, complain
from scalerl.cli.terminal import say


def add_report_parser(commands: Any) -> None:
    """Add the parser of `scalerl report`."""
    words = "write one page about runs with verdicts, interactive figures and a sortable table; needs no network"
    parser = commands.add_parser("report", help="write an interactive page about runs", description=words)
    add_curve_options(parser)
    add_versus(parser, required=False)
    words = "page to write; default report.html"
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help=words)
    parser.set_defaults(run=run_report)


def run_report(arguments: argparse.Namespace) -> int:
    """Write the page, print the verdicts and its path; return 1 if the page cannot be written.

    Raises:
        CurveError: The runs cannot be fitted or compared.
        ConfigError: The page would replace an input, or a file that is not a page.
    """
    from scalerl.core.errors import ConfigError
    from scalerl.core.outputs import check_output
    from scalerl.scaling import CurveError
    from scalerl.view.analysis import analyze
    from scalerl.view.outlook import read_sources
    from scalerl.view.page import page, write_page

    count = len(arguments.paths)
    paths = [*arguments.paths, *(arguments.versus or [])]
    place = check_output(arguments.output, paths)
    sources = read_sources(paths, arguments.compute, arguments.task, arguments.bounds)
    analysis = analyze(sources[:count], sources[count:], arguments.exclude_below)
    written = None
    try:
        write_page(place, page(analysis))
        written = str(arguments.output)
    except (ConfigError, CurveError) as error:  # the verdicts are still printed
        complain(str(error))
    if arguments.json:
        print(json.dumps({"page": written, **analysis.to_dict()}, indent=1, allow_nan=False))
    else:
        say(*analysis.headlines(), *([f"page      {written}"] if written else []))
    return 0 if written else FAILED
