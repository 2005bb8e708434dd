"""Files and directories: careful reading, locks, whole writes, free names, what an OSError means. All may import it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a place beside `path` to write to, and move what was written to `path` when the block has ended.

    Readers see the old file or the new one, never half, and a write that fails leaves the old one. A link is replaced
    and not followed. Devices and pipes, such as /dev/stdout, are written directly: a move would replace them.

    Args:
        path: of the file to write.

    Yields:
        The path to write to.

    Raises:
        OSError: it cannot be written; what was there before is unchanged.
    """
    if _is_special(path):
        yield path
        return
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if os.path.isfile(path) and not os.access(path, os.W_OK):  # moving a file over it would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # the suffix stays, because writers of pictures choose the format by it
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp{path.suffix[:20]}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename == str(temporary):  # a name that the user has never seen
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def move_into(source: Path, target: Path) -> None:
    """Move all files of a directory into another, each whole; other files there stay. Then remove the source."""
    for path in [path for path in sorted(source.rglob("*")) if path.is_file()]:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)
    shutil.rmtree(source)


def _is_special(path: Path) -> bool:
    """Return whether a path is a device, a pipe, or a link of /dev or /proc to something that is open."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        return True
    try:
        kind = path.stat().st_mode
    except OSError:  # not there yet, or a link to nothing
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that readers see the old one or the new one, never half.

    Raises:
        OSError: it cannot be written; what was there before is unchanged.
    """
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def as_umask(path: Path) -> None:
    """Give a file, or the files of a directory, the permissions that the user's umask gives to new files.

    safetensors 0.8 makes files that their owner alone can read, whatever the umask says.
    """
    mode = 0o666 & ~_umask()
    for file in (path, *path.glob("*")) if path.is_dir() else (path,):
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)


def _umask() -> int:
    """Return the umask; where /proc does not tell it, it can only be read by setting it."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), 8)
    except (OSError, StopIteration):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def safe_name(name: str) -> str:
    """Return a file name for a name that a user, a configuration or a file has chosen: it stays in its directory.

    Letters, digits and `._-+=@,` stay. Others become dashes, dots and dashes at the beginning go, and what is longer
    than 100 characters is cut. A name that loses more than a slash gets a few digits of its hash, so that two stay two.

    Example: safe_name("qwen/v2") == "qwen-v2"; safe_name("../x") == "x-d6b96a"
    """
    slashed = name.replace("/", "-")
    kept = re.sub(r"[^\w.+=@,-]", "-", slashed, flags=re.ASCII).lstrip(".-")[:100]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return kept if kept and kept == slashed else f"{kept or 'unnamed'}-{digest}"


def next_directory(parent: Path, name: str) -> Path:
    """Return parent/name-001, or the first number that is free; the name is made safe by `safe_name`."""
    number, name = 1, safe_name(name)
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
