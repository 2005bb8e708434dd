"""`scalerl ls` lists runs; it only reads run directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.cli.options import Parser, add_directories, add_json
from scalerl.core.errors import ConfigError
from scalerl.core.printable import printable
from scalerl.core.run_files import is_study
from scalerl.reading.pages.run import FollowedRun, list_fit
from scalerl.reading.pages.state import find

LIST_COLUMNS = 80
LAST_BYTES = 16_384
"""Bytes at the end of metrics.jsonl that are read: about ten rows, for the step and the pace."""
NAME_WIDTH = 24
"""Width of the name column in characters; the middle of a longer name is left out."""


def run_ls(words: list[str]) -> int:
    """Print a line for each run; return the exit code.

    Raises:
        ConfigError: A path does not exist, or there is no run.
    """
    about = "List runs with their state, pass rate, forecast at twice the compute, and advice."
    parser = Parser(prog="scalerl ls", description=about)
    add_directories(parser)
    add_json(parser, "print one JSON object per line for each run (docs/json.md)")
    arguments = parser.parse_args(words)
    defaults = (Path("runs"), Path("studies"))
    runs = find(arguments.paths or [path for path in defaults if path.is_dir()])[0]
    if not runs:
        places = ", ".join(map(str, arguments.paths or defaults))
        raise ConfigError(f"{places}: no run here; give run directories (with a config.toml)")
    if not arguments.json:
        print(line_of(("run", "state", "step", "pass rate", "at 2x compute", "advice")))
    for path in runs:
        run = FollowedRun(path, tail=LAST_BYTES)
        if arguments.json:
            print(json.dumps(entry(run), allow_nan=False), flush=True)
            continue
        in_study = is_study(path.parent.parent)  # STUDY/ARM/seed-0
        name = f"{path.parent.name}/{path.name}" if in_study else path.name
        print(unreadable(name, run) if run.state == "unreadable" else line_of((name, *cells(run))), flush=True)
    return 0


def line_of(columns: Sequence[str]) -> str:
    """Return a line of at most 80 characters: name, state, step, pass rate, forecast and advice."""
    name, state, step, rate, forecast, advice = columns
    line = f"{shortened(name):<{NAME_WIDTH}} {state:<10} {step:>11} {rate:>9} {forecast:<13} {advice}"
    return printable(line).rstrip()[:LIST_COLUMNS]


def unreadable(name: str, run: FollowedRun) -> str:
    """Return the line of a run that cannot be read, with the reason."""
    reason = run.detail.removeprefix(f"{run.path}/").removeprefix(f"{run.path}: ")
    return printable(f"{shortened(name):<{NAME_WIDTH}} {run.state} {reason}")[:LIST_COLUMNS]


def entry(run: FollowedRun) -> dict[str, Any]:
    """Return a run as JSON values, with the forecast of each task at twice its compute."""
    tasks = {}
    for task in run.tasks:
        last = run.points[task][-1]
        fit_values = list_fit(run.points[task], run.axis, *run.terms)
        mean, low, high = fit_values.get("twice") or (None, None, None)
        tasks[task] = {
            "step": last.step, "pass_rate": last.pass_rate, "stderr": last.stderr,
            "evaluations": fit_values["evaluations"],
            "at_twice": None if mean is None else {"mean": mean, "low": low, "high": high},
            "action": fit_values.get("action"), "problem": fit_values["problem"],
        }  # fmt: skip
    return {
        "path": str(run.path), "state": run.state, "detail": run.detail, "step": run.step, "steps": run.steps,
        "tasks": tasks,
    }  # fmt: skip


def cells(run: FollowedRun) -> tuple[str, str, str, str, str]:
    """Return the columns of a run after its name, for its first task; dashes without evaluations or a forecast."""
    state, step = run.state.replace(" ", "-"), f"{run.step}/{run.steps}"
    task = next(iter(run.tasks), "")
    if not task:
        return state, step, "-", "-", "-"
    rate = f"{run.points[task][-1].pass_rate:.3f}"
    fit_values = list_fit(run.points[task], run.axis, *run.terms)
    if fit_values["problem"]:
        return state, step, rate, "-", "-"
    _, low, high = fit_values["twice"]
    return state, step, rate, f"{low:.3f}-{high:.3f}", fit_values["action"]


def shortened(name: str) -> str:
    """Return a name that fits a column and is safe to print: control characters are escaped, the middle is left out."""
    name = printable(name)
    half = NAME_WIDTH // 2 - 1
    return name if len(name) <= NAME_WIDTH else f"{name[:half]}..{name[-half:]}"
