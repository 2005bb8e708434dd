"""The parser of every verb: what it refuses is one line, with the nearest name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from scalerl.cli.exits import USER_ERROR, complain


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line and exit code 2, without the usage."""

    takes_fields = False
    """Whether options that it does not know are fields of a configuration."""

    def error(self, message: str) -> NoReturn:
        """End with one line that says what is wrong and where the options are listed."""
        complain(f"{message}; see `{self.prog} --help`")
        raise SystemExit(USER_ERROR)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse as argparse does; an unknown option is refused here, by the verb that knows the nearest one."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = next((word for word in rest if word.startswith("-")), None)
        if unknown is not None and not self.takes_fields:
            from scalerl.config.base import nearest

            name = unknown.partition("=")[0]
            self.error(f"unknown option {name[:80]}{nearest(name, self._option_string_actions)}")
        return found, rest
