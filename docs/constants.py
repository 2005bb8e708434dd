"""A hook of the documentation site: tables from the code, of the constants of the statistics and of terms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SCALING = Path(__file__).parents[1] / "scalerl" / "scaling"
PLACE = "<!-- table of constants -->"
"""The line of a page that the table of constants replaces."""

TERMS_PLACE = "<!-- table of terms -->"
"""The line of a page that the table of terms replaces."""


class Constant(NamedTuple):
    """One constant.

    Example: `Constant("futures", "FALLEN", "0.1", "A run has fallen if it is this share ...")`
    """

    module: str
    name: str
    value: str
    meaning: str


def constants() -> Iterator[Constant]:
    """Yield every constant of the package whose value is a number, a few numbers, or a count of public runs."""
    for file in sorted(SCALING.glob("*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for node, following in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name, text = node.targets[0].id, _docstring(following)
            if not name.isupper():
                continue
            if _is_count(node.value):
                yield Constant(file.stem, name, _count(node.value), " ".join([_meaning(node.value), text]).strip())
            elif isinstance(node.value, ast.Dict) and all(map(_is_count, node.value.values)):
                for key, count in zip(node.value.keys, node.value.values, strict=True):
                    yield Constant(file.stem, f"{name} ({ast.literal_eval(key)})", _count(count), _meaning(count))
            elif _is_numeric(node.value):
                yield Constant(file.stem, name, ast.unparse(node.value), text)


def terms() -> dict[str, str]:
    """Return the terms of the live page, of runs and of studies, with their meanings."""
    from scalerl.view import page

    return {**page.TERMS, **page.RUN_TERMS, **page.STUDY_TERMS}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the lines `PLACE` and `TERMS_PLACE` by tables of all constants and terms."""
    if PLACE in markdown:
        rows = [f"| `{c.module}` | `{c.name}` | `{c.value}` | {c.meaning} |" for c in constants()]
        head = ["| file | name | value | meaning and source |", "| -- | -- | -- | -- |"]
        markdown = markdown.replace(PLACE, "\n".join([*head, *rows]))
    if TERMS_PLACE in markdown:
        rows = [f"| {name} | {meaning} |" for name, meaning in terms().items()]
        markdown = markdown.replace(TERMS_PLACE, "\n".join(["| term | meaning |", "| -- | -- |", *rows]))
    return markdown


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split()).replace("|", "\\|")
    return ""


def _is_count(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Count"


def _count(node: Any) -> str:
    happened, whole, _ = node.args
    return f"{happened.value} of {whole.value}"


def _meaning(node: Any) -> str:
    return str(ast.literal_eval(node.args[2]))


def _is_numeric(node: ast.expr) -> bool:
    """Return whether a value is made of numbers and other constants only."""
    words = [part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    numbers = [
        part for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, int | float)
    ]
    return bool(numbers) and not words and not isinstance(node, ast.Dict)
