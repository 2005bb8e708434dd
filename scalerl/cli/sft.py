"""`scalerl sft`: supervised warm start of a model on the user's rows, or of the lab's model."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalerl.cli.exits import StopFlag, prepare_environment
from scalerl.cli.parsing import Parser
from scalerl.cli.terminal import say

USAGE = """scalerl sft MODEL --data traces.jsonl [--out DIR] [options]
       scalerl sft [--out DIR] [--steps N] [--seed N]
"""
DESCRIPTION = """With MODEL: train it on the completions of a file, so that it knows their format before RL.
The result is a model directory for `scalerl train --model`. Without MODEL: train the lab's tiny model."""


def sft(words: list[str]) -> int:
    """Run `scalerl sft`; return the exit code."""
    given = vars(_parser().parse_args(words))
    return _of_model(given) if given.get("model") else _of_lab(given)


def _of_model(given: dict[str, str]) -> int:
    from scalerl.config.base import build
    from scalerl.config.supervised import Supervised
    from scalerl.core.files import output_directory
    from scalerl.models.files import check_model_files

    settings = build(Supervised, given, "scalerl sft")
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


def _of_lab(given: dict[str, str]) -> int:
    """Train the lab's warm start if it does not exist yet."""
    from scalerl.config import LAB, TinyModel
    from scalerl.config.base import build, replace
    from scalerl.config.model import WarmStart
    from scalerl.core.errors import ConfigError

    unfit = sorted(given.keys() - {"steps", "seed", "out"})
    if unfit:
        raise ConfigError(
            f"scalerl sft: got --{unfit[0].replace('_', '-')} without a model; allowed: scalerl sft MODEL --data FILE, "
            "or only --out, --steps and --seed for the lab's warm start"
        )
    assert isinstance(LAB.model, TinyModel)
    changes: dict[str, str] = {name: given[name] for name in ("steps", "seed") if name in given}
    start = build(WarmStart, {**dict(LAB.model.warm_start), **changes}, "scalerl sft")
    model = replace(LAB.model, warm_start=start)
    prepare_environment()
    from scalerl.training.warm_start import is_whole, warm_start, warm_start_directory

    directory = Path(given["out"]) if "out" in given else warm_start_directory(model, LAB.data)
    existed = is_whole(directory)
    warm_start(model, LAB.data, directory, lambda row: say("  ".join(f"{k} {v:g}" for k, v in row.items())))
    say(f"{'already there' if existed else 'saved'}: {directory}")
    return 0


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
            parser.add_argument("model", metavar="MODEL", nargs="?", help=text)
            continue
        default = "" if field.is_required() or field.default in (None, "") else f" [{field.default}]"
        option = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, help=text + default)
        else:
            parser.add_argument(option, metavar=name.upper().rpartition("_")[2], help=text + default)
    return parser
