"""The command line: one file per command; `main` parses the arguments and calls one of them."""

import sys

_MODULE = sys.argv[:1] == ["-m"]  # `python -m scalerl.cli`, before Python runs __main__.py
if _MODULE and not sys.flags.safe_path:
    del sys.path[0]  # the current directory, which may hold files from elsewhere

import os  # noqa: E402
import signal  # noqa: E402
from types import FrameType  # noqa: E402


def _end(number: int, frame: FrameType | None) -> None:
    """End a command whose modules are still being imported: `main` sets handlers that know what is saved."""
    os.write(2, f"scalerl: stopped before the start by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


if _MODULE or os.path.basename(sys.argv[0] if sys.argv else "") == "scalerl":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(_number) != signal.SIG_IGN:
            signal.signal(_number, _end)

from scalerl.cli.main import main  # noqa: E402

__all__ = ["main"]
