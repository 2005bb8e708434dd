"""The manifest of a checkpoint: size and SHA-256 of every file in it, written last and checked on resume.

`manifest.json`:
    {"format": 1, "step": 100, "files": {"trainer.json": {"bytes": 5120, "sha256": "9f86..."}, "generator.json": ...}}
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from scalerl.files import sync

MANIFEST, STAMP = "manifest.json", ".sha256"
BLOCK = 1 << 22
"""Bytes read at a time; the digest lets other threads run meanwhile."""


_thread = ThreadPoolExecutor(1, "digest")
_pending: dict[Path, list[Future[None]]] = {}


class Damaged(ValueError):
    """A checkpoint is not what was written; the message names the file, what was found and what was expected."""


def digest(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of a file, in hexadecimal; of its first `size` bytes, if a size is given.

    SHA-256 because processors have instructions for it: 1.4 GB/s on one core, against 0.8 GB/s of BLAKE2b.
    """
    found, left = hashlib.sha256(), size
    with path.open("rb") as file:
        while block := file.read(BLOCK if left is None else min(BLOCK, left)):
            found.update(block)
            left = None if left is None else left - len(block)
    return found.hexdigest()


def stamp(path: Path) -> None:
    """Leave the digest of a file beside it, for `seal`: the process that wrote a part digests it, with the others."""
    path.with_name(path.name + STAMP).write_text(f"{digest(path)}  {path.name}\n", encoding="utf-8")


def stamp_later(path: Path) -> None:
    """Stamp a file in a thread beside what comes next; `finish_stamps` waits for it."""
    _pending.setdefault(path.parent, []).append(_thread.submit(stamp, path))


def finish_stamps(directory: Path) -> None:
    """Wait until the files of a directory are stamped that this process wrote.

    Waits for: the thread that stamps. Unblocked by: it, also where a file cannot be read, which is raised here.
    """
    for under_way in _pending.pop(directory, []):
        under_way.result()


def forget_stamps(directory: Path) -> None:
    """Wait until nothing is stamped any more in a directory that is to be removed."""
    wait(_pending.pop(directory, []))


def seal(directory: Path, step: int) -> None:
    """Write the manifest of a checkpoint whose files are all written, and force it to disk; stamps are taken up in it.

    Args:
        directory: of the checkpoint.
        step: that it is of.
    """
    finish_stamps(directory)
    files = {}
    for path in sorted(directory.rglob("*")):
        if not path.is_file() or path.name.endswith(STAMP) or path.name == MANIFEST:
            continue
        stamped = path.with_name(path.name + STAMP)
        found = stamped.read_text(encoding="utf-8").split()[0] if stamped.exists() else digest(path)
        files[path.relative_to(directory).as_posix()] = {"bytes": path.stat().st_size, "sha256": found}
        stamped.unlink(missing_ok=True)
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"format": 1, "step": step, "files": files}, indent=1) + "\n", encoding="utf-8")
    sync(manifest)


def check_files(directory: Path) -> bool:
    """Check every file of a checkpoint against its manifest.

    Args:
        directory: of the checkpoint.

    Returns:
        Whether it has a manifest. Without one, as earlier versions wrote it, only the form of the files is checked.

    Raises:
        Damaged: a file is missing, has another size or other contents, or cannot be read.
    """
    if not (directory / MANIFEST).exists():
        _check_form(directory)
        return False
    listed = _json(directory / MANIFEST)
    try:
        files = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in listed["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Damaged(f"{MANIFEST} does not list the files of a checkpoint") from None
    for name, (size, expected) in files.items():
        check_file(directory / name, name, size, expected)
    return True


def check_file(path: Path, name: str, size: int, expected: str) -> None:
    """Check the size and the digest of one file.

    Raises:
        Damaged: it is missing, or not what was written.
    """
    if not path.is_file():
        raise Damaged(f"{name} is missing; {size} bytes were written")
    if (found := path.stat().st_size) != size:
        raise Damaged(f"{name} has {found} bytes; {size} were written")
    if (other := digest(path)) != expected:
        raise Damaged(f"{name} has other contents than were written (SHA-256 {other[:12]}, expected {expected[:12]})")


def _check_form(directory: Path) -> None:
    """Check what can be checked without a manifest: JSON is complete, and tensors are as long as their headers say."""
    from safetensors import SafetensorError, safe_open

    if _json(directory / "trainer.json").get("sealed"):
        raise Damaged(f"{MANIFEST} is missing")
    _json(directory / "generator.json")
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise Damaged(f"{path.name} cannot be read ({error})") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path.name} holds {type(found).__name__} and not an object")
    return found
