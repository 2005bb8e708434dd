"""The manifest of a checkpoint: size and digest of every file in it, written last and checked on resume.

`manifest.json`:
    {"step": 100, "files": {"trainer.json": {"bytes": 5120, "xxh3_128": "9f86..."}, "generator.json": ...}}
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalerl.core.files import read_json, sync

MANIFEST, STAMP, KIND = "manifest.json", ".digest", "xxh3_128"
BLOCK = 1 << 26
"""Bytes read at a time. A digest releases the interpreter's lock while it computes and waits for it after a block."""

LARGE = 1 << 24
"""Size in bytes from which a file is digested ahead."""

_thread = ThreadPoolExecutor(1, "digest")
_pending: dict[Path, list[Future[None]]] = {}
_ahead: dict[Path, tuple[os.stat_result, Future[str]]] = {}
_Waiting = queue.SimpleQueue[tuple[Path, Future[str]]]
_STEP = re.compile(r"step_(\d{6,})$")


class Damaged(ValueError):
    """A checkpoint is damaged; the message names the file, what was found and what was expected."""


def digest(path: Path, size: int | None = None) -> str:
    """Return the hexadecimal XXH3 digest (128 bits) of a file, or of its first `size` bytes.

    Reading a file from the page cache and computing XXH3 takes 0.12 s per GB on one core of a Xeon, SHA-256 0.85 s. A
    digest detects damage; it does not protect against changes of both a file and the manifest.

    Args:
        path: The file.
        size: Number of bytes; None: all.
    """
    found, left = new_digest(), path.stat().st_size if size is None else size
    block = memoryview(bytearray(min(BLOCK, left)))
    with path.open("rb", buffering=0) as file:
        while left > 0 and (count := file.readinto(block[:left])):
            found.update(block[:count])
            left -= count
    return str(found.hexdigest())


def new_digest() -> Any:
    """Return the digest of no bytes, with the methods of hashlib."""
    import xxhash  # not part of the installation that only reads runs

    return xxhash.xxh3_128()


def digest_ahead(run: Path) -> None:
    """Start to digest the large files of a run's newest checkpoint in threads, for `check_files`.

    Call it before the imports of a resume: they take seconds and use only one core.
    """
    run = run.absolute()  # another thread may change the directory
    steps = [
        (int(found[1]), path) for path in (run / "checkpoints").glob("step_*") if (found := _STEP.match(path.name))
    ]
    newest = max(steps)[1] if steps else run
    waiting: _Waiting = queue.SimpleQueue()
    with suppress(Damaged, OSError):  # `check_files` reports it
        for name, (size, _) in _listed(newest).items():
            path, future = newest / name, Future[str]()
            if size >= LARGE:
                _ahead[path] = (path.stat(), future)
                waiting.put((path, future))
    for _ in range(min(waiting.qsize(), os.cpu_count() or 1, 4)):
        threading.Thread(target=_work_ahead, args=(waiting,), daemon=True).start()  # no command waits for it to exit


def _work_ahead(waiting: _Waiting) -> None:
    """Digest files until none is left.

    Consumes: paths. Produces: the results in `_ahead`. Waits for: the disk. Unblocked by: the disk.
    """
    with suppress(queue.Empty):
        while True:
            path, future = waiting.get_nowait()
            try:
                future.set_result(digest(path))
            except OSError as error:
                future.set_exception(error)


def _digest_now(path: Path) -> str:
    """Return the digest of a file, from a thread that has begun it unless the file was changed since."""
    before, begun = _ahead.pop(path.absolute(), (None, None))
    now = path.stat()
    if before is None or begun is None or (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
        return digest(path)
    return begun.result()


def stamp(path: Path) -> None:
    """Write the digest of a file next to it for `seal`, so that each process digests the parts that it wrote."""
    path.with_name(path.name + STAMP).write_text(f"{digest(path)}  {path.name}\n", encoding="utf-8")


def stamp_later(path: Path) -> None:
    """Stamp a file in a background thread; `finish_stamps` waits for it."""
    _pending.setdefault(path.parent, []).append(_thread.submit(stamp, path))


def finish_stamps(directory: Path) -> None:
    """Wait until the files that this process wrote to a directory are stamped; errors of the thread are raised here."""
    for under_way in _pending.pop(directory, []):
        under_way.result()


def forget_stamps(directory: Path) -> None:
    """Wait for the stamps of a directory that will be removed, and ignore their errors."""
    wait(_pending.pop(directory, []))


def seal(directory: Path, step: int) -> None:
    """Write the manifest of a checkpoint whose files are all written, and force it to disk; stamps are moved into it.

    Args:
        directory: Directory of the checkpoint.
        step: Step of the checkpoint.
    """
    finish_stamps(directory)
    files = {}
    for path in sorted(directory.rglob("*")):
        if not path.is_file() or path.name.endswith(STAMP) or path.name == MANIFEST:
            continue
        stamped = path.with_name(path.name + STAMP)
        found = stamped.read_text(encoding="utf-8").split()[0] if stamped.exists() else digest(path)
        files[path.relative_to(directory).as_posix()] = {"bytes": path.stat().st_size, KIND: found}
        stamped.unlink(missing_ok=True)
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"step": step, "files": files}, indent=1) + "\n", encoding="utf-8")
    sync(manifest)


def check_files(directory: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Args:
        directory: Directory of the checkpoint.

    Raises:
        Damaged: A file or the manifest is missing, has another size or other contents, or cannot be read.
    """
    for name, (size, expected) in _listed(directory).items():
        _check_file(directory / name, name, size, expected)


def _listed(directory: Path) -> dict[str, tuple[int, str]]:
    """Return size and digest of each file in the manifest of a checkpoint."""
    listed, files = _json(directory / MANIFEST), {}
    try:
        for name, entry in listed["files"].items():
            files[str(name)] = int(entry["bytes"]), str(entry[KIND])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Damaged(f"{MANIFEST} does not list the files of a checkpoint") from None
    return files


def _check_file(path: Path, name: str, size: int, expected: str) -> None:
    if not path.is_file():
        raise Damaged(f"{name} is missing; {size} bytes were written")
    if (found := path.stat().st_size) != size:
        raise Damaged(f"{name} has {found} bytes; {size} were written")
    if (other := _digest_now(path)) != expected:
        raise Damaged(f"{name} has other contents than were written ({KIND} {other[:12]}, expected {expected[:12]})")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path.name} holds {type(found).__name__} and not an object")
    return found
