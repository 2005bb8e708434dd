"""Checks on output paths: a command never overwrites an input or a file of another kind."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
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


def check_encodable(path: Path, option: str) -> None:
    """Refuse a path of a run that is not UTF-8: libraries cannot read a model and its tokenizer there.

    Raises:
        ConfigError: The path has bytes that are not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{option}: got {str(path)!r}, which is not UTF-8, so no model can be read there; rename the directory, or "
            "give another path. Nothing was changed"
        ) from None


def check_new_directory(path: Path, option: str) -> None:
    """Refuse an output directory that is not empty, because its files could be overwritten.

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
    entries = [entry.name for entry in path.iterdir() if not _left_by_a_start(entry)]
    if entries:
        named = ", ".join(sorted(entries)[:5]) + (", ..." if len(entries) > 5 else "")
        raise ConfigError(f"{option}: {path} is not empty (it contains {named}); {advice}")


def _left_by_a_start(entry: Path) -> bool:
    """Return whether a run that was killed before it saved its configuration leaves such an entry."""
    if entry.is_symlink():
        return False
    return entry.name == ".lock" or (entry.name == "rollouts" and not any(entry.iterdir()))


TRACKER_DIRECTORIES = ("wandb", ".wandb")
"""Directories of wandb in a run. They have links to its logs elsewhere, and scalerl never writes there."""


def check_stays_inside(directory: Path) -> None:
    """Refuse a directory in which a link leads outside, before a command writes to files that exist there.

    The directory of a run or study may come from somebody else. Through a link in it, a command would append to,
    replace or remove files elsewhere. The directory itself may be a link, because that is the user's.

    Raises:
        ConfigError: It has a link that leads outside, or a pipe or device; nothing was changed.
        OSError: A directory in it cannot be read.
    """
    root = os.path.realpath(directory)
    waiting = [root]
    while waiting:
        # another process may be writing in a run of a study
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                name = os.path.relpath(entry.path, root)
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if os.path.commonpath([root, target]) != root:
                        raise ConfigError(
                            f"{directory}: {name} is a link to {target}, so this command would write outside the "
                            "directory. Replace the link with what it leads to, or remove it; to store results on "
                            "another disk, move the whole directory there and link it. Nothing was changed"
                        )
                elif entry.is_dir():
                    waiting += [entry.path] if entry.name not in TRACKER_DIRECTORIES else []
                elif not entry.is_file() and not stat.S_ISSOCK(entry.stat().st_mode):
                    raise ConfigError(f"{directory}: {name} is a pipe or a device; remove it. Nothing was changed")


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
