"""The argument parser of all commands: errors are one line and name the nearest option."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from scalerl.cli.exits import USER_ERROR, complain


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line, without the usage, and exits with code 2.

    With `allow_abbrev=False` it leaves unknown options to its caller, which reads them as fields of a configuration.
    """

    def error(self, message: str) -> NoReturn:
        """Exit with one line that names the error and where the options are listed."""
        complain(f"{message}; see `{self.prog} --help`")
        raise SystemExit(USER_ERROR)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse arguments; report an unknown option together with the nearest known one, unless it may be a field."""
        known, rest = super().parse_known_args(args, namespace)
        unknown = next((word for word in rest if word.startswith("-")), None)
        if unknown is not None and self.allow_abbrev:
            from scalerl.core.errors import nearest

            name = unknown.partition("=")[0]
            self.error(f"unknown option {name[:80]}{nearest(name, self._option_string_actions)}")
        return known, rest


def parse_with_config(parser: Parser, words: Sequence[str]) -> tuple[Path | None, Any, list[str]]:
    """Return the configuration file, the first word if it is no option; the options; the fields."""
    file = Path(words[0]) if words and not words[0].startswith("-") else None
    return file, *parser.parse_known_args(words[1:] if file else words)


def count(text: str, least: int = 1) -> int:
    """Read the value of an option that is a whole number."""
    if not (text.isdecimal() and len(text) < 9 and int(text) >= least):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}; allowed: a whole number from {least} to 99999999")
    return int(text)


def add_directories(parser: argparse.ArgumentParser) -> None:
    """Add the argument `paths`: directories with runs and studies."""
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="DIR",
        help="run directories, studies, or directories that contain them; default: ./runs and ./studies",
    )  # fmt: skip
