"""Text and code blocks of the documentation pages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def json_keys():
    """Return the keys of each object in docs/json.md."""
    rows = re.findall(r"^\| ([A-Za-z ]+) \| (.*`.*) \|$", (ROOT / "docs/json.md").read_text(), flags=re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows}


def blocks(page, language):
    """Return the blocks of a language, in order; the page is given relative to the repository, as "docs/data.md"."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)```", text, flags=re.DOTALL | re.MULTILINE)
