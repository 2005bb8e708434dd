"""The command line: each command parses its options, calls one function, and reports user errors in one line.

Heavy modules are imported inside the commands, so that `scalerl --help` is fast and the statistics never load torch.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence

from scalerl import __version__
from scalerl.cli.curves import add_curve_parsers
from scalerl.cli.doctor import doctor
from scalerl.cli.eval import add_eval_parser
from scalerl.cli.exits import USER_ERROR, complain, guarded, keeps, prepare_streams, watch_signals
from scalerl.cli.frontier import add_frontier_parser
from scalerl.cli.import_ import add_import_parser
from scalerl.cli.ls import add_ls_parser
from scalerl.cli.new import new
from scalerl.cli.parsing import Parser
from scalerl.cli.plan import plan
from scalerl.cli.report import add_report_parser
from scalerl.cli.score import add_score_parser
from scalerl.cli.train import resume, train
from scalerl.cli.upgrade import add_upgrade_parser
from scalerl.cli.watch import add_watch_parser
from scalerl.core.signals import STOPPING, obey_study, protect_children
from scalerl.core.working import Working

OUTLIVED = {"train", "resume", "study", "eval"}
"""Commands that save their results and therefore do not end with the reader of their output."""


def _study(words: list[str]) -> int:
    from scalerl.cli.study import study_main

    return study_main(words)


WITH_FIELDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (train, "train; without arguments, train the embedded lab (see `scalerl train --help`)"),
    "new": (new, "print a configuration for your model, your prompts and your GPUs"),
    "plan": (plan, "simulate a run before it starts: throughput, idle shares, best split of GPUs"),
    "doctor": (doctor, "check that a run will work on this machine or cluster, in two minutes"),
    "study": (_study, "plan, run and compare many runs: loo, recipes, forward, axes, rates, frontier"),
    "resume": (resume, "resume a run from its last checkpoint"),
}
"""Commands that parse their own words, because fields of a configuration are options, with their help."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Args:
        words: Command-line arguments; None: those of this process. Signals are handled only with None.
    """
    if words is not None:
        return _run(list(words))
    protect_children()
    prepare_streams(outlived=bool({*sys.argv[1:2]} & OUTLIVED))
    watch_signals()
    obey_study()
    try:
        return _run(sys.argv[1:])
    finally:  # during shutdown, an exception in a handler would print a traceback
        for number in STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


def _run(words: list[str]) -> int:
    parser, verbs = _parser()
    if words and words[0] in WITH_FIELDS:
        keeps(KEPT.get(words[0], ""))
        return guarded(lambda: WITH_FIELDS[words[0]][0](words[1:]))
    if words and not words[0].startswith("-") and words[0] not in verbs:
        from scalerl.core.errors import nearest

        known = nearest(words[0], verbs) or f"; allowed: {', '.join(verbs)}"
        complain(f"there is no command {words[0][:80]!r}{known}; see `scalerl --help`")
        return USER_ERROR
    arguments = parser.parse_args(words)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    keeps(KEPT.get(words[0], ""))
    if words[0] in ("watch", "eval"):  # they show what they do
        return guarded(lambda: int(arguments.run(arguments)))
    with Working(f"scalerl {words[0]}"):
        return guarded(lambda: int(arguments.run(arguments)))


KEPT = {
    **dict.fromkeys(("train", "resume"), "saved results are kept; `scalerl resume` continues a run"),
    "study": "finished runs are kept; `scalerl study resume` continues",
    "eval": "nothing was saved",
}
"""What the message of a stopped command says about its results."""


def _parser() -> tuple[Parser, list[str]]:
    """Return the parser and the names of the commands."""
    parser = Parser(
        prog="scalerl",
        description="Reinforcement learning by the ScaleRL recipe, with a forecast of every run's curve.",
    )
    parser.add_argument("--version", action="version", version=f"scalerl {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (_, text) in WITH_FIELDS.items():
        verbs.add_parser(name, help=text, add_help=False)
    add_curve_parsers(verbs)
    add_frontier_parser(verbs)
    add_report_parser(verbs)
    add_watch_parser(verbs)
    add_ls_parser(verbs)
    add_score_parser(verbs)
    add_eval_parser(verbs)
    recipes = verbs.add_parser("recipes", help="print the fields in which the recipes differ")
    recipes.set_defaults(run=_recipes)
    add_import_parser(verbs)
    add_upgrade_parser(verbs)
    return parser, list(verbs.choices)


def _recipes(arguments: argparse.Namespace) -> int:
    from scalerl.cli.recipes import print_recipes

    print_recipes()
    return 0
