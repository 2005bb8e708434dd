"""The argument parser of all commands: errors are one line and name the nearest option."""

from __future__ import annotations

import argparse
import os
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

    def values_of(self, option: str) -> int:
        """Return how many words an option has as values: 0, 1 or MANY; 1 for an unknown one."""
        action = self._option_string_actions.get(option)
        count = None if action is None else action.nargs
        return count if isinstance(count, int) else MANY if count in ("+", "*", "?") else 1

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


MANY = 1 << 30
"""Number of values of an option that has a list of them."""


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
