"""Writes the figures and tables of a page for papers: PNG, SVG and PDF; CSV, LaTeX and Markdown.

The figures are those of the page, at the width of a column, with TrueType fonts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.core.errors import ConfigError
from scalerl.core.files import atomic_file
from scalerl.scaling.notebook import Scale
from scalerl.view.drawing import draw, images, with_scale
from scalerl.view.figure import SUPERSCRIPTS, Figure
from scalerl.view.palette import DARK, LIGHT

FORMATS = ("pdf", "svg", "png")
"""Formats of a figure."""

COLUMN = 3.25
"""Width of a column of a paper, inches."""

DPI = 400
"""Resolution of PNG, as publishers ask for."""

MOST_VARIANTS = 12
"""Most options of a figure that are all drawn; of more, only the first."""

PIXELS = 1 / 120
"""Inches of a pixel of a figure's height on a page; text of a paper is smaller than that of a page."""

Json = dict[str, Any]


def save_page(
    directory: Path,
    page: Json,
    figures: Mapping[str, Figure | None],
    *,
    width: float = COLUMN,
    dark: bool = False,
    scale: Scale = "log",
) -> list[Path]:
    """Write the figures of a page and its tables; return the paths.

    Args:
        directory: Directory to write to; made if it does not exist.
        page: From `page.page`, for its tables.
        figures: Its figures by name.
        width: Width of a figure, inches.
        dark: Whether colors are for a dark background.
        scale: Scale of the compute axis, where a figure has the choice.

    Raises:
        ConfigError: The width is not between 1 and 20 inches, or the directory has files of another kind.
    """
    if not 1.0 <= width <= 20.0:
        raise ConfigError(f"--width: got {width:g}; allowed: 1 to 20 inches (a column of a paper has {COLUMN})")
    check_directory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    contents: dict[str, bytes] = {}
    for name, figure in variants(figures, scale):
        panel = partial(draw, figure=figure, palette=DARK if dark else LIGHT)
        size = width, figure.height * PIXELS or 0.72 * width
        contents |= {f"{name}.{kind}": content for kind, content in images([panel], size, DPI, FORMATS).items()}
    for name, table in tables(page):
        contents |= {f"{name}.{kind}": text_of(table).encode() for kind, text_of in TEXTS.items()}
    for name, content in contents.items():
        with atomic_file(directory / name) as temporary:
            temporary.write_bytes(content)
    return [directory / name for name in contents]


def check_directory(directory: Path) -> None:
    """Check that a directory for figures does not exist, or has only figures and tables.

    Raises:
        ConfigError: It is a file, or has files of another kind, which could be overwritten.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--figures: {directory} is a file; give a directory. Nothing was changed")
    ours = {f".{kind}" for kind in (*FORMATS, *TEXTS)}
    other = sorted(path.name for path in directory.glob("*") if path.suffix not in ours) if directory.exists() else []
    if other:
        raise ConfigError(
            f"--figures: {directory} contains {other[0]}; give a new directory, or one with figures and tables only. "
            "Nothing was changed"
        )


# ------------------------------------------------------------------------------------------------------------ figures


def variants(figures: Mapping[str, Figure | None], scale: Scale) -> Iterator[tuple[str, Figure]]:
    """Yield the figures with the names of their files: one for each option that changes what is drawn."""
    for name, figure in figures.items():
        if figure is None:
            continue
        scaled = with_scale(figure, scale)
        several = [options for choice, options in figure.choices.items() if choice != "Compute axis"]
        if not several:
            yield name, scaled
        for number, (option, part) in enumerate(several[-1].items() if several else ()):
            if number and len(several[-1]) > MOST_VARIANTS:
                break
            yield f"{name}-{slug(option)}", scaled.with_part(part)


def slug(text: str) -> str:
    """Return a text as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:60] or "option"


# ------------------------------------------------------------------------------------------------------------- tables


class Table(NamedTuple):
    """A table of a page as text."""

    columns: list[str]
    rows: list[list[tuple[str, str]]]
    """Each cell with its interval, which may be empty."""


def tables(page: Json) -> Iterator[tuple[str, Table]]:
    """Yield the tables of a page with the names of their files."""
    for block in page["blocks"]:
        if block["kind"] == "table":
            rows = [[(cell["text"], cell["small"]) for cell in row] for row in block["rows"]]
            yield f"table-{slug(block['title'].lower())}", Table(block["columns"], rows)


def csv_of(table: Table) -> str:
    """Return a table as CSV; a column with intervals is followed by one with their ends."""
    ranged = [any(row[at][1] for row in table.rows) for at in range(len(table.columns))]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [(name, f"{name}, 90% interval") for name in table.columns]
    for row in (heads, *table.rows):
        writer.writerow([part for pair, wide in zip(row, ranged, strict=True) for part in pair[: 2 if wide else 1]])
    return text.getvalue()


def latex_of(table: Table) -> str:
    """Return a table as a `tabular` of LaTeX with the rules of booktabs; intervals follow in parentheses."""
    lines = [_latex_row(table.columns), r"\midrule"]
    lines += [_latex_row(list(map(_with_interval, row))) for row in table.rows]
    body = "\n".join([r"\toprule", *lines, r"\bottomrule"])
    return (
        "% needs \\usepackage{booktabs}\n\\begin{tabular}{l" + "r" * (len(table.columns) - 1) + f"}}\n{body}\n"
        "\\end{tabular}\n"
    )


def markdown_of(table: Table) -> str:
    """Return a table in Markdown; intervals follow in parentheses."""
    rows = [["--"] + ["--:"] * (len(table.columns) - 1), *(map(_with_interval, row) for row in table.rows)]
    lines = ([cell.replace("|", r"\|") for cell in cells] for cells in (table.columns, *rows))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _with_interval(cell: tuple[str, str]) -> str:
    text, small = cell
    return f"{text} ({small})" if small else text


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "×": r"$\times$", "±": r"$\pm$",
}  # fmt: skip
"""Characters with a meaning in LaTeX, and those that its fonts lack."""

RAISED = {chr(raised): chr(plain) for plain, raised in SUPERSCRIPTS.items()}
"""Superscripts, which stand for powers of ten."""

TEXTS = {"csv": csv_of, "tex": latex_of, "md": markdown_of}
"""Formats of a table."""


def latex_text(text: str) -> str:
    """Return text for LaTeX."""
    escaped = "".join(SPECIAL.get(letter, letter) for letter in text)
    return re.sub(f"[{''.join(RAISED)}]+", lambda match: f"$^{{{''.join(RAISED[c] for c in match[0])}}}$", escaped)
