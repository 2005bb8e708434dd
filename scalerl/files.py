"""Files and directories: careful reading, locks, whole writes, free names, what an OSError means. All may import it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
         (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))  # fmt: skip

ADVICE = {
    errno.ENOENT: "no such file or directory; check the path",
    errno.EACCES: "this user may not use it; give it permission, or choose another place",
    errno.EPERM: "the system does not permit it; choose another place",
    errno.EISDIR: "it is a directory; give a file",
    errno.ENOTDIR: "a part of this path is a file, where a directory must be; choose another path",
    errno.EEXIST: "it exists already; choose another path",
    errno.ENOTEMPTY: "the directory is not empty; choose another path",
    errno.ENAMETOOLONG: "a name in this path is too long; allowed: at most 255 bytes a name",
    errno.ELOOP: "a link in this path leads back to itself; remove the link or choose another path",
    errno.EROFS: "this place is read-only; choose another place",
    errno.ENOSPC: "no space left on the disk; free some, then `scalerl resume` the run",
    errno.EDQUOT: "the quota of the disk is used up; free some, then `scalerl resume` the run",
    errno.EFBIG: "the file has reached the size that the system allows; raise the limit (ulimit -f)",
    errno.EIO: "the disk reports an error of its own; check the disk",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
}
"""What a user can do about an error of the system, by its number."""


def trouble(error: OSError) -> str:
    """Return one sentence: which path, what is wrong with it, what to do.

    Example: trouble(error) == "runs/a: this place is read-only; choose another place"
    """
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    shown = path if len(path) <= 120 else f"{path[:100]}... ({len(path)} characters)"
    what = ADVICE.get(error.errno or 0, error.strerror or str(error))
    return f"{shown}: {what}" if shown else what


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, or is no file: a pipe may block, a device may never end. `trouble` has words.
    """
    check_file(path)
    return path.read_bytes()


def parse_json(text: str) -> Any:
    """Return a JSON document; a key may stand only once in an object, where json keeps the last value in silence.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has an integer of thousands of digits; with the place.
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        at = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise ValueError(f"{error.msg} at {at}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


def check_file(path: Path) -> None:
    """Refuse a path that is not a file with an end.

    Raises:
        OSError: as `read_bytes`.
    """
    try:
        found = os.stat(path)
    except ValueError:
        raise OSError(errno.EINVAL, "it holds a NUL character, which no path can; take it out", repr(path)) from None
    for is_kind, name in KINDS:
        if is_kind(found.st_mode):
            number = errno.EISDIR if name == "a directory" else errno.EINVAL
            raise OSError(number, f"it is {name}; give a file (write the content of a pipe to one first)", str(path))
    if not found.st_size:  # reading /proc/kmsg would wait forever; a file of no bytes has nothing to read
        raise OSError(errno.ENODATA, "the file is empty; check what should have written it", str(path))


def take_hold(directory: Path) -> int | None:
    """Return the lock on a directory that one process may have at a time, and loses with its end; None if it is taken.

    Closing the number that is returned gives it up.
    """
    lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def cache_root() -> Path:
    """Return where models that are made once are kept: $SCALERL_CACHE, or ~/.cache/scalerl."""
    return Path(os.environ.get("SCALERL_CACHE") or Path.home() / ".cache" / "scalerl")


def write_whole(path: Path, text: str) -> None:
    """Write a small text file so that readers see the old one or the new one, never half."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def next_directory(parent: Path, name: str) -> Path:
    """Return parent/name-001, or the first number that is free."""
    number = 1
    while (path := parent / f"{name}-{number:03d}").exists():
        number += 1
    return path


def sync(path: Path) -> None:
    """Force a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
