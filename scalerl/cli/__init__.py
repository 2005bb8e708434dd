"""The command line: one file per command; `main` parses the arguments and calls one of them."""

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    """End a command whose modules are still being imported: `main` sets handlers that know what is saved."""
    os.write(2, f"scalerl: stopped before the start by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


_module = sys.argv[:1] == ["-m"]  # `python -m scalerl.cli`, before Python runs __main__.py
if _module or os.path.basename(sys.argv[0] if sys.argv else "") == "scalerl":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(_number) != signal.SIG_IGN:
            signal.signal(_number, _end)
if _module and not sys.flags.safe_path:
    del sys.path[0]  # the current directory, which may hold files from elsewhere

from scalerl.cli.main import main  # noqa: E402

__all__ = ["main"]
