"""`scalerl ls` lists runs, `scalerl tail` follows one from another terminal; both only read run directories."""

from __future__ import annotations

import argparse
import math
import os
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli.parsing import add_directories, count, directories
from scalerl.core.printable import printable

if TYPE_CHECKING:
    from scalerl.view.run import FollowedRun

WIDTH = 80
NAME_WIDTH = 24
"""Width of the name column in characters; the middle of a longer name is left out."""

EVERY_S = 1.0
"""Interval in seconds at which a followed run is read."""

GONE = ("finished", "stopped", "failed", "dead", "unreadable")
"""States after which a run writes no rows."""


def add_ls_parsers(commands: Any) -> None:
    """Add the parsers of `scalerl ls` and `scalerl tail`."""
    words = "list runs with their state, pass rate, forecast at twice the compute, and advice"
    parser = commands.add_parser("ls", help="list runs with state, step, pass rate and forecast", description=words)
    add_directories(parser)
    parser.set_defaults(run=ls)
    words = "follow a run from another terminal: print its last rows, then new ones, until the run ends"
    parser = commands.add_parser("tail", help="follow a run from another terminal", description=words)
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")
    words = "number of past rows to print first; default 10"
    parser.add_argument("--rows", type=partial(count, least=0), default=10, help=words)
    parser.set_defaults(run=tail)


# ---------------------------------------------------------------------------------------------------------------- ls


def ls(arguments: argparse.Namespace) -> int:
    """Print a line for each run; return the exit code.

    Raises:
        ConfigError: A path does not exist, or there is no run.
    """
    from scalerl.core.errors import ConfigError
    from scalerl.view.run import FollowedRun
    from scalerl.view.state import find

    paths = directories(arguments.paths, "ls")
    runs = find(paths)[0]
    if not runs:
        raise ConfigError(f"{', '.join(map(str, paths))}: no run here; give run directories (with a config.toml)")
    print(line_of(("run", "state", "step", "pass rate", "at 2x compute", "advice")))
    for path in runs:
        run = FollowedRun(path)
        in_study = os.path.exists(path.parent.parent / "study.toml")  # STUDY/ARM/seed-0
        name = f"{path.parent.name}/{path.name}" if in_study else path.name
        print(unreadable(name, run) if run.state == "unreadable" else line_of((name, *cells(run))), flush=True)
    return 0


def line_of(columns: Sequence[str]) -> str:
    """Return a line of at most 80 columns.

    Args:
        columns: Name, state, step, pass rate, forecast and advice.
    """
    name, state, step, rate, ahead, advice = columns
    line = f"{shortened(name):<{NAME_WIDTH}} {state:<10} {step:>11} {rate:>9} {ahead:<13} {advice}"
    return printable(line).rstrip()[:WIDTH]


def unreadable(name: str, run: FollowedRun) -> str:
    """Return the line of a run that cannot be read, with the reason."""
    reason = run.detail.removeprefix(f"{run.path}/").removeprefix(f"{run.path}: ")
    return printable(f"{shortened(name):<{NAME_WIDTH}} {run.state} {reason}")[:WIDTH]


def cells(run: FollowedRun) -> tuple[str, str, str, str, str]:
    """Return the columns of a run after its name, for its first task; dashes without evaluations or a forecast."""
    from scalerl.scaling import CurveError

    state, step = run.state.replace(" ", "-"), f"{run.step}/{run.steps}"
    task = next(iter(run.tasks), "")
    if not task:
        return state, step, "-", "-", "-"
    rate = f"{run.points[task][-1].pass_rate:.3f}"
    try:
        ahead = run.outlook(task)
    except CurveError:
        return state, step, rate, "-", "-"
    twice = ahead.forecast.at[0]
    action = ahead.advice.action if ahead.advice else "-"
    return state, step, rate, f"{twice.low:.3f}-{twice.high:.3f}", ADVICE.get(action, action)


ADVICE = {"not known yet": "unknown"}
"""Shorter words for the table."""


def shortened(name: str, most: int = NAME_WIDTH) -> str:
    """Return a name that fits a column and is safe to print: control characters are escaped, the middle is left out."""
    name = printable(name)
    half = (most - 2) // 2
    return name if len(name) <= most else f"{name[:half]}..{name[-(most - 2 - half) :]}"


# -------------------------------------------------------------------------------------------------------------- tail


def tail(arguments: argparse.Namespace) -> int:
    """Print the rows of a run as they are written; return 0 when the run has ended, 130 after Ctrl-C.

    Raises:
        ConfigError: The directory contains no run.
    """
    from scalerl.core.errors import ConfigError
    from scalerl.view.state import is_run

    if not is_run(arguments.run_dir):
        raise ConfigError(f"{arguments.run_dir}: no run here (no config.toml); `scalerl ls` lists runs")
    try:
        for line in followed(arguments.run_dir, arguments.rows):
            print(printable(line), flush=True)
    except KeyboardInterrupt:
        return 130
    return 0


def followed(path: Path, rows: int, every_s: float = EVERY_S) -> Iterator[str]:
    """Yield the lines of a run: its state, its last rows and evaluations, new ones, and how it ended.

    Args:
        path: Run directory.
        rows: Number of past rows to start with.
        every_s: Interval in seconds at which the files are read.
    """
    from scalerl.core.rows import RowFile
    from scalerl.view.run import FollowedRun

    files = RowFile(path / "metrics.jsonl"), RowFile(path / "points.jsonl")
    run = FollowedRun(path)
    phase = run.state
    yield f"{shortened(str(path), 40)}: {phase}, step {run.step}/{run.steps}"
    shown: int | None = rows
    restarts = [0, 0]
    while True:
        run.poll()
        gone = run.state in GONE  # read before the rows, so that the last rows are not missed
        before, phase = phase, (f"{run.state}: {run.detail}" if run.detail else run.state)
        if not run.rows and not gone and phase != before:  # for example the updates of a warm start
            yield from textwrap.wrap(printable(phase), WIDTH)
        lines = ((n, line.row) for n, file in enumerate(files) for line in file.new_lines())
        new = [(row["step"], n, row) for n, row in lines if isinstance(row.get("step"), int)]
        if [file.restarts for file in files] != restarts:
            restarts, shown = [file.restarts for file in files], rows
            yield "the run resumed from an earlier checkpoint; its last rows:"
        new.sort(key=lambda event: event[:2])
        for _, n, row in new if shown is None else new[len(new) - min(shown, len(new)) :]:
            yield evaluation_line(row) if n else step_line(row, run.steps)
        shown = None
        if gone:
            break
        time.sleep(every_s)
    yield from ending(FollowedRun(path))


def ending(run: FollowedRun) -> list[str]:
    """Return lines of at most 80 columns that describe how a run ended and how to resume it."""
    detail = f": {run.detail}" if run.detail else ""
    lines = textwrap.wrap(printable(f"{run.state} at step {run.step}/{run.steps}{detail}"), WIDTH)
    again = run.state not in ("finished", "unreadable")
    return [*lines, *([f"continue with: scalerl resume {run.path}"] if again else [])]


def step_line(row: Mapping[str, Any], steps: int) -> str:
    """Return a training step in one line of at most 80 columns."""
    words = [f"step {row.get('step')}/{steps}", f"pass {_number(row, 'pass_rate', '.3f')}"]
    words += [f"truncated {_number(row, 'truncation_rate', '.1%')}", f"entropy {_number(row, 'entropy', '.3f')}"]
    words += [f"tok/s {_number(row, 'generator_tokens_per_s', '.0f')}", f"{_number(row, 'step_s', '.3g')} s"]
    return "  ".join(words)[:WIDTH]


def evaluation_line(row: Mapping[str, Any]) -> str:
    """Return an evaluation in one line of at most 80 columns."""
    return (
        f"evaluation at step {row.get('step')}: pass rate {_number(row, 'pass_rate', '.3f')} ± "
        f"{_number(row, 'stderr', '.3f')}, {shortened(str(row.get('task', '')))}"
    )[:WIDTH]


def _number(row: Mapping[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    return format(value, form) if isinstance(value, int | float) and math.isfinite(value) else "-"
