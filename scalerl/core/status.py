"""status.json in a run directory: whether a run is alive, and how it ended. torch is not imported.

A killed run cannot report its end. The file is therefore rewritten every few seconds, and readers treat a file that has
not changed for long as a sign that the process has ended.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType

from scalerl.core.files import read_json, write_whole
from scalerl.core.run_files import STATUS

PHASES = {
    "starting": "loads the model and starts the generators",
    "warm start": "supervised training of the lab's tiny model before RL begins, once per machine",
    "training": "makes training steps",
    "evaluating": "measures the pass rate on held-out prompts; training continues afterwards",
    "saving": "writes a checkpoint or the final model",
}
"""Phases of a running run, with descriptions."""

BEAT_S = 5.0
"""Seconds between two beats."""

FILE_BLOCK_BYTES = 4096
"""Bytes that a file of any size occupies on the usual file systems."""
MESSAGE_CHARACTERS = 1000
"""Maximum length of the message, characters."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """Content of status.json.

    Example: Status(state="running", message="", host="node-3", pid=4242, started=1795363200.0, beat=1795363500.0,
        phase="evaluating")
    """

    state: str
    """running, finished, stopped (it can be resumed) or failed."""
    message: str = ""
    """How the run ended, one or more lines. While it runs, details of the phase; may be empty."""
    host: str
    pid: int
    started: float
    """Start of the training process, seconds since 1970."""
    beat: float
    """Time of the last write, seconds since 1970."""
    phase: str
    """Current phase of a running run, a key of `PHASES`."""


class Heartbeat:
    """Context manager that updates status.json of a run every `BEAT_S` seconds from a separate thread."""

    def __init__(self, directory: Path, every_s: float = BEAT_S, phase: str = "starting") -> None:
        """Prepare the heartbeat of an existing run directory, which begins in a phase of `PHASES`."""
        self._path, self._every_s = directory / STATUS, every_s
        now, host = time.time(), socket.gethostname()
        self._status = Status(state="running", host=host, pid=os.getpid(), started=now, beat=now, phase=phase)
        self._ended, self._wake = False, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            # a second Ctrl-C ends a run immediately; this is a stop, not a failure
            self.ended(
                "stopped" if isinstance(error, KeyboardInterrupt) else "failed", str(error) or type(error).__name__
            )
        self._ended = True
        self._wake.set()
        self._thread.join()
        self._write()

    def ended(self, state: str, message: str) -> None:
        """Set how the run ended; it is written when the context ends."""
        self._status = replace(self._status, state=state, message=message[:MESSAGE_CHARACTERS])

    def phase(self, phase: str, message: str = "") -> None:
        """Set the phase of the run, a key of `PHASES`, with details; the thread writes it immediately."""
        assert phase in PHASES
        self._status = replace(self._status, phase=phase, message=message[:MESSAGE_CHARACTERS])
        self._wake.set()

    def _beat(self) -> None:
        """Rewrite status.json at intervals, at once after a new phase, until `__exit__`."""
        while not self._ended:
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._write()

    def _write(self) -> None:
        text = json.dumps(asdict(replace(self._status, beat=time.time()))) + "\n"
        try:
            write_whole(self._path, text)
        except OSError:
            # a full or missing disk is reported when rows are written; the heartbeat must not end the run
            with suppress(OSError):
                _overwrite(self._path, text.encode())


def _overwrite(path: Path, content: bytes) -> None:
    """Write over an existing file: a full disk has no room for another one, but the block of this one is there."""
    if len(content) > FILE_BLOCK_BYTES:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.write(descriptor, content)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


def read_status(directory: Path) -> Status | None:
    """Return the content of status.json in a run directory; None if it does not exist or cannot be read."""
    try:
        values = dict(read_json(directory / STATUS))
        status = Status(**{name: values[name] for name in (f.name for f in fields(Status)) if name in values})
    except (OSError, ValueError, TypeError):
        return None
    texts = (status.state, status.message, status.host, status.phase)
    numbers = (status.pid, status.started, status.beat)
    sound = all(isinstance(text, str) for text in texts) and all(isinstance(n, int | float) for n in numbers)
    return status if sound else None
