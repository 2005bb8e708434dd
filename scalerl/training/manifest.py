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
"""Bytes read at a time; hashlib releases the interpreter's lock while it computes."""


_thread = ThreadPoolExecutor(1, "digest")
_pending: dict[Path, list[Future[None]]] = {}


class Damaged(ValueError):
    """A checkpoint is damaged; the message names the file, what was found and what was expected."""


def digest(path: Path, size: int | None = None) -> str:
    """Return the hexadecimal SHA-256 of a file, or of its first `size` bytes.

    Processors have instructions for SHA-256: it runs at 1.4 GB/s on one core, BLAKE2b at 0.8 GB/s.
    """
    found, left = hashlib.sha256(), size
    with path.open("rb") as file:
        while block := file.read(BLOCK if left is None else min(BLOCK, left)):
            found.update(block)
            left = None if left is None else left - len(block)
    return found.hexdigest()


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
        files[path.relative_to(directory).as_posix()] = {"bytes": path.stat().st_size, "sha256": found}
        stamped.unlink(missing_ok=True)
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"format": 1, "step": step, "files": files}, indent=1) + "\n", encoding="utf-8")
    sync(manifest)


def check_files(directory: Path) -> bool:
    """Check every file of a checkpoint against its manifest.

    Args:
        directory: Directory of the checkpoint.

    Returns:
        Whether it has a manifest. Checkpoints of earlier versions have none; then only the format of the files is
        checked.

    Raises:
        Damaged: A file is missing, has another size or other contents, or cannot be read.
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
        Damaged: The file is missing or differs.
    """
    if not path.is_file():
        raise Damaged(f"{name} is missing; {size} bytes were written")
    if (found := path.stat().st_size) != size:
        raise Damaged(f"{name} has {found} bytes; {size} were written")
    if (other := digest(path)) != expected:
        raise Damaged(f"{name} has other contents than were written (SHA-256 {other[:12]}, expected {expected[:12]})")


def _check_form(directory: Path) -> None:
    """Check what can be checked without a manifest: JSON is valid, and tensors are as long as their headers state."""
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
