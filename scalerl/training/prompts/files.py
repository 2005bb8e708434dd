"""Reading of JSONL, JSON and Parquet files and of hub data sets, row by row. Errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from scalerl.core.errors import ConfigError, nearest
from scalerl.core.files import check_file, parse_json, trouble
from scalerl.training.config.data import PromptFile, TaskData
from scalerl.training.config.named import NAMED_SETS

DATASET_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(?<!\.csv|\.tsv|\.txt|\.zip|\.bz2)(?<!\.gz|\.xz)")
"""NAME or OWNER/NAME of a data set on the hub, and no name of a file."""

BOM = b"\xef\xbb\xbf"


MOST_LINE_BYTES = 64 << 20
"""Longest line of a JSONL file, bytes."""

MOST_EMPTY = 1 << 20
"""Largest number of bytes of empty lines in a row. A small compressed file can hold a billion of them."""


class FileRow(NamedTuple):
    """One row and its position in the file.

    Example: FileRow(source="prompts.jsonl line 3", values={"prompt": "What is 1+1?", "answer": "2"})
    """

    source: str
    values: dict[str, Any]


FileReader = Callable[[Path], Iterator[FileRow]]
"""A reader of files: (file, largest length of a line in MiB) -> rows."""


def read_objects(data: PromptFile) -> Iterator[FileRow]:
    """Yield the rows of a file or of a data set on the hub, in their order.

    Raises:
        ConfigError: The file or data set does not exist, has an unknown format, or has a row that
            cannot be read. The message has file and line.
    """
    path = Path(data.path)
    if path.is_dir():
        return _directory(path, data)
    if not on_hub(data):
        return _on_disk(path, _form(path) or _jsonl)
    if data.set and NAMED_SETS[data.set].files and data.path == NAMED_SETS[data.set].path:
        return _hub_files(data, NAMED_SETS[data.set].files)
    return _hub(data)


def check_prompt_files(tasks: Iterable[TaskData]) -> None:
    """Check that the prompt files of a run exist, without reading them; a data set on the hub is not looked up.

    Raises:
        ConfigError: One does not exist, is empty, or is no regular file; the message has its path.
    """
    for task in tasks:
        hub = isinstance(task, PromptFile) and on_hub(task) and DATASET_NAME.fullmatch(task.path)
        if not isinstance(task, PromptFile) or hub:
            continue
        path = Path(task.path)
        if not path.is_dir():
            _check(path)
        elif not any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
            _shards(path)


def _directory(path: Path, data: PromptFile) -> Iterator[FileRow]:
    """Yield the rows of a data set that `datasets.save_to_disk` wrote, or of the shards in a directory."""
    if (path / "dataset_dict.json").is_file():
        if not (path / data.split).is_dir():
            splits = ", ".join(sorted(entry.name for entry in path.iterdir() if entry.is_dir()))
            raise ConfigError(f"data.split: got {data.split!r}; allowed for {path}: {splits}")
        path = path / data.split
    if (path / "state.json").is_file():
        listed = _parse((path / "state.json").read_bytes(), str(path / "state.json")).get("_data_files") or []
        for name in (str(entry.get("filename")) for entry in listed):
            yield from _on_disk(path / name, _arrow)
        return
    for shard in _shards(path):
        yield from _on_disk(shard, _form(shard) or _jsonl)


def _shards(path: Path) -> list[Path]:
    """Return the files with rows in a directory, in the order of their paths; none is an error."""
    shards = sorted(
        file for file in path.rglob("*") if file.is_file() and _form(file) and not file.name.startswith((".", "_"))
    )
    if not shards:
        raise ConfigError(
            f"data.path: {path} is a directory without rows; allowed: a file, a directory with JSONL, JSON or Parquet "
            "shards, or one that save_to_disk wrote"
        )
    return shards


def _arrow(path: Path) -> Iterator[FileRow]:
    try:
        import pyarrow as arrow
    except ImportError:
        raise ConfigError(f"data.path: reading {path} needs pyarrow: pip install 'scalerl[data]'") from None
    number = 0
    try:
        with arrow.memory_map(str(path)) as source, arrow.ipc.open_stream(source) as stream:
            for batch in stream:
                for values in _python_rows(batch):
                    number += 1
                    yield FileRow(f"{path} row {number}", values)
    except arrow.ArrowInvalid as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{path}: not a whole Arrow file, after row {number} ({reason}); copy it again") from None


def _check(path: Path) -> None:
    try:
        check_file(path)
    except FileNotFoundError:
        raise ConfigError(
            f"data.path: no such file: {path}; give a JSONL, JSON or Parquet file or the name of a hub data set"
        ) from None
    except OSError as error:
        raise ConfigError(f"data.path: {trouble(error)}") from None


def on_hub(data: PromptFile) -> bool:
    """Return whether a path is the name of a hub data set: no such file exists, and it has no known file extension."""
    path = Path(data.path)
    return _form(path) is None and not path.exists()


def _form(path: Path) -> FileReader | None:
    return next((form for ending, form in FILE_READERS.items() if path.name.endswith(ending)), None)


def _on_disk(path: Path, read: FileReader) -> Iterator[FileRow]:
    _check(path)
    try:
        yield from read(path)
    except OSError as error:
        raise ConfigError(f"data.path: {trouble(error)}") from None


def _jsonl(path: Path) -> Iterator[FileRow]:
    with path.open("rb") as file:
        yield from _lines(file, path)


def _gzipped(path: Path) -> Iterator[FileRow]:
    try:
        with gzip.open(path, "rb") as file:
            yield from _lines(cast(BinaryIO, file), path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}: not a whole gzip file ({error}); copy it again") from None


def _lines(file: BinaryIO, path: Path) -> Iterator[FileRow]:
    """Yield one row per line. Lines end only at newlines, because U+2028 and others may occur in a JSON string."""
    number, empty = 0, 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        source = f"{path} line {number}"
        if len(line) > MOST_LINE_BYTES:
            raise ConfigError(
                f"{source}: the line is longer than {MOST_LINE_BYTES >> 20} MiB; allowed: one JSON object per line, or "
                "Parquet for longer rows"
            )
        if number == 1:
            line = line.removeprefix(BOM)
        if line.strip():
            empty = 0
            yield FileRow(source, _object(_parse(line, source), source))
            continue
        empty += len(line)
        if empty > MOST_EMPTY:
            raise ConfigError(
                f"{source}: more than {MOST_EMPTY >> 20} MiB of empty lines follow one another; allowed: one JSON "
                "object per line. Remove the empty lines, or write the file again"
            )


def _parse(text: bytes, source: str) -> Any:
    try:
        value = parse_json(text, long_integers=True)
        if b"\\u" in text:  # an escape may be half of a surrogate pair, which no tokenizer takes
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise ConfigError(f"{source}: not valid JSON ({error}); allowed: one JSON object per line, in UTF-8") from None
    return value


def _object(values: Any, source: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: got {type(values).__name__}; allowed: a JSON object")
    return values


def _json(path: Path) -> Iterator[FileRow]:
    """Yield the rows of a JSON list, or of JSONL in a file with the extension .json."""
    with path.open("rb") as file:
        if not file.read(64).removeprefix(BOM).lstrip().startswith(b"["):
            file.seek(0)
            yield from _lines(file, path)
            return
        file.seek(0)
        rows = _parse(file.read().removeprefix(BOM), str(path))
    for number, values in enumerate(rows, start=1):
        source = f"{path} row {number}"
        yield FileRow(source, _object(values, source))


def _parquet(path: Path) -> Iterator[FileRow]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f"data.path: reading the Parquet file {path} needs pyarrow: pip install 'scalerl[data]'"
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for values in _python_rows(batch):
                    number += 1
                    yield FileRow(f"{path} row {number}", values)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{path}: not a whole Parquet file, after row {number} ({reason}); copy or write it again"
        ) from None


def _python_rows(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch of pyarrow; a value that Python cannot hold is None, such as a date after 9999."""
    from pyarrow import ArrowException

    def converted(scalar: Any) -> Any:
        try:
            return scalar.as_py()
        except UnicodeDecodeError:  # a damaged file
            raise
        except (ArrowException, ValueError, ArithmeticError, LookupError):  # LookupError: an unknown time zone
            return None

    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError:
        raise
    except (ArrowException, ValueError, ArithmeticError, LookupError):
        columns = [map(converted, column) for column in batch.columns]
        rows = [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return [unpadded_row(row) for row in rows]


def unpadded_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Arrow without the nulls inside its structs: a struct has the fields of all rows' structs."""
    return {name: _unpadded(value) if isinstance(value, dict | list) else value for name, value in row.items()}


def _unpadded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unpadded(inner) for name, inner in value.items() if inner is not None}
    return [_unpadded(inner) for inner in value] if isinstance(value, list) else value


FILE_READERS: dict[str, FileReader] = {".jsonl": _jsonl, ".json": _json, ".jsonl.gz": _gzipped, ".parquet": _parquet}
"""Readers by file extension. Any other existing file is read as JSONL."""


def _hub(data: PromptFile) -> Iterator[FileRow]:
    try:
        from datasets import DownloadConfig, load_dataset
    except ImportError:
        raise ConfigError(
            f"data.path: there is no file {data.path!r}, and reading it from the hub needs: pip install datasets"
        ) from None
    words = [data.path, data.subset] if data.subset else [data.path]
    # before version 4 of `datasets`, a data set could include a script; it is never run
    safe = {"trust_remote_code": False} if "trust_remote_code" in signature(load_dataset).parameters else {}
    try:
        rows = load_dataset(
            *words, split=data.split, revision=data.revision, download_config=DownloadConfig(max_retries=1), **safe
        )
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loading script, no longer supported
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"data.path: no file and no hub data set {data.path!r} with subset {data.subset!r}, split {data.split!r} "
            f"and revision {data.revision!r} that this machine can read{nearest(data.path, NAMED_SETS)} ({reason}); "
            "check the name, or give a file"
        ) from None
    return (
        FileRow(f"{data.path}[{data.split}] row {i}", unpadded_row(dict(row))) for i, row in enumerate(rows, start=1)
    )


def _hub_files(data: PromptFile, names: tuple[str, ...]) -> Iterator[FileRow]:
    """Yield the rows of JSONL files of a hub repository that has no tables."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ConfigError(f"data.path: reading {data.path!r} from the hub needs: pip install huggingface_hub") from None
    for name in names:
        try:
            path = hf_hub_download(data.path, name, repo_type="dataset", revision=data.revision)
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"data.path: cannot read {name} of the hub data set {data.path!r}, revision {data.revision!r} "
                f"({reason}); give a copy of it: set = {data.set!r} and path = FILE"
            ) from None
        yield from _on_disk(Path(path), _jsonl)
