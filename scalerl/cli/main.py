"""The command line: a table of commands. The module of a command is loaded when it is used."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import metadata
from typing import NamedTuple

from scalerl.cli.exits import complain, guarded, prepare_streams
from scalerl.cli.options import Parser
from scalerl.core import VERSION
from scalerl.core.child_signals import STOPPING, obey_study, protect_children
from scalerl.core.errors import UserError, nearest
from scalerl.core.stop_signals import set_saved_note, watch_signals
from scalerl.core.working import Working


class Command(NamedTuple):
    """A command NAME: the function `run_NAME` of its module takes the words after it and returns the exit code.

    Example: Command("curves", "forecast the metric of a run at more compute", computes=True)
    """

    module: str
    """Module in this package."""
    about: str
    """One line of `scalerl --help`."""
    computes: bool = False
    """Whether to show a sign of life while it computes. Other commands show what they do."""
    saves: bool = False
    """Whether it saves its results and therefore goes on when the reader of its output ends."""
    saved_note: str = ""
    """What the message of a stopped command says about its results."""


RESUMABLE = "saved results are kept; `scalerl resume` continues a run"

READING: dict[str, Command] = {
    "fit": Command("curves", "fit curves: ceiling, steepness, midpoint, and whether to continue training", True),
    "forecast": Command("curves", "forecast the metric of a run at more compute", True),
    "compare": Command("curves", "compare two recipes, by one or several runs each", True),
    "backtest": Command("curves", "fit the first part of a run and score its forecast of the rest", True),
    "frontier": Command("frontier", "find the best setting for a budget", True),
    "design": Command("design", "find how often to evaluate a run, and the seeds that tell two recipes apart", True),
    "import": Command("import_", "write the log of any trainer as points: TRL, verl, NeMo-RL, wandb, CSV, ...", True),
    "follow": Command("follow", "follow the log of a run that trains: forecast, live page, stop by a condition"),
    "report": Command("report", "write an interactive page about runs", True),
    "watch": Command("watch", "serve a live page about runs and studies"),
    "ls": Command("ls", "list runs with state, step, pass rate and forecast", True),
    "skill": Command("skill", "print the skill for agents that watch training"),
    "completion": Command("completion", "print a script with which bash, zsh or fish completes commands and options"),
}
"""Commands that read logs, curves and runs: they need nothing but the base install."""

TRAINING: dict[str, Command] = {
    "train": Command(
        "train", "train; without arguments, train the embedded lab (see `scalerl train --help`)",
        saves=True, saved_note=RESUMABLE,
    ),
    "resume": Command("train", "resume a run from its last checkpoint", saves=True, saved_note=RESUMABLE),
    "new": Command("new", "print a configuration for your model, your prompts and your GPUs"),
    "plan": Command("plan", "simulate a run before it starts: throughput, idle shares, best split of GPUs"),
    "doctor": Command("doctor", "check that a run will work on this machine or cluster, in two minutes"),
    "study": Command(
        "study", "plan, run and compare many runs: loo, recipes, forward, axes, rates, frontier",
        saves=True, saved_note="finished runs are kept; `scalerl study resume` continues",
    ),
    "eval": Command("eval", "evaluate a model on suites: mean@k, pass@k", saves=True, saved_note="nothing was saved"),
    "score": Command("score", "score the completions of a file with a verifier", True),
    "recipes": Command("recipes", "print the recipes, and what other trainers have of them", True),
    "upgrade": Command("upgrade", "write the run.json of runs that another version of scalerl made", True),
}  # fmt: skip
"""Commands that need the extra `train`."""

COMMANDS = READING | TRAINING


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Args:
        words: Command-line arguments; None: those of this process. Signals are handled only with None.
    """
    if words is not None:
        return _run(list(words))
    protect_children()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    command = COMMANDS.get(name)
    prepare_streams(outlived=command is not None and command.saves)
    watch_signals()
    obey_study()
    if name in READING:
        # with more, the last bits of a long fit depend on the cores, and threads wait more than they compute
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return _run(sys.argv[1:])
    finally:  # during shutdown, an exception in a handler would print a traceback
        for number in STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


def _run(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        parser = _parser()
        parser.parse_args(words)
        parser.print_help()
        return 0
    name = words[0]
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS) or f"; allowed: {', '.join(COMMANDS)}"
        complain(f"there is no command {name[:80]!r}{hint}; see `scalerl --help`")
        return UserError.exit_code
    command = COMMANDS[name]
    set_saved_note(command.saved_note)
    with Working(f"scalerl {name}") if command.computes else nullcontext():
        return guarded(lambda: _run_command(name, words[1:]))


def _run_command(name: str, words: list[str]) -> int:
    """Run a command; to an error that a choice would mend, add the command that makes it."""
    try:
        return _load(name)(words)
    except UserError as error:
        again = next_words(error, words)
        command = getattr(error, "command", "") if again is None else shlex.join(["scalerl", name, *again])
        if not command:
            raise
        raise type(error)(f"{error}; type: {command}") from error


def next_words(error: UserError, words: list[str]) -> list[str] | None:
    """Return the words with which a command is typed again after an error with a choice, or None."""
    add, without, paths = (getattr(error, name, None) for name in ("add", "without", "paths"))
    if not (add or without or paths):
        return None
    remaining, values = list[str](), 0
    for word in words:
        if word.startswith("--"):
            values = {"--bounds": 2}.get(word, 1) if word in (without, *(add or ())[:1]) else 0
            if values:
                continue
        elif values:
            values -= 1
            continue
        remaining.append(word)
    if paths:
        remaining = [*paths, *(word for word in remaining if not os.path.exists(word))]
    return [*remaining, *(add or ())]


def _load(name: str) -> Callable[[list[str]], int]:
    module = import_module(f"scalerl.cli.{COMMANDS[name].module}")
    function: Callable[[list[str]], int] = getattr(module, f"run_{name}")
    return function


def _parser() -> Parser:
    """Return the parser of `scalerl` without a command; its help lists the commands."""
    parser = Parser(
        prog="scalerl", usage="scalerl COMMAND ...", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Reinforcement learning by the ScaleRL recipe, with a forecast of every run's curve.",
        epilog="\n\n".join([
            "for whoever has a log or a run:\n" + _listed(READING),
            "to train, with pip install 'scalerl[train]':\n" + _listed(TRAINING),
            f"`scalerl COMMAND --help` lists the options of a command. Documentation: {_documentation()}",
        ]),
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"scalerl {VERSION}")
    return parser


def _documentation() -> str:
    """Return the address of the documentation, which pyproject.toml has."""
    addresses = metadata("scalerl").get_all("Project-URL") or ()
    return next((line.partition(", ")[2] for line in addresses if line.startswith("Documentation")), "docs/")


def _listed(commands: dict[str, Command]) -> str:
    return "\n".join(f"  {name:<10} {command.about}" for name, command in commands.items())
