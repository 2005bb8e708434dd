"""The command line: one file a verb; `main` reads the words and calls one of them."""

from scalerl.cli.main import main

__all__ = ["main"]
