"""Writes the figures and tables of a page for papers: PNG, SVG and PDF; CSV, LaTeX and Markdown.

The figures are those of the page, at the width of a column, with TrueType fonts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from functools import partial
from io import StringIO
from pathlib import Path

from scalerl.core.errors import ConfigError
from scalerl.core.files import atomic_file
from scalerl.reading.curves.notebook import Scale
from scalerl.reading.pages.drawing import draw_figure, images, with_scale
from scalerl.reading.pages.figure import SUPERSCRIPTS, Figure, Json
from scalerl.reading.pages.palette import DARK, LIGHT

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
        panel = partial(draw_figure, figure=figure, palette=DARK if dark else LIGHT)
        size = width, figure.height * PIXELS or 0.72 * width
        contents |= {f"{name}.{kind}": content for kind, content in images([panel], size, DPI, FORMATS).items()}
    for table in (block for block in page["blocks"] if block["kind"] == "table"):
        name = f"table-{slug(table['title'].lower())}"
        contents |= {f"{name}.{kind}": text_of(table).encode() for kind, text_of in TABLE_FORMATS.items()}
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
    ours = {f".{kind}" for kind in (*FORMATS, *TABLE_FORMATS)}
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


def csv_of(table: Json) -> str:
    """Return a table of a page as CSV; a column with intervals is followed by one with their ends."""
    heads = [{"text": name, "small": f"{name}, 90% interval"} for name in table["columns"]]
    ranged = [any(row[at]["small"] for row in table["rows"]) for at in range(len(heads))]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (heads, *table["rows"]):
        pairs = zip(row, ranged, strict=True)
        writer.writerow([cell[part] for cell, wide in pairs for part in ("text", "small")[: 2 if wide else 1]])
    return text.getvalue()


def latex_of(table: Json) -> str:
    """Return a table of a page as a `tabular` of LaTeX with the rules of booktabs; intervals follow in parentheses."""
    head, *rows = (" & ".join(map(latex_text, cells)) + r" \\" for cells in _cells(table))
    body = "\n".join([r"\toprule", head, r"\midrule", *rows, r"\bottomrule"])
    columns = "l" + "r" * (len(table["columns"]) - 1)
    return f"% needs \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"


def markdown_of(table: Json) -> str:
    """Return a table of a page in Markdown; intervals follow in parentheses."""
    head, *rows = ([cell.replace("|", r"\|") for cell in cells] for cells in _cells(table))
    rule = ["--"] + ["--:"] * (len(head) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def _cells(table: Json) -> list[list[str]]:
    """Return the headings and the rows, each cell with its interval in parentheses."""
    rows = [
        [f"{one['text']} ({one['small']})" if one["small"] else one["text"] for one in row] for row in table["rows"]
    ]
    return [table["columns"], *rows]


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "×": r"$\times$", "±": r"$\pm$",
}  # fmt: skip
"""Characters with a meaning in LaTeX, and those that its fonts lack."""

PLAIN_DIGITS = {chr(raised): chr(plain) for plain, raised in SUPERSCRIPTS.items()}
"""Superscripts, which stand for powers of ten."""

TABLE_FORMATS = {"csv": csv_of, "tex": latex_of, "md": markdown_of}
"""Formats of a table."""


def latex_text(text: str) -> str:
    """Return text for LaTeX."""
    escaped = "".join(SPECIAL.get(letter, letter) for letter in text)
    return re.sub(
        f"[{''.join(PLAIN_DIGITS)}]+", lambda match: f"$^{{{''.join(PLAIN_DIGITS[c] for c in match[0])}}}$", escaped
    )
