"""`scalerl report`: writes one self-contained page about runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from scalerl.cli.curves import add_curve_options, add_versus


def add_report_parser(commands: Any) -> None:
    """Add the parser of `scalerl report`."""
    words = "write one page about runs with verdicts, interactive figures and a sortable table; needs no network"
    parser = commands.add_parser("report", help="write an interactive page about runs", description=words)
    add_curve_options(parser)
    add_versus(parser, required=False)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="default: report.html")
    parser.set_defaults(run=run_report)


def run_report(arguments: argparse.Namespace) -> int:
    """Write the page and print its path.

    Raises:
        CurveError: runs that cannot be fitted or compared, or a page that cannot be written.
        ConfigError: plotly is not installed.
    """
    from scalerl.report.analysis import analyse
    from scalerl.report.html import write_page
    from scalerl.report.page import page
    from scalerl.report.sources import read_sources

    count = len(arguments.paths)
    paths = [*arguments.paths, *(arguments.versus or [])]
    sources = read_sources(paths, arguments.compute, arguments.task, arguments.bounds)
    found = analyse(sources[:count], sources[count:], arguments.exclude_below, arguments.method)
    write_page(arguments.output, page(found))
    if arguments.json:
        print(json.dumps({"page": str(arguments.output), **found.to_dict()}, indent=1, allow_nan=False))
    else:
        print("\n".join([*found.headlines(), f"page      {arguments.output}"]))
    return 0
