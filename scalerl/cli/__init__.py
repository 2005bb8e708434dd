"""The command line: one file per command; `main` parses the arguments and calls one of them."""

from scalerl.cli.main import main

__all__ = ["main"]
