"""A hook of the documentation site: links to files outside docs/ lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(#[^)]*)?\)")
"""A link upwards: its text, its path and its anchor."""


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Replace links to files outside docs/ by links into the repository.

    Args:
        markdown: Text of a page.
        page: The page; links are relative to its file.
        config: The site's configuration; `repo_url` is where the repository is published.

    Returns:
        The text. Without a `repo_url`, such a link becomes its text.

    Raises:
        FileNotFoundError: A link leads to a file that does not exist.
    """

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
