"""`scalerl sft`: supervised warm start of a model on the user's rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalerl.cli.exits import StopFlag, prepare_environment
from scalerl.cli.parsing import Parser
from scalerl.cli.terminal import say

USAGE = "scalerl sft MODEL --data traces.jsonl [--out DIR] [options]"
DESCRIPTION = """Train MODEL on the completions of a file, so that it knows their format before RL.
The result is a model directory for `scalerl train --model`. The lab's model needs no such step."""


def sft(words: list[str]) -> int:
    """Run `scalerl sft`; return the exit code."""
    from scalerl.config.base import build
    from scalerl.config.supervised import Supervised
    from scalerl.core.files import output_directory
    from scalerl.models.files import check_model_files

    settings = build(Supervised, vars(_parser().parse_args(words)), "scalerl sft")
    check_model_files(settings.model)
    prepare_environment()
    from scalerl.training.supervised import fine_tune

    stop = StopFlag("the model so far is saved")
    with output_directory(settings.out, Path("runs"), "sft") as directory:
        outcome = fine_tune(settings, directory, say, stop)
    if outcome.held_out_after is not None:
        say(f"held-out loss {outcome.held_out_before:.4f} -> {outcome.held_out_after:.4f} nats per token")
    stopped = f" (stopped after {len(outcome.steps)} updates)" if outcome.stopped else ""
    say(f"saved{stopped}: {directory}", f"next: scalerl train --model {directory} --data prompts.jsonl")
    return 128 + stop.signal if outcome.stopped else 0


def _parser() -> argparse.ArgumentParser:
    """Return a parser whose options are the fields of `Supervised`, with their documentation."""
    from scalerl.config.supervised import Supervised

    parser = Parser(
        prog="scalerl sft", usage=USAGE, description=DESCRIPTION, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS,
    )  # fmt: skip
    for name, field in Supervised.model_fields.items():
        text = " ".join((field.description or "").split()).replace("%", "%%")
        if name == "model":
            parser.add_argument("model", metavar="MODEL", help=text)
            continue
        default = "" if field.is_required() or field.default in (None, "") else f" [{field.default}]"
        option = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, help=text + default)
        else:
            parser.add_argument(option, metavar=name.upper().rpartition("_")[2], help=text + default)
    return parser
