"""File helpers: checked reads, atomic writes, locks, unused names, and advice for an OSError."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

ADVICE = {
    errno.ENOENT: "no such file or directory; check the path",
    errno.EACCES: "permission denied; change the permissions, or choose another path",
    errno.EISDIR: "it is a directory; give a file",
    errno.ENOTDIR: "a part of this path is a file, not a directory; choose another path",
    errno.ENAMETOOLONG: "a name in this path is too long; allowed: at most 255 bytes per name",
    errno.EROFS: "the file system is read-only; choose another path",
    errno.ENOSPC: "no space left on the disk; free some, then `scalerl resume` the run",
    errno.EDQUOT: "the disk quota is used up; free some, then `scalerl resume` the run",
    errno.EFBIG: "the file has reached the size that the system allows; raise the limit (ulimit -f)",
    errno.ELOOP: "it is a link, or leads through too many; put a file in its place",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    errno.ENXIO: "it is a pipe that no program reads, or a socket; remove it, or choose another path",
}
"""Advice for the user, by errno, where the text of the system has none."""


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk; they may come without a path."""

DEEPEST = 100
"""Largest depth of a JSON document. Python can copy, print and write such a value within its limit of recursion."""

DIGITS = 100
"""Largest number of digits of an integer in JSON. A product of three is a finite float."""


LARGE_FILE_BYTES = 100e6
"""Bytes of a file from which its memory is checked before it is read."""

LARGEST_JSON = 64 << 20
"""Bytes of the largest JSON document of a file; the index of a model of 1,000 shards has a tenth."""


def trouble(error: OSError) -> str:
    """Describe an error in one sentence: the path, the problem and what to do.

    Example: trouble(error) == "runs/a: the file system is read-only; choose another path"
    """
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    shown = path if len(path) <= 120 else f"{path[:100]}... ({len(path)} characters)"
    what = ADVICE.get(error.errno or 0, error.strerror or str(error))
    return f"{shown}: {what}" if shown else what


def system_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that a full disk or a lack of memory may have, for an except clause."""
    safetensors = sys.modules.get("safetensors")
    types = (OSError, MemoryError, ImportError, RuntimeError)
    return (*types, safetensors.SafetensorError) if safetensors else types


def system_error(error: BaseException) -> OSError | None:
    """Return the error of the system behind an exception; None if there is none.

    safetensors raises its own type for a full disk and keeps the number only in the text.

    Example: SafetensorError("I/O error: No space left on device (os error 28)") gives OSError(28, ...).
    """
    if isinstance(error, OSError):
        return error
    number = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return the content of a file of at most `most` bytes.

    Raises:
        OSError: The file cannot be read, has more bytes, or the path is not a regular file (a pipe may block, a device
            may never end).
    """
    with open_regular(path) as file:
        if most is not None and (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EOVERFLOW, f"got {size:,} bytes; allowed: at most {most:,}", str(path))
        return file.read()


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading in binary.

    Raises:
        OSError: As for `read_bytes`, or the file is empty.
    """
    check_file(path)
    return path.open("rb")


def lack_of_room(path: Path, times: float) -> str:
    """Return why a file cannot be read, and what to give instead; empty if there is enough memory.

    Without this check, the kernel would kill the process without a word.

    Args:
        path: The file.
        times: Memory that reading it takes, in multiples of its size.
    """
    size = os.path.getsize(path)
    if size < LARGE_FILE_BYTES:
        return ""
    from scalerl.core.machine import host_memory  # a fit of a small file does without

    if times * size <= (memory := host_memory()).free:
        return ""
    part = min((n for n in (10, 100, 1000) if times * size / n <= memory.free / 2), default=10_000)
    return (
        f"{path} has {size / 1e9:.1f} GB; reading it would take about {times * size / 1e9:.1f} GB of memory, and "
        f"{memory.free / 1e9:.1f} GB are free ({memory.limit}); give a part of its rows, such as every {part}th: "
        f"`awk 'NR % {part} == 1' {path.name} > part{path.suffix}`"
    )


def parse_json(text: str | bytes, *, finite: bool = False, long_integers: bool = False) -> Any:
    """Parse a JSON document from elsewhere.

    Args:
        text: The document; bytes are UTF-8.
        finite: Return None for NaN and infinite numbers, as this package writes them, and not the number.
        long_integers: Allow as many digits as Python prints, 4,300, for integers that are never converted.

    Raises:
        ValueError: The text is not JSON, is nested more than `DEEPEST` deep, has an integer of more than `DIGITS`
            digits, or has a duplicate key, of which `json` would keep the last. The message of a syntax error contains
            the position.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        value = (_FINITE if finite else _LONG if long_integers else _ANY).decode(text)
    except json.JSONDecodeError as error:
        at = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise ValueError(f"{error.msg} at {at}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.count("[") + text.count("{") > DEEPEST and _deeper(value):
        raise ValueError("it is nested too deeply")
    return value


def _deeper(value: Any) -> bool:
    """Return whether a value is nested more than `DEEPEST` deep."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:60]!r} occurs twice in one object")
    return values


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"an integer of {len(text)} digits; allowed: at most {DIGITS}, or text")
    return int(text)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_ANY = json.JSONDecoder(object_pairs_hook=_once, parse_int=_integer)
_LONG = json.JSONDecoder(object_pairs_hook=_once)
_FINITE = json.JSONDecoder(object_pairs_hook=_once, parse_int=_integer, parse_float=_finite, parse_constant=_finite)


def read_json(path: Path, most: int | None = LARGEST_JSON) -> Any:
    """Read a JSON file of at most `most` bytes.

    Raises:
        OSError: As for `read_bytes`.
        ValueError: As for `parse_json`, or the file is not UTF-8 text.
    """
    return parse_json(read_bytes(path, most))


def check_file(path: Path) -> os.stat_result:
    """Refuse a path that is not a regular, non-empty file; return its status.

    Raises:
        OSError: As for `read_bytes`, or the file is empty.
    """
    try:
        status = os.stat(path)
    except ValueError:
        raise OSError(errno.EINVAL, "a path must not contain a NUL character; remove it", repr(path)) from None
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file; write its content to one first", str(path))
    if not status.st_size:  # reading files such as /proc/kmsg, whose size is 0, would block forever
        raise OSError(errno.ENODATA, "the file is empty; check the program that wrote it", str(path))
    return status


def take_hold(directory: Path) -> int | None:
    """Lock a directory for this process and return the lock's file descriptor; return None if it is already locked.

    The lock is released when the descriptor is closed or the process ends.

    Raises:
        OSError: The lock cannot be opened; it may be a link.
    """
    lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def cache_root() -> Path:
    """Return the cache directory for generated models: $SCALERL_CACHE, or ~/.cache/scalerl."""
    return Path(os.environ.get("SCALERL_CACHE") or Path.home() / ".cache" / "scalerl")


def is_own(path: Path) -> bool:
    """Return whether this user or root wrote a file: in a cache that users share, code of others must not run."""
    status = os.stat(path)
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & stat.S_IWOTH


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path next to `path`, and move it to `path` when the block ends.

    Readers see the old file or the new one, never a partial one, and a failed write leaves the old file. A link is
    replaced, not followed. Devices and pipes such as /dev/stdout are written directly, because a move would replace
    them; a pipe must have a reader, because writing to it would wait for one.

    Yields:
        The path to write to.

    Raises:
        OSError: The file cannot be written; the previous file is unchanged.
    """
    if _is_special(path):
        if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        yield path
        return
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if os.path.isfile(path) and not os.access(path, os.W_OK):  # a move ignores the file's permissions
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # the suffix is kept because image writers choose the format by it
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp{path.suffix[:20]}")
    try:
        temporary.unlink(missing_ok=True)  # it may be a link, which a write would follow
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename == str(temporary):  # report the user's path, not the temporary one
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def move_into(source: Path, target: Path) -> None:
    """Move all files of a directory into another, each atomically, and remove the source; other files are kept."""
    for path in [path for path in sorted(source.rglob("*")) if path.is_file()]:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)
    shutil.rmtree(source)


def _is_special(path: Path) -> bool:
    """Return whether a path is a device or a pipe, and not a link to one, or an entry of /dev or /proc."""
    place = os.path.abspath(path)
    if place.startswith(("/dev/", "/proc/")) and not place.startswith("/dev/shm/"):
        return True
    return os.path.exists(path) and not os.path.islink(path) and not os.path.isfile(path) and not os.path.isdir(path)


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically.

    Raises:
        OSError: The file cannot be written; the previous file is unchanged.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def as_umask(path: Path) -> None:
    """Set the permissions of a file, or of the files in a directory, to those of new files under the user's umask.

    safetensors 0.8 ignores the umask and creates files that only their owner can read.
    """
    mode = 0o666 & ~_umask()
    for file in (path, *path.glob("*")) if path.is_dir() else (path,):
        if file.is_file() and not file.is_symlink():
            file.chmod(mode)


def _umask() -> int:
    """Return the umask from /proc; without /proc it can only be read by setting it."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), 8)
    except (OSError, StopIteration):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def safe_name(name: str) -> str:
    """Turn any name into a file name that stays in its directory.

    Letters, digits and `._-+=@,` are kept; other characters become dashes. Leading dots and dashes are removed, and the
    name is cut at 100 characters. If more than slashes changed, digits of a hash keep different names different.

    Example: safe_name("qwen/v2") == "qwen-v2"; safe_name("../x") == "x-d6b96a"
    """
    slashed = name.replace("/", "-")
    plain_name = re.sub(r"[^\w.+=@,-]", "-", slashed, flags=re.ASCII).lstrip(".-")[:100]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return plain_name if plain_name and plain_name == slashed else f"{plain_name or 'unnamed'}-{digest}"


def next_directory(parent: Path, name: str) -> Path:
    """Make the directory parent/name-NNN, with the first unused number, and return it; `safe_name` makes a safe name.

    It is made at once, because commands that start together must get different numbers.
    """
    parent.mkdir(parents=True, exist_ok=True)
    number, name = 1, safe_name(name)
    while True:
        path = parent / f"{name}-{number:03d}"
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1


@contextmanager
def output_directory(directory: str | Path | None, parent: Path, name: str) -> Iterator[Path]:
    """Yield the given directory, or a new one that `next_directory` makes, removed again if it is still empty."""
    if directory:
        yield Path(directory)
        return
    new = not parent.exists()
    path = next_directory(parent, name)
    try:
        yield path
    finally:
        with suppress(OSError):  # it has files: they are the output
            path.rmdir()
            if new:
                parent.rmdir()


def sync(path: Path) -> None:
    """Force a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
