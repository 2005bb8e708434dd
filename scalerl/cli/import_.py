"""`scalerl import`: reads another framework's log into points. Notes are printed on standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scalerl.cli.options import Parser, add_log_options, input_path, log_choices
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import UserError
from scalerl.core.outputs import check_output
from scalerl.core.printable import printable
from scalerl.reading.logs.dialects import IMPORTERS
from scalerl.reading.logs.points import holds_part_of, read, write_points


def import_parser() -> Parser:
    """Return the parser of `scalerl import`."""
    words = "Read another framework's log into points: TRL, verl, prime-rl, wandb, TensorBoard, CSV, ..."
    parser = Parser(prog="scalerl import", description=words)
    about = "logs or run directories, in their order; -: standard input"
    parser.add_argument("paths", type=input_path, nargs="*", metavar="PATH", help=about)
    parser.add_argument("--task", help="name of the task; required if there are several")
    add_log_options(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="points.jsonl to write; default: print")
    parser.add_argument("--trainers", action="store_true", help="list the trainers and forms of logs that can be read")
    return parser


def trainer_lines() -> list[str]:
    """Return the trainers that are recognized, with the metric of each, and the forms of logs."""
    lines = []
    for dialect in IMPORTERS.values():
        if dialect.source and not dialect.supervised:
            metrics = [text for text, _ in dialect.metrics[:2]]
            lines.append(f"{dialect.name:<14} {dialect.title:<22} {', '.join(metrics)}")
    return [*lines, "", f"forms: {FORMS}"]


FORMS = (
    "trainer_state.json, TensorBoard, JSON, JSON lines, CSV with any delimiter, consoles, notebooks, Markdown, wandb's "
    "output.log and history, wandb:entity/project/run, MLflow, Trackio, each also as .gz"
)
"""Forms of logs."""


def run_import(words: list[str]) -> int:
    """Read the log, write or print the points, print the notes, and return the exit code."""
    arguments = import_parser().parse_args(words)
    if arguments.trainers:
        print_lines(*trainer_lines())
        return 0
    if not arguments.paths:
        raise UserError("no log was given; type `scalerl import PATH`, or `scalerl import --trainers`")
    bounds = tuple(arguments.bounds) if arguments.bounds else None
    imported = read(arguments.paths, task=arguments.task, bounds=bounds, **log_choices(arguments))
    for line in imported.lines():
        print(printable(line), file=sys.stderr)
    last = [row[imported.axis] for row in imported.rows if imported.axis in row][-1]
    print(f"{imported.source:<9} {len(imported.rows)} points to {imported.axis} {last:.4g}", file=sys.stderr)
    if arguments.output is None:
        print("\n".join(json.dumps(row) for row in imported.rows))
        return 0
    what = "a file of these points"
    place = check_output(arguments.output, arguments.paths, lambda path: holds_part_of(imported, path), what=what)
    write_points(imported, place)
    print_lines(f"written   {arguments.output}")
    return 0
