"""The command line: one file per command; `main` parses the arguments and calls one of them."""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:  # `python -m scalerl.cli`, before Python runs __main__.py
    del sys.path[0]  # the current directory, which may hold files from elsewhere

from scalerl.cli.main import main

__all__ = ["main"]
