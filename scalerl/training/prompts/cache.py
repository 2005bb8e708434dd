"""Tokenized prompts of files, kept in the user's cache directory, so that a later start does not tokenize them again.

The key has everything that prompts depend on: the content of the data, the settings of the task, the tokenizer, the
versions of the packages and this code. A kept file is never out of date, and without one, or if it cannot be used,
prompts are read as before. Rows of the hub, whose content is not a file here, are not kept.

A file is a line of JSON with key, number of prompts and notes, then blocks: sizes and checksum, the texts of
`BLOCK_PROMPTS` prompts as JSON, and their tokens as 32-bit integers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from scalerl.core.files import atomic_file, cache_root, open_regular
from scalerl.core.manifest import digest
from scalerl.core.types import Prompt
from scalerl.training.config.data import PromptFile
from scalerl.training.prompts.files import on_hub

CACHE_FORMAT = "scalerl prompts 1"

LEAST_PROMPTS = 5000
"""Number of prompts from which on they are kept; fewer are read in half a second."""

OF_ONE_PATH = 4
"""Most files that are kept for one path: tokenizers and settings that take turns."""

CACHE_BYTES = 10 << 30
"""Most bytes that are kept in all; the files that were used least recently go first."""

FREE_DISK = 10
"""Free disk, in sizes of the data, below which nothing is kept."""

BLOCK_PROMPTS = 4096
"""Prompts of a block."""

ABANDONED_S = 3600.0
"""Age of an unfinished file from which on it is removed: its process was killed."""

_SIZES = struct.Struct("<QQQ")
"""Bytes of the texts, bytes of the tokens, checksum of both."""

_PLAIN = frozenset((str, int, float, bool, type(None)))


class PromptCache:
    """The kept prompts of one task, if there are any."""

    def __init__(self, task: PromptFile, tokenizer: Any) -> None:
        """Compute the key, which reads the data once: a second for 8 GB.

        Args:
            task: The task, whose path is a file or directory here.
            tokenizer: A transformers tokenizer.
        """
        self._curve, self._path = task.curve, Path(task.path)
        self._place, self._key, self._bytes = Path(), "", 0
        self._settings = [task.model_dump(mode="json"), _tokenizer_digest(tokenizer)]
        with suppress(OSError, RuntimeError, ValueError):  # RuntimeError: no home directory
            if all(self._settings) and not on_hub(task):
                self._bytes = sum(file.stat().st_size for file in _files(self._path))
                of_path = _short_digest(str(self._path.resolve()))
                self._place = cache_root() / "prompts" / f"{of_path}-{_short_digest(self._settings)}.prompts"
                self._key = self._computed_key()

    def _computed_key(self) -> str:
        data = [(str(file.relative_to(self._path)), digest(file)) for file in _files(self._path)]
        return hashlib.sha256(
            json.dumps([CACHE_FORMAT, self._settings, data, _versions(), _code()]).encode()
        ).hexdigest()

    def read(self) -> tuple[list[Prompt], list[str]] | None:
        """Return the prompts and the notes on them; None if they are not kept or the file is damaged."""
        if not self._key:
            return None
        with suppress(OSError, ValueError, KeyError, TypeError, struct.error), open_regular(self._place) as file:
            header = json.loads(file.readline())
            if header["key"] != self._key:
                return None
            prompts = list(_read_blocks(file, self._curve))
            if len(prompts) != header["prompts"]:
                return None
            with suppress(OSError):
                os.utime(self._place)  # it was used now
            return prompts, header["notes"]
        return None

    def write(self, prompts: Sequence[Prompt], notes: Sequence[str]) -> None:
        """Keep prompts, if the disk has room, every value is one of JSON, and the data did not change meanwhile."""
        if not self._key or len(prompts) < LEAST_PROMPTS:
            return
        # ValueError: half of a surrogate pair, or an integer of too many digits
        with suppress(OSError, ValueError, OverflowError):
            self._place.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(self._place.parent).free < FREE_DISK * self._bytes:
                return
            with atomic_file(self._place) as temporary:
                with temporary.open("wb") as file:
                    header = {"format": CACHE_FORMAT, "key": self._key, "prompts": len(prompts), "notes": list(notes)}
                    file.write(json.dumps(header).encode() + b"\n")
                    for start in range(0, len(prompts), BLOCK_PROMPTS):
                        file.write(_block(prompts[start : start + BLOCK_PROMPTS]))
                if self._computed_key() != self._key:
                    raise ValueError("the data changed while it was read")
            _sweep(self._place)


def _block(prompts: Sequence[Prompt]) -> bytes:
    """Return a block; ValueError: a value would not be the same after JSON."""
    rows = []
    for prompt in prompts:
        if not _is_json(prompt.columns):
            raise ValueError(f"{prompt.where}: not plain JSON")
        text = None if prompt.text == prompt.columns.get("prompt") else prompt.text
        rows.append([prompt.id, text, prompt.answer, prompt.columns, prompt.where, prompt.content, prompt.question])
    lengths = np.fromiter((len(prompt.tokens) for prompt in prompts), np.uint32, len(prompts))
    tokens = np.fromiter((token for prompt in prompts for token in prompt.tokens), np.uint32, int(lengths.sum()))
    texts, numbers = json.dumps(rows, ensure_ascii=False).encode(), lengths.tobytes() + tokens.tobytes()
    return _SIZES.pack(len(texts), len(numbers), xxhash.xxh3_64_intdigest(texts + numbers)) + texts + numbers


def _read_blocks(file: BinaryIO, task: str) -> Iterator[Prompt]:
    """Yield the prompts of the blocks from here to the end of a file; raises ValueError if it is damaged."""
    unread = os.fstat(file.fileno()).st_size - file.tell()
    shared: dict[int, int] = {}  # one object for each token of the vocabulary
    while unread:
        of_texts, of_numbers, checksum = _SIZES.unpack(file.read(_SIZES.size))
        unread -= _SIZES.size + of_texts + of_numbers
        if unread < 0:
            raise ValueError("the file ends in a block")
        content = file.read(of_texts + of_numbers)
        if xxhash.xxh3_64_intdigest(content) != checksum:
            raise ValueError("the block has another checksum")
        rows = json.loads(content[:of_texts])
        lengths = np.frombuffer(content, np.uint32, len(rows), of_texts)
        ends = lengths.cumsum().tolist()
        tokens = np.frombuffer(content, np.uint32, ends[-1], of_texts + lengths.nbytes).tolist()
        tokens, start = list(map(shared.setdefault, tokens, tokens)), 0
        for (id, text, answer, columns, source, of_content, question), end in zip(rows, ends, strict=True):
            prompt_text = columns["prompt"] if text is None else text
            yield Prompt(id, prompt_text, tuple(tokens[start:end]), answer, task, columns, source, of_content, question)
            start = end


def _is_json(value: Any) -> bool:
    """Return whether a value has only the types that JSON gives back."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_json, value.values()))
    return kind in _PLAIN or (kind is list and all(map(_is_json, value)))


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of what a tokenizer does; empty for one without a description, which is written in Python."""
    backend, kind = getattr(tokenizer, "backend_tokenizer", None), type(tokenizer)
    if backend is None or not hasattr(backend, "to_str"):
        return ""
    parts = [f"{kind.__module__}.{kind.__qualname__}", tokenizer.chat_template, tokenizer.special_tokens_map]
    return _short_digest([backend.to_str(), *map(str, parts)])


def _short_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@cache
def _versions() -> list[str]:
    versions = []
    for name in ("transformers", "tokenizers", "jinja2", "pyarrow", "numpy"):
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return versions


@cache
def _code() -> list[str]:
    """Return what changes if the code that makes prompts does."""
    package = Path(__file__).parents[2]
    parts = ("core", *(f"training/{name}" for name in ("config", "models", "prompts", "rewards")))
    files = sorted(file for part in parts for file in package.glob(f"{part}/*.py"))
    return [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]


def _sweep(written: Path) -> None:
    """Remove files beyond `OF_ONE_PATH` and `CACHE_BYTES`, and what killed processes left."""
    for leftover in written.parent.glob(".*.tmp*"):
        with suppress(OSError):
            if written.stat().st_mtime - leftover.stat().st_mtime > ABANDONED_S:
                leftover.unlink()
    cached_files = sorted(written.parent.glob("*.prompts"), key=lambda file: file.stat().st_mtime, reverse=True)
    of_path, total = written.name.partition("-")[0], 0
    for place, file in enumerate(cached_files):
        total += file.stat().st_size
        others = sum(other.name.startswith(of_path) for other in cached_files[:place])
        if total > CACHE_BYTES or (file.name.startswith(of_path) and others >= OF_ONE_PATH):
            file.unlink(missing_ok=True)
