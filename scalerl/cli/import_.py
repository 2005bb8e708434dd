"""`scalerl import`: reads another framework's log into points. Notes are printed on standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scalerl.cli.options import Parser
from scalerl.cli.terminal import say
from scalerl.core.outputs import check_output
from scalerl.core.printable import printable
from scalerl.importers.points import holds_part_of, read, write_points
from scalerl.scaling import CurveError


def import_parser() -> Parser:
    """Return the parser of `scalerl import`."""
    words = "Read another framework's log into points: TRL, verl, prime-rl, wandb, TensorBoard, CSV, ..."
    parser = Parser(prog="scalerl import", description=words)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="logs or run directories, in their order")
    parser.add_argument(
        "--from", dest="source", metavar="SOURCE", help="framework of the log; default: recognized by its columns"
    )
    parser.add_argument("--metric", metavar="NAME", help="name of the metric in the log; required if there are several")
    parser.add_argument("--task", help="name of the task; required if there are several")
    words = "name of the run; required if a file has several"
    parser.add_argument("--run", dest="run_name", metavar="NAME", help=words)
    parser.add_argument("--devices", type=float, metavar="N", help="number of accelerators, for device-hours")
    parser.add_argument(
        "--bounds", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help="minimum and maximum of the metric; default: by its name, or from its values",
    )  # fmt: skip
    parser.add_argument(
        "--column", action="append", default=[], metavar="ROLE=NAME",
        help="column for a role: step, seconds, clock, tokens, step_tokens, device_hours, flops, task or stderr",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="points.jsonl to write; default: print")
    return parser


def run_import(words: list[str]) -> int:
    """Read the log, write or print the points, print the notes, and return the exit code."""
    arguments = import_parser().parse_args(words)
    pairs = [pair.partition("=") for pair in arguments.column]
    for role, equals, name in pairs:
        if not (role and equals and name):
            raise CurveError(f"--column: got {role + equals + name!r}; allowed: ROLE=NAME, such as step=iteration")
    imported = read(
        arguments.paths, arguments.source, metric=arguments.metric, task=arguments.task,
        run=arguments.run_name, devices=arguments.devices,
        bounds=tuple(arguments.bounds) if arguments.bounds else None, columns={role: name for role, _, name in pairs},
    )  # fmt: skip
    for line in [*imported.lines(), *(f"note      {note}" for note in imported.notes)]:
        print(printable(line), file=sys.stderr)
    last = [row[imported.axis] for row in imported.rows if imported.axis in row][-1]
    print(f"{imported.source:<9} {len(imported.rows)} points to {imported.axis} {last:.4g}", file=sys.stderr)
    if arguments.output is None:
        print("\n".join(json.dumps(row) for row in imported.rows))
        return 0
    what = "a file of these points"
    place = check_output(arguments.output, arguments.paths, lambda path: holds_part_of(imported, path), what=what)
    write_points(imported, place)
    say(f"written   {arguments.output}")
    return 0
