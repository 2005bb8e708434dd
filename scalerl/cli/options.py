"""The argument parser of all commands, and the options that several of them share.

Errors are one line with the nearest option.
"""

from __future__ import annotations

import argparse
import atexit
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from scalerl.cli.exits import complain
from scalerl.core.errors import UserError, nearest

if TYPE_CHECKING:
    from scalerl.reading.curves.curve import LogChoices, ReadOptions
    from scalerl.reading.pages.figure import Figure
    from scalerl.reading.pages.following import Reading


class ParserRequest(Exception):
    """Raised with the parser of a command while `Parser.requested`; `scalerl completion` reads its options."""

    def __init__(self, parser: Parser) -> None:
        """Carry the parser."""
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line, without the usage, and exits with code 2.

    With `allow_abbrev=False` it leaves unknown options to its caller, which reads them as fields of a configuration.
    """

    requested: ClassVar[bool] = False
    """Whether parsers are asked for, and no arguments are parsed."""

    def error(self, message: str) -> NoReturn:
        """Exit with one line: the error, and where the options are listed."""
        complain(f"{message}; see `{self.prog} --help`")
        raise SystemExit(UserError.exit_code)

    def values_of(self, option: str) -> int:
        """Return how many words an option has as values: 0, 1 or MANY; 1 for an unknown one."""
        action = self._option_string_actions.get(option)
        count = None if action is None else action.nargs
        return count if isinstance(count, int) else MANY if count in ("+", "*", "?") else 1

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse arguments; report an unknown option together with the nearest known one, unless it may be a field."""
        if Parser.requested:
            raise ParserRequest(self)
        parsed, extras = super().parse_known_args(args, namespace)
        unknown = next((word for word in extras if word.startswith("-")), None)
        if unknown is not None and self.allow_abbrev:
            name = unknown.partition("=")[0]
            self.error(f"unknown option {name[:80]}{nearest(name, self._option_string_actions)}")
        return parsed, extras


def parse_with_config(parser: Parser, words: Sequence[str]) -> tuple[Path | None, Any, list[str]]:
    """Return the configuration file, the options and the fields; the file may stand at any place among the options."""
    bare = bare_words(parser, words)
    files = [at for at in bare if at == 0 or words[at].endswith(".toml") or os.path.exists(words[at])][:1]
    options, fields = parser.parse_known_args([word for at, word in enumerate(words) if at not in files])
    return Path(words[files[0]]) if files else None, options, fields


def bare_first(parser: Parser, words: Sequence[str]) -> list[str]:
    """Return the words with those in front that are neither options nor their values; the parser then finds them."""
    bare = bare_words(parser, words)
    return [*(words[at] for at in bare), *(word for at, word in enumerate(words) if at not in bare)]


def bare_words(parser: Parser, words: Sequence[str]) -> list[int]:
    """Return the positions of words that are neither options nor their values.

    An option that the parser does not know is a field and has one value. A TOML file ends a list of values.
    """
    bare, values = list[int](), 0
    for at, word in enumerate(words):
        is_option = word.startswith("-") and len(word) > 1
        if values and not (values > 1 and (is_option or word.endswith(".toml"))):
            values -= values == 1
        elif is_option:
            values = 0 if "=" in word else parser.values_of(word)
        else:
            bare.append(at)
    return bare


def input_path(text: str) -> Path:
    """Return the path of an option; for "-", that of a copy of standard input, which is read once."""
    return _standard_input() if text == "-" else Path(text)


@lru_cache(maxsize=1)
def _standard_input() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="scalerl-")
    atexit.register(directory.cleanup)
    path = Path(directory.name) / "standard-input"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


MANY = 1 << 30
"""Number of values of an option that has a list of them."""


def count(text: str, least: int = 1) -> int:
    """Read the value of an option that is a whole number."""
    if not (text.isdecimal() and len(text) < 9 and int(text) >= least):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}; allowed: a whole number from {least} to 99999999")
    return int(text)


def number(text: str) -> float:
    """Read the value of an option that is a number; not nan, which every comparison lets pass."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}; allowed: a number")
    return value


def add_curve_options(parser: argparse.ArgumentParser) -> None:
    """Add the runs or files whose curves a command reads, and how they are read."""
    about = "run directory, file of points, or the log of any trainer (docs/importing.md); -: standard input"
    parser.add_argument("paths", nargs="+", type=input_path, metavar="RUN_OR_LOG", help=about)
    add_reading_options(parser)
    add_json(parser)


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how one curve is read: its axis and task, how a log is read, and what is left out."""
    add_curve(parser)
    add_log_options(parser)
    parser.add_argument(
        "--exclude-below",
        type=number,
        default=0.0,
        metavar="C",
        help="leave out points below this compute, except 0",
    )
    about = "answers behind each point of a file without a column stderr or answers, which give its noise"
    parser.add_argument("--answers", type=number, metavar="N", help=about)


def add_curve(parser: argparse.ArgumentParser, task: str = "name of the task; required if there are several") -> None:
    """Add the options that choose one curve of a run: its axis and its task."""
    parser.add_argument("--compute", help="compute axis: device_hours, flops, tokens or step")
    parser.add_argument("--task", help=task)


def add_decision_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the decision: the gain that counts, and the price of compute."""
    about = "smallest gain that is worth twice the compute, in the metric's unit; default 0.02 of its range"
    parser.add_argument("--min-gain", type=number, metavar="GAIN", help=about)
    add_price(parser)


def add_price(parser: argparse.ArgumentParser) -> None:
    """Add the option `--price`."""
    about = "price of a device-hour; costs are then in money instead of device-hours"
    parser.add_argument("--price", type=number, metavar="MONEY", help=about)


def add_figures(parser: argparse.ArgumentParser) -> None:
    """Add the options that write the figures and tables of a page for papers."""
    about = "also write its figures (PDF, SVG, PNG) and tables (CSV, LaTeX, Markdown) to this directory, for papers"
    parser.add_argument("--figures", type=Path, metavar="DIR", help=about)
    about = "width of these figures in inches; default 3.25, a column of a paper"
    parser.add_argument("--width", type=number, default=3.25, metavar="INCHES", help=about)
    parser.add_argument("--linear", action="store_true", help="linear compute axes in these figures, not logarithmic")
    parser.add_argument("--dark", action="store_true", help="these figures are for a dark background")


def write_figures(options: argparse.Namespace, page: dict[str, Any], figures: Mapping[str, Figure | None]) -> list[str]:
    """Write the figures and tables of a page, as the options of `add_figures` say; return a line with their place.

    Raises:
        ConfigError: The width or the directory cannot be used.
    """
    if options.figures is None:
        return []
    from scalerl.reading.pages.papers import save_page

    written = save_page(
        options.figures, page, figures, width=options.width, dark=options.dark,
        scale="linear" if options.linear else "log",
    )  # fmt: skip
    return [f"figures   {len(written)} files in {options.figures}"]


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how the log of a trainer is read."""
    parser.add_argument(
        "--bounds", type=number, nargs=2, metavar=("LOW", "HIGH"),
        help="minimum and maximum of the metric; default: by its name, or from its values",
    )  # fmt: skip
    about = "trainer of the log; default: recognized by its columns"
    parser.add_argument("--from", dest="source", metavar="TRAINER", help=about)
    about = "metric of the log; default: a score on held-out prompts, else the reward of training"
    parser.add_argument("--metric", metavar="NAME", help=about)
    about = "name of the run; required if a log has several"
    parser.add_argument("--run", dest="run_name", metavar="NAME", help=about)
    parser.add_argument("--devices", type=number, metavar="N", help="number of accelerators, for device-hours")
    parser.add_argument(
        "--column", action="append", default=[], metavar="ROLE=NAME",
        help="column for a role: step, seconds, clock, tokens, step_tokens, device_hours, flops, task or stderr",
    )  # fmt: skip


def log_choices(options: argparse.Namespace) -> LogChoices:
    """Return the options of `add_log_options` as arguments of `importers.read`, without the bounds.

    Raises:
        UserError: A column has no role or no name.
    """
    columns = {}
    for pair in options.column:
        role, _, name = pair.partition("=")
        if not (role and name):
            raise UserError(f"--column: got {pair!r}; allowed: ROLE=NAME, such as step=iteration")
        columns[role] = name
    return {
        "source": options.source, "metric": options.metric, "run": options.run_name, "devices": options.devices,
        "columns": columns,
    }  # fmt: skip


def read_options(options: argparse.Namespace) -> ReadOptions:
    """Return how curves are read, as the options of `add_curve_options` say."""
    return {
        "compute": options.compute, "task": options.task, "bounds": tuple(options.bounds) if options.bounds else None,
        "answers": options.answers, **log_choices(options),
    }  # fmt: skip


def reading_of(options: argparse.Namespace) -> Reading:
    """Return the options of `add_reading_options`, and of `add_decision_options` if any."""
    from scalerl.reading.pages.following import Reading

    names = ("exclude_below", "min_gain", "price")
    return Reading(read_options(options), **{name: getattr(options, name) for name in names if hasattr(options, name)})


def add_versus(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the option `--versus`: the runs of the other recipe."""
    words = "runs of the other recipe"
    parser.add_argument("--versus", nargs="+", type=input_path, metavar="RUN_OR_FILE", required=required, help=words)


def add_at(parser: argparse.ArgumentParser) -> None:
    """Add the option `--at` of a comparison."""
    about = "compute at which the lead is forecast: a multiple of what both have reached, 4x, or a number; default: 2x"
    parser.add_argument("--at", metavar="C", help=about)


def add_json(parser: argparse.ArgumentParser, words: str = "print JSON (docs/json.md)") -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", action="store_true", help=words)


def add_trust(parser: argparse.ArgumentParser, code: str) -> None:
    """Add the option `--trust`; `code` says which code is then run without confirmation."""
    parser.add_argument("--trust", action="store_true", help=f"run {code} without confirmation")


def add_directories(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the argument `paths`: directories with runs and studies; `more` says what else it may be."""
    about = (
        f"run directories, studies, directories that contain them{more and f', {more}'}; default: ./runs and ./studies"
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH" if more else "DIR", help=about)
