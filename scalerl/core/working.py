"""Shows that a command works: a line with a clock on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

FIRST_S, EVERY_S = 2.0, 30.0
"""Seconds until the line appears on a terminal, and seconds of silence after which a line is printed elsewhere."""

REDRAW_S = 0.5
"""Seconds between two drawings of the line on a terminal."""

CLEAR = "\r\x1b[2K"
"""Returns to the start of a line of a terminal and clears it."""


class Working:
    """Context manager that shows what is done and for how long, from a thread.

    A computation in a C library, such as torch, lets the thread run.

    Example: `with Working("reading prompts") as working: working.on("aime-24: sampling", 120, 512)`
    """

    def __init__(self, what: str, tell: Callable[[str], None] | None = None, *, draws: bool | None = None) -> None:
        """Prepare a sign of life on standard error, so that output stays as programs read it.

        Args:
            what: What is done first.
            tell: Function that prints a line; None: print it on standard error.
            draws: Whether to draw the line, in place of printing it; None: if standard error is a terminal.
        """
        self._stream = sys.stderr
        usable = self._stream is not None and not self._stream.closed
        self._draws = draws if draws is not None else usable and self._stream.isatty()
        self._tell = tell or (lambda text: print(text, file=self._stream, flush=True))
        self._what, self._done, self._total = what, 0, 0
        self._since = self._last_output = time.monotonic()
        self._drawn, self._lock = False, threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="working", daemon=True)
        self._output: Any = None

    def __enter__(self) -> Working:
        if self._draws:
            self._output, sys.stdout = sys.stdout, _Clearing(sys.stdout, self.clear)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self.clear()
        if self._output is not None:
            sys.stdout = self._output

    def on(self, what: str, done: int = 0, total: int = 0) -> None:
        """Set what is done now, and how much of it; a new activity restarts the clock."""
        if what != self._what:
            self._since = time.monotonic()
        self._what, self._done, self._total = what, done, total

    def note_output(self) -> None:
        """Note that something was printed, which is a sign of life, too."""
        self._last_output = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the current activity began."""
        return time.monotonic() - self._since

    @property
    def line(self) -> str:
        """The line, such as "aime-24: sampling, 120 of 512, 45 s"."""
        amount = f", {self._done:,} of {self._total:,}" if self._total else ""
        return f"{self._what}{amount}, {elapsed_text(self.seconds)}"

    def clear(self) -> None:
        """Remove the line from the terminal, before something else is printed."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # a closed stream
            if self._drawn:
                self._stream.write(CLEAR)
                self._stream.flush()
            self._drawn = False

    def _show(self) -> None:
        """Show the line at intervals, until the end."""
        start = time.monotonic()
        while not self._ended.wait(REDRAW_S):
            now = time.monotonic()
            if self._draws and now - start >= FIRST_S:
                self._draw()
            elif not self._draws and now - self._last_output >= EVERY_S:
                self._last_output = now
                with contextlib.suppress(OSError, ValueError):
                    self._tell(self.line)

    def _draw(self) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{CLEAR}{self.line[: shutil.get_terminal_size().columns - 1]}")
            self._stream.flush()
            self._drawn = True


class _Clearing:
    """Standard output that removes the line of a Working before it writes."""

    def __init__(self, stream: Any, clear: Callable[[], None]) -> None:
        self._stream, self._clear = stream, clear

    def write(self, text: str) -> int:
        self._clear()
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def elapsed_text(seconds: float) -> str:
    """Return a duration as text: "45 s", "2 min 5 s", "1 h 3 min"."""
    whole_s = int(seconds)
    if whole_s < 60:
        return f"{whole_s} s"
    return (
        f"{whole_s // 60} min {whole_s % 60} s" if whole_s < 3600 else f"{whole_s // 3600} h {whole_s % 3600 // 60} min"
    )
