"""The manifest of a checkpoint or a kept model: size and digest of every file in it, written last, checked on reading.

`manifest.json`:
    {"step": 100, "files": {"trainer.json": {"bytes": 5120, "xxh3_128": "9f86..."}, "generator.json": ...}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scalerl.core.errors import UserError
from scalerl.core.files import read_json, sync, write_whole

MANIFEST, STAMP, KIND = "manifest.json", ".digest", "xxh3_128"
BLOCK_BYTES = 1 << 26
"""Bytes read at a time."""


class Damaged(UserError):
    """A checkpoint is damaged; the message names the file, what was found and what was expected."""


def new_digest() -> Any:
    """Return an empty XXH3 digest of 128 bits, with the methods of those of hashlib."""
    import xxhash  # not part of the installation that only reads runs

    return xxhash.xxh3_128()


def digest(path: Path, size: int | None = None) -> str:
    """Return the hexadecimal XXH3 digest of a file, or of its first `size` bytes.

    Reading a file from the page cache and computing XXH3 takes 0.12 s per GB on one core of a Xeon, SHA-256 0.85 s. A
    digest detects damage; it does not protect against changes of both a file and the manifest.
    """
    running = new_digest()
    add_to_digest(running, path, 0, path.stat().st_size if size is None else size)
    return str(running.hexdigest())


def add_to_digest(running: Any, path: Path, start: int, end: int) -> None:
    """Add the bytes of a file from `start` to `end` to a digest, `BLOCK_BYTES` at a time."""
    remaining = end - start
    block = memoryview(bytearray(max(0, min(BLOCK_BYTES, remaining))))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while remaining > 0 and (count := file.readinto(block[:remaining])):
            running.update(block[:count])
            remaining -= count


def stamp(path: Path) -> None:
    """Write the digest of a file next to it for `seal`, so that each process digests the parts that it wrote."""
    path.with_name(path.name + STAMP).write_text(f"{digest(path)}  {path.name}\n", encoding="utf-8")


def seal(directory: Path, step: int) -> None:
    """Write the manifest of a checkpoint whose files are all written; stamps are moved into it. It is on disk after."""
    files = {}
    for path in sorted(directory.rglob("*")):
        of_seal = path.name == MANIFEST or path.name.startswith(f".{MANIFEST}") or path.name.endswith(STAMP)
        if of_seal or not path.is_file():
            continue
        stamped = path.with_name(path.name + STAMP)
        content = stamped.read_text(encoding="utf-8").split()[0] if stamped.exists() else digest(path)
        files[path.relative_to(directory).as_posix()] = {"bytes": path.stat().st_size, KIND: content}
        stamped.unlink(missing_ok=True)
    manifest = directory / MANIFEST
    write_whole(manifest, json.dumps({"step": step, "files": files}, indent=1) + "\n")
    sync(manifest)


def check_files(directory: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises:
        Damaged: The manifest or a file is missing, has another size or other contents, or cannot be read.
    """
    try:
        files: dict[str, Any] = read_json(directory / MANIFEST)["files"]
        listed = {name: (int(entry["bytes"]), str(entry[KIND])) for name, entry in files.items()}
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{MANIFEST} cannot be read ({error})") from None
    except (KeyError, TypeError, AttributeError):
        raise Damaged(f"{MANIFEST} does not list the files of a checkpoint") from None
    for name, (size, expected) in listed.items():
        path = directory / name
        if not path.is_file():
            raise Damaged(f"{name} is missing; {size} bytes were written")
        if (size_here := path.stat().st_size) != size:
            raise Damaged(f"{name} has {size_here} bytes; {size} were written")
        if (other := digest(path)) != expected:
            raise Damaged(
                f"{name} has other contents than were written ({KIND} {other[:12]}, expected {expected[:12]})"
            )
