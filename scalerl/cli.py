"""The command line: each verb parses, calls one function, and turns the user's errors into one line and exit code 2.

Heavy imports are inside the verbs, so that `scalerl --help` is instant and the statistics never load torch.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.importers.command import add_import_parser
from scalerl.report.command import add_report_parser
from scalerl.report.verbs import add_curve_parsers

if TYPE_CHECKING:
    from scalerl.config import RunConfig

USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    parser = _parser()
    if words[:1] == ["train"]:  # its options are all the fields of a configuration, so they are read by config.py
        return _guarded(lambda: _train(words[1:]))
    if words[:1] == ["study"]:  # likewise
        return _guarded(lambda: _study(words[1:]))
    arguments = parser.parse_args(words)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    return _guarded(lambda: int(arguments.run(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scalerl",
        description="Reinforcement learning by the ScaleRL recipe, with a forecast of every run's curve.",
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    verbs.add_parser(
        "train", help="train; without arguments the embedded lab (see `scalerl train --help`)", add_help=False
    )
    verbs.add_parser(
        "study", help="plan, run and compare many runs: loo, recipes, forward, axes, rates", add_help=False
    )
    resume = verbs.add_parser("resume", help="go on with a run from its last checkpoint")
    resume.add_argument("directory", type=Path, help="run directory")
    resume.add_argument("--steps", type=int, help="new total number of steps, to train on beyond the old one")
    resume.set_defaults(run=_resume)
    add_curve_parsers(verbs)
    add_report_parser(verbs)
    sft = verbs.add_parser("sft", help="make the lab's warm start: a tiny model taught noisy reasoning traces")
    sft.add_argument("--out", type=Path, help="directory to save it in; default: the cache that `scalerl train` uses")
    sft.add_argument("--steps", type=int, help="updates")
    sft.add_argument("--seed", type=int, help="seed of weights and traces")
    sft.set_defaults(run=_sft)
    recipes = verbs.add_parser("recipes", help="print the recipes, component by component")
    recipes.set_defaults(run=_recipes)
    add_import_parser(verbs)
    return parser


TRAIN_USAGE = """usage: scalerl train [CONFIG.toml] [--run-dir DIR] [--seed N] [--dry-run] [--any.field VALUE ...]

Without arguments: the embedded lab, a tiny Qwen3 that learns chained arithmetic on this machine in minutes.
(--data.kind programs or mixed: other tasks for it; --model.experts 4: a mixture of experts.)

  scalerl train --model DIR_OR_HUB_ID --data prompts.jsonl --task math
  scalerl train --model DIR --data prompts.jsonl --reward package.module:function

options:
  CONFIG.toml        a configuration; config.toml of a run directory repeats that run
  --run-dir DIR      where to write; default runs/NAME-NNN
  --dry-run          print the resolved configuration and the derived sizes, and stop
  --preset NAME      start from `lab` or `scalerl` (the paper's sizes; default with --data)
  --model, --data, --task, --reward, --device, --seed, --steps   short for the fields they name below

fields (TOML sections, or --dotted.name VALUE):
"""


def _train(words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        print(TRAIN_USAGE + _field_help())
        return 0
    from scalerl.config import read_config

    words, run_dir = _take_option(words, "--run-dir")
    dry_run = "--dry-run" in words
    words = [word for word in words if word != "--dry-run"]
    file = Path(words.pop(0)) if words and not words[0].startswith("--") else None
    config = read_config(file, words)
    if dry_run:
        from scalerl.config import to_toml

        print(to_toml(config) + "\n" + "\n".join(f"# {line}" for line in config.derived_sizes()))
        return 0
    from scalerl.train.run_dir import next_directory

    path = Path(run_dir) if run_dir else next_directory(Path("runs"), config.recipe.name)

    def begin(display: Any, stop: Callable[[], bool]) -> Any:
        from scalerl.train.launch import start

        return start(config, path, display, stop)

    return _run(config, begin)


def _resume(arguments: argparse.Namespace) -> int:
    from scalerl.parts import replace
    from scalerl.train.run_dir import saved_config

    config = saved_config(arguments.directory)
    if arguments.steps is not None:
        config = replace(config, steps=arguments.steps)

    def restart(display: Any, stop: Callable[[], bool]) -> Any:
        from scalerl.train.launch import resume

        return resume(arguments.directory, arguments.steps, display, stop)

    return _run(config, restart)


def _run(config: RunConfig, make_session: Callable[..., Any]) -> int:
    """Train with signals turned into an orderly stop; print the outcome."""
    prepare_environment()
    from scalerl.display import RunDisplay
    from scalerl.report.summary import default_axis
    from scalerl.rollouts.pipeline import WorkerDied
    from scalerl.tasks.scoring import RewardError
    from scalerl.train.finish import run_to_end
    from scalerl.train.launch import resolve
    from scalerl.train.loop import TrainingFailed

    config, stop = resolve(config), _StopFlag()
    display = RunDisplay(config, default_axis(config))
    for line in config.derived_sizes():
        display.note(line)
    session = None
    try:
        session = make_session(display, stop)
        display.start()
        closing = run_to_end(session)
        display.stop()
        print("\n".join(closing))
        return 128 + stop.signal if stop.signal else 0
    except (TrainingFailed, WorkerDied, RewardError) as error:
        display.stop()
        where = session.directory.path if session else None
        _complain(str(error) + (f"\nNothing saved is lost; continue with: scalerl resume {where}" if where else ""))
        return FAILED
    finally:
        display.stop()
        if session is not None:
            session.pipeline.close()


class _StopFlag:
    """Turns the first SIGINT or SIGTERM into a request to stop after this step; a second SIGINT stops at once."""

    def __init__(self) -> None:
        self.signal = 0
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, self._note)

    def __call__(self) -> bool:
        return bool(self.signal)

    def _note(self, number: int, frame: Any) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        print("\nstopping after this step, with a checkpoint (once more to stop at once)", file=sys.stderr)


def _study(words: list[str]) -> int:
    from scalerl.study.command import study_main

    return study_main(words, _StopFlag)


def _sft(arguments: argparse.Namespace) -> int:
    prepare_environment()
    from scalerl.config import LAB, TinyModel
    from scalerl.data import PromptFile
    from scalerl.parts import replace
    from scalerl.train.warm_start import warm_start, warm_start_directory

    assert isinstance(LAB.model, TinyModel) and not isinstance(LAB.data, PromptFile)
    given = {name: getattr(arguments, name) for name in ("steps", "seed") if getattr(arguments, name) is not None}
    model = replace(LAB.model, warm_start=replace(LAB.model.warm_start, **given))
    directory = arguments.out or warm_start_directory(model, LAB.data)
    existed = (directory / "warm_start.json").exists()
    warm_start(
        model, LAB.data, directory, lambda row: print("  ".join(f"{k} {v:g}" for k, v in row.items()), flush=True)
    )
    print(f"{'already there' if existed else 'saved'}: {directory}")
    return 0


def _recipes(arguments: argparse.Namespace) -> int:
    from scalerl.report.recipes import leave_one_out_table, recipe_table

    recipe_table()
    leave_one_out_table()
    return 0


def prepare_environment() -> None:
    """Set what torch reads once, when it is first imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads of two processes slow each other 20-fold
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages: about 8 % on the cache-bound decode
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _take_option(words: list[str], name: str) -> tuple[list[str], str | None]:
    from scalerl.parts import ConfigError

    value, rest, queue = None, [], list(words)
    while queue:
        word = queue.pop(0)
        if word == name:
            if not queue:
                raise ConfigError(f"{name}: a value is needed and none was given")
            value = queue.pop(0)
        elif word.startswith(name + "="):
            value = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, value


def _field_help() -> str:
    from scalerl.config import field_lines

    lines = []
    for name, default, text in field_lines():
        lines.append(f"  {name:<36} {text}" + (f" [{default}]" if default else ""))
    return "\n".join(lines)


def _guarded(action: Callable[[], int]) -> int:
    """Run a verb; a user's error becomes one line on standard error."""
    from scalerl.parts import ConfigError
    from scalerl.scaling import CurveError

    try:
        return action()
    except (ConfigError, CurveError) as error:
        _complain(str(error))
        return USER_ERROR
    except BrokenPipeError:  # what reads our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        _complain("stopped at once; what was saved is kept, and `resume` goes on from there")
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _complain(f"no space left on the disk ({error.filename or error}); free some, then `scalerl resume` the run")
        return FAILED


def _complain(text: str) -> None:
    print(f"scalerl: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
