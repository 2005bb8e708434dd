"""`scalerl follow`: stands beside any run, reads what is new in its log, and prints the forecast when it changes."""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from scalerl.cli.exits import FAILED, complain
from scalerl.cli.options import Parser, add_decision_options, add_json, add_reading_options, number, reading_of
from scalerl.cli.terminal import print_lines
from scalerl.cli.watch import add_address, check_page, listen, serving
from scalerl.core.errors import UserError
from scalerl.core.limits import PAGE_CLOSE_S
from scalerl.core.stop_signals import set_saved_note
from scalerl.reading.curves.stop import CONDITION_FORMS, stop_rule
from scalerl.reading.pages.following import AWAY, ENDED, EVERY_S, WAITING, Change, FollowedLog
from scalerl.reading.pages.outlook import forecast_dict

EXAMPLES = """examples:
  scalerl follow run.log --devices 8
  scalerl follow grpo-run --devices 8 --page
  scalerl follow wandb:team/project/run
  scalerl follow run.log --until "gain at 2x below 0.02" && scancel 1234

exit codes:
  0    a condition of --until holds; without --until, the run has ended
  1    the run has ended, or was silent for --patience hours, before a condition held
  2    the log needs a choice, or cannot be read
  130  Ctrl-C (143: SIGTERM)
"""

PATIENCE_H = 24.0
"""Hours without new rows after which the command gives up."""


def follow_parser() -> Parser:
    """Return the parser of `scalerl follow`."""
    words = "Follow the log of a run while it trains, and print its forecast when it changes."
    parser = Parser(
        prog="scalerl follow", description=words, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    about = (
        "log of any trainer, which may not exist yet (docs/importing.md): a file, the directory of a run, of "
        "TensorBoard or MLflow, a database of MLflow or Trackio, wandb:entity/project/run"
    )
    parser.add_argument("path", type=Path, metavar="SOURCE", help=about)
    about = f"end with exit code 0 when one of these holds: {CONDITION_FORMS}"
    parser.add_argument("--until", nargs="+", action="extend", default=[], metavar="CONDITION", help=about)
    parser.add_argument(
        "--every", type=number, default=EVERY_S, metavar="SECONDS", help="time between two looks; default 15"
    )
    about = "end with exit code 1 after this time without new rows; default 24"
    parser.add_argument("--patience", type=number, default=PATIENCE_H, metavar="HOURS", help=about)
    parser.add_argument("--page", action="store_true", help="serve a live page about the log, as `scalerl watch` does")
    add_address(parser)
    add_reading_options(parser)
    add_decision_options(parser)
    add_json(parser, "print one JSON object per change (docs/json.md)")
    return parser


def run_follow(words: list[str]) -> int:
    """Follow a log until a condition holds, the run ends, or a signal comes; return the exit code.

    Raises:
        UserError: The log needs a choice or cannot be read, or an option is wrong.
    """
    options = follow_parser().parse_args(words)
    for name in ("every", "patience"):
        value = getattr(options, name)
        if not 0 < value < 1e6:
            raise UserError(f"--{name}: got {value:g}; allowed: a number above 0")
    if str(options.path) == "-":
        raise UserError(
            "SOURCE: got -; allowed: a log that can be read again, such as run.log of `train | tee run.log`"
        )
    rules = [stop_rule(text) for text in options.until]
    log = FollowedLog(options.path, reading_of(options), options.every, rules)
    if options.page:
        check_page()
    show = show_json if options.json else Lines().show
    with paged(log, show, options) if options.page else nullcontext():
        return follow(log, show, options)


@contextmanager
def paged(log: FollowedLog, show: Show, options: argparse.Namespace) -> Iterator[None]:
    """Serve the page of the log in a thread, until the command ends.

    The thread consumes the attributes of the log and produces pages. It waits for requests, and `should_exit` ends it.
    """
    from scalerl.reading.pages.watcher import Watcher

    place = listen(options.host, options.port)
    server = serving(Watcher([], [log], looks=False), place, open_browser=options.open)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place.listening]}, daemon=True)
    thread.start()
    show(log, Change("page", f"page at {place.link}"))
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(PAGE_CLOSE_S)


Show = Callable[[FollowedLog, Change], None]
"""Prints one change."""


def follow(log: FollowedLog, show: Show, options: argparse.Namespace) -> int:
    """Look at a log again and again; return the exit code."""
    moving = ""
    while True:
        start, version = time.monotonic(), log.version
        changes = log.look()
        for change in changes:
            show(log, change)
        set_saved_note(how_far(log))
        if log.outlook is not None and log.source is not None and log.version != version:
            before, moving = moving, log.source.about_bounds
            if moving and not before:
                waits = "; until then, conditions on the gain and the ceiling wait" if log.rules else ""
                show(log, Change("bounds", moving + waits))
            if reason := next((judgment.text for judgment in log.judgments if judgment.holds), ""):
                show(log, Change("condition", reason))
                return 0
        if log.state == ENDED:
            return missed(log, "the run has ended") if log.rules else 0
        if time.monotonic() - log.changed_at > 3600 * options.patience:
            return missed(log, f"nothing new for {options.patience:g} hours: {log.detail or log.path}")
        time.sleep(max(0.0, start + log.rest_s - time.monotonic()))


def missed(log: FollowedLog, why: str) -> int:
    """Say why the command ends before a condition held, and how far each was; return the exit code."""
    complain("; ".join(filter(None, [why, how_far(log)])))
    return FAILED


def how_far(log: FollowedLog) -> str:
    """Return how far each condition is from holding."""
    return "; ".join(judgment.text for judgment in log.judgments)


class Lines:
    """Prints changes as lines with their time, and what was read before the first forecast and when it changes."""

    def __init__(self) -> None:
        self._read: list[str] = []

    def show(self, log: FollowedLog, change: Change) -> None:
        """Print one change."""
        if change.kind == "forecast" and log.source is not None and log.source.log is not None:
            log_lines = log.source.log.lines()
            read = [re.sub(r"\d+ points( in \d+ windows)?", "", line) for line in log_lines]  # not how much was read
            if fresh := [line for line, same in zip(log_lines, read, strict=True) if same not in self._read]:
                print_lines(*fresh)
            self._read = read
        prefix = f"{change.kind}: " if change.kind in (AWAY, WAITING) else ""
        print_lines(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {prefix}{change.text}")


def show_json(log: FollowedLog, change: Change) -> None:
    """Print a change as one JSON object in one line."""
    values: dict[str, Any] = {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "event": change.kind, "source": str(log.path), "text": change.text,
    }  # fmt: skip
    if change.kind == "forecast" and log.outlook is not None and log.source is not None:
        values |= {**forecast_dict(log.outlook.forecast), "advice": log.outlook.advice.to_dict()}
        values |= {} if log.source.log is None else {"log": log.source.log.to_dict()}
    print(json.dumps(values, allow_nan=False), flush=True)
