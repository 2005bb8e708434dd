"""Checks on output paths: a command never overwrites an input or a file of another kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from scalerl.core.errors import ConfigError
from scalerl.core.files import write_whole

PAGE_STARTS = b"<!doctype html"
"""The first bytes of every page that this package writes, in lower case."""


def is_page(path: Path) -> bool:
    """Return whether a file is an HTML page, as `report` and `study show` write them."""
    with path.open("rb") as file:
        return file.read(len(PAGE_STARTS)).lower() == PAGE_STARTS


def check_output(
    path: Path,
    inputs: Iterable[Path],
    replaceable: Callable[[Path], bool] = is_page,
    *,
    what: str = "an HTML page",
) -> Path:
    """Return the path to write an output to; refuse an input of the command and an existing file of another kind.

    Files are compared by inode, which resolves links and paths such as `./x`. An empty file may be replaced.

    Args:
        path: Path of the output.
        inputs: Files and directories that the command reads.
        replaceable: Function that returns whether an existing file is of the kind that the command writes.
        what: Name of that kind, for the message.

    Returns:
        The path with links resolved.

    Raises:
        ConfigError: The output would overwrite such a file; nothing was changed.
    """
    # os.path returns False in cases where Path raises, for example for a name that is too long
    place = Path(os.path.realpath(path)) if os.path.islink(path) else path
    if not os.path.isfile(path):  # new, a directory (writing fails later), or a device
        return place
    for source in inputs:
        if os.path.exists(source) and path.samefile(source):
            raise ConfigError(
                f"-o: {path} is an input of this command and would be overwritten; give another path for the "
                "output. Nothing was changed"
            )
    if path.stat().st_size and not replaceable(path):
        raise ConfigError(
            f"-o: {path} exists and is not {what}; give a path that does not exist yet, or remove the file. "
            "Nothing was changed"
        )
    return place


def check_new_directory(path: Path, option: str) -> None:
    """Refuse an output directory that is not empty, because its files could be overwritten.

    Args:
        path: The output directory.
        option: Option that gives it, for the message.

    Raises:
        ConfigError: The path is a file, a dangling link, or a directory with files in it, or is no valid path.
    """
    advice = "give a directory that does not exist yet or is empty. Nothing was changed"
    if "\0" in str(path):
        raise ConfigError(f"{option}: got {str(path)!r}, which contains a NUL character; {advice}")
    if os.path.islink(path) and not os.path.exists(path):
        raise ConfigError(f"{option}: {path} is a link to something that does not exist; {advice}")
    if not os.path.exists(path):
        return
    if not path.is_dir():
        raise ConfigError(f"{option}: {path} is a file; {advice}")
    # a run that was killed before it saved its configuration leaves these
    rest = [p.name for p in path.iterdir() if p.name != ".lock" and not (p.name == "rollouts" and not any(p.iterdir()))]
    if rest:
        named = ", ".join(sorted(rest)[:5]) + (", ..." if len(rest) > 5 else "")
        raise ConfigError(f"{option}: {path} is not empty (it contains {named}); {advice}")


def check_apart(path: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Refuse an output directory that is an input, contains one or lies in one.

    Args:
        path: The output directory; it need not exist.
        inputs: Names of fields, with the files or directories that they give.

    Raises:
        ConfigError: The directory overlaps with an input, which the message names.
    """
    own = path.resolve()
    for name, source in inputs:
        if not os.path.exists(source):
            continue
        there = source.resolve()
        if own == there or there in own.parents or own in there.parents:
            how = "is" if own == there else "is inside" if there in own.parents else "contains"
            raise ConfigError(
                f"--run-dir: {path} {how} {source} (the input {name}); give a separate directory. Nothing was changed"
            )


def write_or_explain(path: Path, text: str) -> str:
    """Write a file atomically; return an empty string, or a sentence that explains why it could not be written."""
    try:
        write_whole(path, text)
    except OSError as error:
        return why_not(path, error)
    return ""


def why_not(path: Path, error: OSError) -> str:
    """Return a sentence that explains why a file could not be written."""
    return f"{path} cannot be written ({error.strerror or error}); an existing file is unchanged"
