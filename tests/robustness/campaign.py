"""One rule for every malformed input: the documented result, or one line and a non-zero exit code; and nothing lost."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import runs

SECONDS = 20.0
"""Longest time in which a malformed input must be refused."""
LONGEST = 1200
"""Most characters of a refusal: about fifteen lines of a terminal."""


@dataclass(frozen=True)
class Case:
    """A malformed input, how it is made, and what the command must say.

    Example: `Case("points: a file of NUL bytes", ("fit", "p.jsonl"), write("p.jsonl", b"\\0" * 64), says="line 1")`
    """

    name: str
    """What is wrong, as a reader of a failed test wants to see it: "kind: fault"."""
    words: tuple[str, ...]
    """The command line. It runs in a directory of its own."""
    arrange: Callable[[Path], object] = lambda here: None
    """Makes the input in that directory, which is its argument."""
    says: str | tuple[str, ...] = ()
    """Text that the message must hold: what was got, or where."""
    allowed: tuple[int, ...] = (1, 2)
    """Exit codes allowed. (0,) is a case whose input is odd and right."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that the command gets besides those of the test."""


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    """Return an `arrange` that writes one file."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content

    def arrange(here: Path) -> None:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return arrange


def contents(here: Path) -> dict[str, str]:
    """Return what every file and link under a directory holds: a digest, or where the link leads."""
    found = {}
    for path in sorted(here.rglob("*")):
        name = str(path.relative_to(here))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def check(case: Case, here: Path, monkeypatch: object) -> None:
    """Run a case in the directory `here` and assert the rule."""
    case.arrange(here)
    before = contents(here)
    monkeypatch.chdir(here)  # type: ignore[attr-defined]
    process = runs.start(list(case.words), **case.environment)
    try:
        text, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    code, after = process.returncode, contents(here)
    assert code in case.allowed, f"{case.name}: exit code {code}\n{text[-3000:]}"
    assert "Traceback (most recent call last)" not in text, f"{case.name}\n{text[-3000:]}"
    assert not (lost := {name for name in before if after.get(name) != before[name]}), f"{case.name} changed {lost}"
    if 0 not in case.allowed:
        assert text.strip(), f"{case.name}: it said nothing"
        assert len(text) <= LONGEST, f"{case.name}: {len(text)} characters\n{text[:2000]}"
    for expected in (case.says,) if isinstance(case.says, str) else case.says:
        assert expected in text, f"{case.name}: no {expected!r} in\n{text[-3000:]}"
