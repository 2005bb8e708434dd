"""A hook of the documentation site: pages from outside docs/, links into the repository, warnings of broken fences."""

from __future__ import annotations

import logging
import os
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""Files outside docs/ that are pages of the site, with the names of these pages."""

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]+)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")
"""A link or picture with a relative path: its text, its path and its anchor."""

FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<rest>.*)")
"""A line that opens or closes a block of code."""

log = logging.getLogger("mkdocs.hooks.links")
"""A logger of mkdocs, which counts its warnings; with `strict`, they fail the build."""


def fence_problems(markdown: str) -> list[str]:
    """Return the fences that the site does not render as blocks of code, although GitHub does.

    A fence with more than one word after it is text for the site, and so is all that follows up to the next fence.
    """
    problems, opened, at = [], "", 0
    for number, line in enumerate(markdown.splitlines(), start=1):
        match = FENCE.match(line)
        if match is None or "`" in match["rest"]:
            continue
        if not opened:
            opened, at = match["fence"], number
            if not re.fullmatch(r"[\w+-]*", match["rest"].strip()):
                problems.append(f"line {number}: got {line.strip()!r}; allowed: one word after a fence, its language")
        elif match["fence"].startswith(opened) and not match["rest"].strip():
            opened = ""
    return [*problems, f"line {at}: the fence {opened!r} is not closed"] if opened else problems


def on_config(config: Any, **_: Any) -> Any:
    """Take the address of the repository from pyproject.toml, the one place where it stands."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        config["repo_url"] = tomllib.load(file)["project"]["urls"]["Repository"]
    config["repo_name"], config["edit_uri"] = "scalerl", "edit/main/docs/"
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages from outside docs/."""
    from mkdocs.structure.files import File

    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
        files.get_file_from_path(name).edit_uri = f"{config['repo_url']}/edit/main/{path}"
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Let links between files lead to their pages, or into the repository; warn of broken fences.

    Args:
        markdown: Text of a page.
        page: The page; links are relative to its file.
        config: The site's configuration; `repo_url` is where the repository is published.

    Returns:
        The text.

    Raises:
        FileNotFoundError: A link leads to a file that does not exist.
    """
    name = page.file.src_uri
    for problem in fence_problems(markdown):
        log.warning("%s: %s", name, problem)
    sources = {page_name: ROOT / path for path, page_name in OUTSIDE.items()}
    return moved_links(markdown, sources.get(name, ROOT / "docs" / name), name, config["repo_url"])


def moved_links(markdown: str, source: Path, name: str, repository: str) -> str:
    """Return the text of a file with its links as they are on the site.

    Args:
        markdown: Text of the file.
        source: The file; its links are relative to it.
        name: Name of its page.
        repository: Address of the repository, for files that are no pages.

    Raises:
        FileNotFoundError: A link leads to a file that does not exist.
    """

    def moved(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / match["path"]))
        if not path.exists():
            raise FileNotFoundError(f"{source.relative_to(ROOT)} links to {match['path']}, which does not exist")
        inside = path.relative_to(ROOT).as_posix()
        page = OUTSIDE.get(inside) or (inside.removeprefix("docs/") if inside.startswith("docs/") else None)
        if page is None:
            target = f"{repository}/{'tree' if path.is_dir() else 'blob'}/main/{inside}"
        else:
            target = os.path.relpath(page, Path(name).parent)
        return f"{match['image']}[{match['text']}]({target}{match['anchor'] or ''})"

    # code has no links, but text that looks like them
    pieces = re.split(r"(^ *(?:```|~~~).*?^ *(?:```|~~~)\s*$)", markdown, flags=re.M | re.S)
    return "".join(piece if place % 2 else LINK.sub(moved, piece) for place, piece in enumerate(pieces))
