"""`scalerl train` and `scalerl resume`: read the configuration, train to the end, print the outcome."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from scalerl.cli.options import Parser, add_trust, bare_first, parse_with_config
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import ConfigError
from scalerl.core.files import output_directory
from scalerl.core.packages import TRAINING_MODULES, prepare_environment
from scalerl.core.stop_signals import StopFlag
from scalerl.core.working import Working
from scalerl.training.config import PRESETS, HuggingFaceModel, RunConfig, read_config, to_toml
from scalerl.training.config.base import read_option, replace
from scalerl.training.config.overrides import changed_values, preset_of
from scalerl.training.config.trust import check_trust, is_confirmed
from scalerl.training.loop.planned import demonstration
from scalerl.training.loop.run_dir import saved_config
from scalerl.training.machines.evaluations import curve_line
from scalerl.training.machines.layout import check_layout, lay_out, lines
from scalerl.training.models.files import check_model_files
from scalerl.training.prompts.files import check_prompt_files

TRAIN_USAGE = """usage: scalerl train [CONFIG.toml] [options] [--any.field VALUE ...]

Without arguments, train the embedded lab: a tiny Qwen3 that learns chained
arithmetic on this machine in minutes. With a model and prompts of your own:
  scalerl train --model DIR_OR_HUB_ID --data prompts.jsonl --task math

options:
  CONFIG.toml     a configuration; config.toml of a run repeats that run
  --recipe NAME   a recipe that `scalerl recipes` prints, such as grpo, with the
                  sizes of the preset
  --preset NAME   values to start from: lab (default), quick, long-tail,
                  small (default with your data), laptop (the same without a
                  GPU, or less, so that a laptop takes about ten minutes),
                  scalerl (the paper's sizes)
  --run-dir DIR   directory of the run; default runs/NAME-NNN
  --dry-run       print what differs from the preset, what follows from it (the
                  memory, what is free, the expected duration), and stop
  --all           with --dry-run: print every field of the configuration
  --trust         run the code that CONFIG.toml names without confirmation
  --help [GROUP]  this text, or the fields of a group, such as recipe.loss
  --model, --data, --task, --reward, --device, --suites: short names of fields

fields, as tables of CONFIG.toml or options, with [the value of this command]:"""


RESUME_HELP = """Resume a run from its last checkpoint, or from an earlier one.

A few fields may change, as --dotted.name VALUE; config.toml then has the new value:
  --recipe.optimizer.learning_rate X   from this step on, for example after a gradient that was not finite;
                                       recorded with the step in recipe.optimizer.later_rates
  --stop_when, --loggers, --checkpoint.*, --placement.*"""


def run_train(words: list[str]) -> int:
    """Run `scalerl train`, whose options are all fields of a configuration; return the exit code."""
    parser = Parser(prog="scalerl train", allow_abbrev=False, add_help=False)
    parser.add_argument("-h", "--help", nargs="?", const="")
    parser.add_argument("--run-dir")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--all", action="store_true")
    add_trust(parser, "the code that CONFIG.toml names")
    file, options, words = parse_with_config(parser, words)
    if options.run_dir == "":
        raise ConfigError("--run-dir: got an empty path; allowed: a new or empty directory")
    if options.all and not options.dry_run:
        raise ConfigError("--all: got it without --dry-run, whose output it completes; add --dry-run, or leave it out")
    config = read_config(file, words)
    if options.help is not None:
        from scalerl.cli.fields import field_help

        print(*([] if options.help else [TRAIN_USAGE]), field_help(options.help, config), sep="\n")
        return 0
    check_inputs(config, weights=not options.dry_run)
    config, demonstrated = demonstration(file, words)
    if options.dry_run:
        if options.run_dir is not None:
            raise ConfigError("--run-dir: got one with --dry-run, which writes nothing; give one of the two")
        with Working("reading model and prompts"):
            trusted = is_confirmed(config, trusted=options.trust or file is None, typed=words)
            decided, about = _dry_run(config, trusted)
        about = [*demonstrated, *about]
        if options.all:
            print_lines(*to_toml(decided).split("\n"), *(f"# {line}" for line in about))
            return 0
        preset = preset_of(file, words)
        own = tomli_w.dumps({"preset": preset, **changed_values(decided, PRESETS[preset])})
        print_lines(*own.split("\n"), *(f"# {line}" for line in about), ALL_FIELDS)
        return 0
    check_trust([config], str(file or "the command line"), trusted=options.trust or file is None, typed=words)
    if demonstrated:
        print_lines(*demonstrated)
    with output_directory(options.run_dir, Path("runs"), config.recipe.name) as path:
        return _run(config, lambda launch: partial(launch.start, config, path))


def check_inputs(config: RunConfig, *, weights: bool = True) -> None:
    """Check the files of prompts and model before torch is imported.

    Raises:
        ConfigError: A file is missing or damaged (training/models/files.py, training/prompts/files.py).
    """
    check_prompt_files(config.data)
    if isinstance(config.model, HuggingFaceModel):
        check_model_files(config.model.path, weights=weights)


ALL_FIELDS = "# These fields differ from the preset; --dry-run --all prints every field."


def _dry_run(config: RunConfig, trusted: bool) -> tuple[RunConfig, list[str]]:
    """Return the configuration, and lines with its sizes, placement, memory, duration and curve.

    `trusted`: whether the user has confirmed its code, which then makes its prompts.

    Raises:
        ConfigError: The placement cannot be split or does not fit in memory.
    """
    from scalerl.training.loop.resolve import planned_inputs, resolve

    inputs = planned_inputs(config, trusted)
    resolved = resolve(inputs)
    layout = lay_out(resolved.sizes)
    check_layout(layout)
    about = [*resolved.lines, *lines(layout), curve_line(resolved.config, resolved.pool.held_out)]
    return replace(config, recipe=resolved.config.recipe), [*about, *(inputs.prompts.notes if inputs.prompts else ())]


def run_resume(words: list[str]) -> int:
    """Run `scalerl resume`; return the exit code."""
    parser = Parser(
        prog="scalerl resume", description=RESUME_HELP, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("directory", type=Path, help="run directory")
    parser.add_argument("--steps", type=int, help="new total number of steps")
    words_of_step = "go back to the checkpoint of this step; later checkpoints and rows are removed"
    parser.add_argument("--from-step", type=int, metavar="STEP", help=words_of_step)
    add_trust(parser, "its configuration's code")
    arguments, options = parser.parse_known_args(bare_first(parser, words))
    config = saved_config(arguments.directory)
    if options:  # the machines, too, are those of the options: a cluster's old head may be gone
        config = read_config(arguments.directory / "config.toml", options)
    check_inputs(config)
    check_trust([config], str(arguments.directory), trusted=arguments.trust, typed=options)
    if arguments.steps is not None:
        config = read_option("--steps", lambda: replace(config, steps=arguments.steps))

    extras = {"options": options, "from_step": arguments.from_step}
    return _run(config, lambda launch: partial(launch.resume, arguments.directory, arguments.steps, **extras))


def _run(config: RunConfig, make_run: Callable[[Any], Callable[..., Any]]) -> int:
    """Train, print the outcome and return the exit code; a signal stops the run with a checkpoint."""
    prepare_environment(TRAINING_MODULES)

    with Working("loading torch"):
        from scalerl.training.loop import launch
        from scalerl.training.loop.complete import complete
        from scalerl.training.loop.display import RunDisplay

    stop = StopFlag()
    display = RunDisplay(config)
    ended = complete(make_run(launch), display, stop)
    print_lines(*ended.closing)
    return 0 if ended.finished else 128 + stop.signal
