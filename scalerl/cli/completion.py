"""`scalerl completion SHELL` prints the script with which a shell completes commands, options and fields."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

from scalerl.cli.options import Parser, ParserRequest
from scalerl.core.errors import UserError

SHELLS = ("bash", "zsh", "fish")

HELP_TEXT = """\
Print the script with which a shell completes commands, options and fields.

  bash   scalerl completion bash > ~/.local/share/bash-completion/completions/scalerl
  zsh    scalerl completion zsh > "${fpath[1]}/_scalerl"
  fish   scalerl completion fish > ~/.config/fish/completions/scalerl.fish"""


def run_completion(words: list[str]) -> int:
    """Print the script of a shell; return the exit code."""
    import shtab

    parser = Parser(
        prog="scalerl completion", description=HELP_TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_args(words).shell
    print(shtab.complete(full_parser(), shell))
    return 0


def full_parser() -> argparse.ArgumentParser:
    """Return one parser of all commands. Those whose packages are not installed have no options."""
    from scalerl.cli.main import COMMANDS

    parser_of_all = argparse.ArgumentParser(prog="scalerl")
    commands = parser_of_all.add_subparsers(dest="command")
    for name, command in COMMANDS.items():
        words = commands.add_parser(name, help=command.about, add_help=False)
        parser = _parser_of(name, command.module)
        for action in parser._actions if parser else ():
            words._add_action(action)
        if parser is not None and not parser.allow_abbrev:
            option_names = {option for action in parser._actions for option in action.option_strings}
            for option in _field_options():
                if option not in option_names:
                    words.add_argument(option, metavar="VALUE")
    return parser_of_all


def _parser_of(name: str, module: str) -> argparse.ArgumentParser | None:
    """Return the parser that a command makes, or None if its packages are not installed."""
    Parser.requested = True
    try:
        getattr(import_module(f"scalerl.cli.{module}"), f"run_{name}")([])
    except ParserRequest as request:
        return request.parser
    except UserError:
        return None  # its packages are not installed
    finally:
        Parser.requested = False
    raise AssertionError(f"`scalerl {name}` parses no arguments")


def _field_options() -> Iterator[str]:
    """Yield the fields of a default configuration as options, such as --recipe.loss.kind."""
    from scalerl.core.serialization import leaves
    from scalerl.training.config import RunConfig, plain_values

    yield from (f"--{name}" for name, _ in leaves(plain_values(RunConfig(), mode="json")))
