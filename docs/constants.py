"""A hook of the documentation site: tables from the code, as of constants, terms, metrics, trainers and time limits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

SCALING = Path(__file__).parents[1] / "scalerl" / "reading" / "curves"
PLACE = "<!-- table of constants -->"
"""The line of a page that the table of constants replaces."""

TERMS_PLACE = "<!-- table of terms -->"
"""The line of a page that the table of terms replaces."""

METRICS_PLACE = "<!-- table of metrics -->"
"""The line of a page that the table of the columns of metrics.jsonl replaces."""

TRAINERS_PLACE = "<!-- table of trainers -->"
"""The line of a page that the table of the trainers whose logs are read replaces."""

SETS_PLACE = "<!-- table of sets -->"
"""The line of a page that the table of the public sets of prompts replaces."""

CALLS_PLACE = "<!-- table of calls -->"
"""The line of a page that the table of the forms of a tool's call replaces."""

LIMITS_PLACE = "<!-- table of time limits -->"
"""The line of a page that the table of the time limits in `scalerl/core/limits.py` replaces."""

CODE_OR_SIGN = re.compile(r"(`[^`]*`)|[|<]")
"""Code in a cell of a table, or outside code a bar, which would end the cell, or a sign that would begin a tag."""


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
    from scalerl.reading.pages import page

    return {**page.TERMS, **page.RUN_TERMS, **page.STUDY_TERMS}


def metrics() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the meaning and the values that cause a caution, of each column of metrics.jsonl."""
    from scalerl.training.loop.catalog import METRICS

    for name, metric in METRICS.items():
        unit = f", in {metric.unit}" if metric.unit and metric.unit not in metric.meaning.split() else ""
        limits = [*(f"above {x:g}" for x in metric.above), *(f"below {x:g}" for x in metric.below)]
        yield f"`{name}`", metric.meaning + unit, ", ".join(limits)


def trainers() -> Iterator[tuple[str, str, str, str]]:
    """Yield the names for `--from`, of held-out scores and of training rewards, and the time of a step, per trainer."""
    from scalerl.reading.logs.dialects import IMPORTERS
    from scalerl.reading.tables.names import HELD_OUT, TRAINING

    for dialect in IMPORTERS.values():
        if not dialect.source or dialect.supervised:
            continue
        held_out, training = (
            ", ".join(f"`{pattern}`" for pattern, kind in dialect.metrics if kind == wanted)
            for wanted in (HELD_OUT, TRAINING)
        )
        yield f"`{dialect.name}`", held_out or "none logged", training, dialect.about


def sets() -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, the place on the hub, the columns and the number of rows of each public set of prompts."""
    from scalerl.training.config.named import NAMED_SETS

    for name, found in NAMED_SETS.items():
        place = ", ".join(filter(None, (found.path, found.subset, "" if found.split == "train" else found.split)))
        answer = f"`{found.answer}`" + {"hashes": " after `####`", "boxed": " in `\\boxed{}`"}.get(found.answers, "")
        columns = f"`{found.prompt}`, {answer if found.answer else 'tests'}"
        yield f"`{name}`", place, columns, f"{found.size:,}" if found.size else ""


def time_limits() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the seconds and the meaning of each time limit that does not come from the configuration."""
    from scalerl.core import limits

    body = ast.parse(Path(limits.__file__).read_text(encoding="utf-8")).body
    for node, following in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.endswith("_S"):
            name, value = node.targets[0].id, ast.literal_eval(node.value)
            values = value.values() if isinstance(value, dict) else [value]
            yield f"`{name}`", ", ".join(f"{x:g}" for x in values), _docstring(following).removeprefix("Seconds ")


def table(*head: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown. Bars and `<` are escaped in text; in code they need no escape on the site."""
    signs = {"|": "\\|", "<": "&lt;"}
    escaped = ([CODE_OR_SIGN.sub(lambda match: match[1] or signs[match[0]], cell) for cell in row] for row in rows)
    lines = [head, ["--"] * len(head), *escaped]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the lines that stand for tables."""
    if PLACE in markdown:
        rows = ((f"`{c.module}`", f"`{c.name}`", f"`{c.value}`", c.meaning) for c in constants())
        markdown = markdown.replace(PLACE, table("file", "name", "value", "meaning and source", rows=rows))
    if TERMS_PLACE in markdown:
        markdown = markdown.replace(TERMS_PLACE, table("term", "meaning", rows=terms().items()))
    if METRICS_PLACE in markdown:
        markdown = markdown.replace(METRICS_PLACE, table("column", "meaning", "caution", rows=metrics()))
    if TRAINERS_PLACE in markdown:
        head = ("`--from`", "held-out score", "reward of training", "time of a step")
        markdown = markdown.replace(TRAINERS_PLACE, table(*head, rows=trainers()))
    if SETS_PLACE in markdown:
        markdown = markdown.replace(SETS_PLACE, table("name", "hub id", "prompt, answer", "rows", rows=sets()))
    if CALLS_PLACE in markdown:
        from scalerl.training.rewards.calls import CALL_FORMS

        rows = ((f"`{form.name}`", f"`{form.example}`".replace("\n", "")) for form in CALL_FORMS)
        markdown = markdown.replace(CALLS_PLACE, table("form", "example of a call", rows=rows))
    if LIMITS_PLACE in markdown:
        markdown = markdown.replace(LIMITS_PLACE, table("name", "seconds", "what it limits", rows=time_limits()))
    return markdown


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
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
