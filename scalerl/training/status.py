"""Says in a run directory that a run is alive, and how it ended: status.json. Does not import torch.

A run that is killed cannot say so. While it lives, its file is therefore written again every few seconds, and a reader
takes a file that has not changed for long as a sign that the process is gone.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from scalerl.files import write_whole

NAME = "status.json"

BEAT_S = 5.0
"""Seconds between two beats."""

LONGEST = 1000
"""Characters of the message that are kept."""


@dataclass(frozen=True, slots=True)
class Status:
    """What status.json says.

    Example: Status(state="running", message="", host="node-3", pid=4242, started=1795363200.0, beat=1795363500.0)
    """

    state: str
    """running, finished, stopped (it can be resumed) or failed."""
    message: str
    """How it ended, one line or more; empty while it runs."""
    host: str
    pid: int
    started: float
    """Seconds since 1970, of the process that trains."""
    beat: float
    """The same, when this was written."""


class Heartbeat:
    """Keeps status.json of a run up to date while its body runs.

    Consumes / Produces: nothing / status.json, every ``BEAT_S`` seconds, from a thread of its own.
    Waits for / Unblocked by: the next beat / the end of the body.
    """

    def __init__(self, directory: Path, every_s: float = BEAT_S) -> None:
        """Prepare for a run directory that exists."""
        self._path, self._every_s = directory / NAME, every_s
        self._status = Status("running", "", socket.gethostname(), os.getpid(), time.time(), time.time())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            # a second Ctrl-C ends a run at once, on the user's wish
            self.ended(
                "stopped" if isinstance(error, KeyboardInterrupt) else "failed", str(error) or type(error).__name__
            )
        self._ended.set()
        self._thread.join()
        self._write()

    def ended(self, state: str, message: str) -> None:
        """Say how the run ended; it is written when the body is left."""
        self._status = Status(**{**asdict(self._status), "state": state, "message": message[:LONGEST]})

    def _beat(self) -> None:
        while not self._ended.wait(self._every_s):
            self._write()

    def _write(self) -> None:
        self._status = Status(**{**asdict(self._status), "beat": time.time()})
        # a disk that is full or away is reported by the rows of the run; its sign of life must not end it
        with suppress(OSError):
            write_whole(self._path, json.dumps(asdict(self._status)) + "\n")


def read_status(directory: Path) -> Status | None:
    """Return what status.json of a run directory says; None where there is none, or one that cannot be read."""
    try:
        found: dict[str, Any] = json.loads((directory / NAME).read_text(encoding="utf-8"))
        return Status(
            str(found["state"]),
            str(found["message"]),
            str(found["host"]),
            int(found["pid"]),
            float(found["started"]),
            float(found["beat"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
