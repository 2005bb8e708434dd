"""The rule for malformed inputs: the documented result, or a message and a non-zero exit code, and no lost file."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 20.0
"""Time limit in seconds for refusing a malformed input."""
LONGEST = 1200
"""Largest number of characters of a refusal, about fifteen lines of a terminal."""


@dataclass(frozen=True)
class Case:
    """A malformed input, its construction, and the expected message.

    Example: `Case("points: a file of NUL bytes", ("fit", "p.jsonl"), write("p.jsonl", b"\\0" * 64), expect="line 1")`
    """

    name: str
    """Description for the reader of a failed test: "kind: fault"."""
    words: tuple[str, ...]
    """The command line. It runs in a separate directory."""
    arrange: Callable[[Path], object] = lambda here: None
    """Function that creates the input in that directory."""
    expect: str | tuple[str, ...] = ()
    """Text that the message must contain."""
    allowed: tuple[int, ...] = (1, 2)
    """Allowed exit codes. (0,) is for unusual but valid input."""


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Return an `arrange` that writes one file."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content

    def arrange(here: Path) -> None:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return arrange


def contents(here: Path) -> dict[str, str]:
    """Return the content of all files and links in a directory: a digest, or the target of the link."""
    files = {}
    for path in sorted(here.rglob("*")):
        name = str(path.relative_to(here))
        if path.is_symlink():
            files[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return files


def check_here(case: Case, here: Path, monkeypatch: Any, run: Callable[[Sequence[str]], int] | None = None) -> None:
    """Run a case in this process and in the directory `here`, and assert the rule.

    Args:
        case: A case whose command ends before it starts a process.
        here: An empty directory.
        monkeypatch: Pytest's fixture.
        run: Function from a command line to an exit code; None: the command line of scalerl.
    """
    from scalerl.cli.main import main

    case.arrange(here)
    before = contents(here)
    monkeypatch.chdir(here)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), within(SECONDS, case.name):
        try:
            code = (run or main)([*case.words])
        except SystemExit as error:  # argparse
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except Exception:  # the command would print a traceback
            code = 1
            traceback.print_exc(file=output)
    _assert_rule(case, code, output.getvalue(), before, contents(here))


@contextlib.contextmanager
def within(seconds: float, name: str) -> Iterator[None]:
    """Raise KeyboardInterrupt after a time limit, because handlers of OSError or Exception do not catch it."""

    def late(number: int, frame: object) -> None:
        raise KeyboardInterrupt(f"{name}: not refused within {seconds:g} s")

    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def _assert_rule(case: Case, code: int, text: str, before: dict[str, str], after: dict[str, str]) -> None:
    assert code in case.allowed, f"{case.name}: exit code {code}\n{text[-3000:]}"
    assert "Traceback (most recent call last)" not in text, f"{case.name}\n{text[-3000:]}"
    assert not (lost := {name for name in before if after.get(name) != before[name]}), f"{case.name} changed {lost}"
    if 0 not in case.allowed:
        assert text.strip(), f"{case.name}: no message"
        assert len(text) <= LONGEST, f"{case.name}: {len(text)} characters\n{text[:2000]}"
    for expected in (case.expect,) if isinstance(case.expect, str) else case.expect:
        assert expected in text, f"{case.name}: no {expected!r} in\n{text[-3000:]}"
