"""`scalerl study show`: prints the results of a study and writes its page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from scalerl.cli.exits import FAILED, complain
from scalerl.cli.options import Parser, add_curve, add_figures, add_json, add_price, write_figures
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import UserError
from scalerl.core.outputs import check_output
from scalerl.reading.pages.frozen import write_page
from scalerl.reading.pages.page import study_figures, study_page
from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_files import read_files
from scalerl.reading.pages.study_results import StudyResult
from scalerl.reading.pages.study_tables import print_results


def show(words: Sequence[str]) -> int:
    """Print the results of a study so far, or write its page; return the exit code."""
    parser = Parser(prog="scalerl study show", description="Print the results of a study so far.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("-o", "--output", type=Path, metavar="PAGE.html", help="also write the page there")
    add_curve(parser, "name of the task, if there are several; default: the first")
    add_price(parser)
    add_figures(parser)
    add_json(parser)
    options = parser.parse_args(words)
    study = read_files(options.directory)
    place = check_output(options.output, []) if options.output else None
    results = study_results(study, options.compute, options.task, options.price)
    figures = write_figures(options, study_page(results), study_figures(results)) if options.figures else []
    if options.json:
        print(json.dumps(results.to_dict(), indent=1, allow_nan=False))
    elif place is None:
        print_results(results)
    elif not write_and_print(results, place):
        complain(f"{place} was not written; the results above are complete")
        return FAILED
    if not options.json:
        print_lines(*figures)
    return 0


def write_and_print(results: StudyResult, page: Path) -> bool:
    """Write the page and print the results; return whether the page was written."""
    page_line, written = f"page      {page}", False
    try:  # before printing, because with `| head` the process may end while it prints
        write_page(page, study_page(results))
        written = True
    except UserError as error:  # plotly is missing, or the directory is read-only
        page_line = f"no page: {error}"
    print_results(results)
    print_lines(page_line)
    return written
