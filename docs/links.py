"""A hook of the documentation site: links to files outside docs/ lead to the repository; broken fences are warnings."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(#[^)]*)?\)")
"""A link upwards: its text, its path and its anchor."""

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


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Replace links to files outside docs/ by links into the repository; warn of broken fences.

    Args:
        markdown: Text of a page.
        page: The page; links are relative to its file.
        config: The site's configuration; `repo_url` is where the repository is published.

    Returns:
        The text. Without a `repo_url`, such a link becomes its text.

    Raises:
        FileNotFoundError: A link leads to a file that does not exist.
    """
    for problem in fence_problems(markdown):
        log.warning("%s: %s", page.file.src_uri, problem)

    def replaced(match: re.Match[str]) -> str:
        path = (ROOT / "docs" / page.file.src_uri).parent / match[2]
        if not path.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {match[2]}, which does not exist")
        name = path.resolve().relative_to(ROOT)
        if name.parts[0] == "docs":
            return match[0]
        return (
            f"[{match[1]}]({config['repo_url'].rstrip('/')}/blob/main/{name}{match[3] or ''})"
            if config["repo_url"]
            else match[1]
        )

    return OUTSIDE.sub(replaced, markdown)
