"""Writes the figures and tables of a page for papers: PNG, SVG and PDF, CSV and LaTeX.

The figures of a page are plotly JSON (`page_figures`, `study_figures`). Here matplotlib draws the same JSON at the
width of a column, with TrueType fonts, so that every figure of every page exists in both forms.
"""

from __future__ import annotations

import csv
import html
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalerl.core.errors import ConfigError
from scalerl.core.files import atomic_file
from scalerl.scaling.notebook import Scale
from scalerl.scaling.units import UNITS
from scalerl.view.figures import COLUMN, DRAWING, FOR_PAPERS, compute_ticks, dress
from scalerl.view.palette import DARK, LIGHT, Palette

FORMATS = ("pdf", "svg", "png")
"""Formats of a figure."""

DPI = 400
"""Resolution of PNG, as publishers ask for."""

MOST_VARIANTS = 12
"""Most options of a figure that are all drawn; of more, only the first."""

TEXT = 7.0
"""Size of text, points."""

PIXELS = 1 / 120
"""Inches of a pixel of a figure's height on a page; text of a paper is smaller than that of a page."""

Json = dict[str, Any]


class Variant(NamedTuple):
    """A figure of a page with the options of one choice of the reader."""

    name: str
    """Name of its files."""
    data: list[Json]
    layout: Json


def save_page(
    directory: Path, page: Json, *, width: float = COLUMN, dark: bool = False, scale: Scale = "log"
) -> list[Path]:
    """Write all figures and tables of a page; return the paths.

    Args:
        directory: Directory to write to; made if it does not exist.
        page: From `page.page`.
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
    for variant in variants(page, scale):
        for kind, content in image_files(variant, width, DARK if dark else LIGHT).items():
            contents[f"{variant.name}.{kind}"] = content
    for name, table in tables(page):
        contents |= {f"{name}.csv": csv_of(table).encode(), f"{name}.tex": latex_of(table).encode()}
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
    ours = {f".{kind}" for kind in (*FORMATS, "csv", "tex")}
    other = sorted(path.name for path in directory.glob("*") if path.suffix not in ours) if directory.exists() else []
    if other:
        raise ConfigError(
            f"--figures: {directory} contains {other[0]}; give a new directory, or one with figures and tables only. "
            "Nothing was changed"
        )


# ------------------------------------------------------------------------------------------------------------ figures


def variants(page: Json, scale: Scale) -> Iterator[Variant]:
    """Yield the figures of a page: one for each option that changes what is drawn."""
    for block in page["blocks"]:
        for figure in block["figures"] if block["kind"] == "figures" else ():
            layout, data, several = dict(figure["layout"]), list(figure["data"]), dict[str, Json]()
            for choice, options in figure["choices"].items():
                if choice == "Compute axis":
                    layout = merged(layout, options["logarithmic" if scale == "log" else "linear"]["layout"])
                else:
                    several = options
            if not several:
                yield Variant(figure["name"], data, layout)
            for number, (option, change) in enumerate(several.items()):
                if number and len(several) > MOST_VARIANTS:
                    break
                added = [*data, *(trace for trace in change.get("data", []) if trace.get("visible", True))]
                yield Variant(f"{figure['name']}-{slug(option)}", added, merged(layout, change.get("layout", {})))


def merged(base: Json, changes: Json) -> Json:
    """Return nested options with changes."""
    both = dict(base)
    for key, value in changes.items():
        both[key] = merged(both.get(key) or {}, value) if isinstance(value, dict) else value
    return both


def slug(text: str) -> str:
    """Return a text as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:60] or "option"


def image_files(variant: Variant, width: float, palette: Palette) -> dict[str, bytes]:
    """Return a figure in every format."""
    import matplotlib
    from matplotlib.figure import Figure

    height = variant.layout.get("height", 0) * PIXELS or 0.72 * width
    contents = {}
    with DRAWING, matplotlib.rc_context(FOR_PAPERS):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        draw(axes, variant, palette)
        for kind in FORMATS:
            file = BytesIO()
            figure.savefig(file, format=kind, dpi=DPI)
            contents[kind] = file.getvalue()
    return contents


def draw(axes: Any, variant: Variant, palette: Palette) -> None:
    """Draw a figure of a page with matplotlib."""
    x_axis, y_axis = variant.layout.get("xaxis", {}), variant.layout.get("yaxis", {})
    axes.set_xscale(x_axis.get("type", "linear"))
    axes.set_yscale(y_axis.get("type", "linear"))
    legend: dict[str, Any] = {}
    below: Json = {}
    named = [trace for trace in variant.data if trace.get("name") and trace.get("showlegend") is not False]
    for trace in variant.data:
        handle = _draw_trace(axes, trace, below, palette)
        below = trace
        if trace in named and handle is not None:
            legend.setdefault(plain_text(trace["name"]), handle)
    for shape in variant.layout.get("shapes", ()):
        _draw_shape(axes, shape, palette)
    _set_axis(axes, "x", x_axis, palette)
    _set_axis(axes, "y", y_axis, palette)
    dress(axes, palette, TEXT)
    if y_axis.get("showgrid") is False:
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    if len(legend) > 1:
        _legend_above(axes, legend, palette)


def _draw_trace(axes: Any, trace: Json, below: Json, palette: Palette) -> Any:
    """Draw one trace; return its handle for the legend."""
    x, y = (numbers(trace[axis]) for axis in "xy")
    mode, line, marker, handle = trace["mode"], trace.get("line", {}), trace.get("marker", {}), None
    if trace.get("fill") == "tonexty":
        color, opacity = palette.color(trace["fillcolor"])
        lower = numbers(below["y"])
        axes.fill_between(x, lower, y, color=color, alpha=opacity, lw=0)
    if "lines" in mode and line.get("width", 2) > 0:
        color, opacity = palette.color(line.get("color", "@ink"))
        style = {"lw": 0.55 * line.get("width", 2), "ls": DASHES[line.get("dash", "solid")]}
        (handle,) = axes.plot(x, y, color=color, alpha=opacity, **style)
    if "markers" in mode:
        color, opacity = palette.color(marker.get("color", "@ink"))
        for axis in ("error_x", "error_y"):
            if axis in trace:
                _draw_error(axes, x, y, trace[axis], axis, palette, color)
        symbols = marker.get("symbol", 0)
        listed = symbols if isinstance(symbols, list) else [symbols] * len(x)
        for symbol in dict.fromkeys(listed):
            is_drawn_N = np.array([listed_symbol == symbol for listed_symbol in listed])
            shape, hollow = SYMBOLS.get(symbol, ("o", False))
            points = axes.plot(x[is_drawn_N], y[is_drawn_N], ls="", marker=shape, ms=0.45 * marker.get("size", 6),
                               color=color, alpha=opacity, mfc="none" if hollow else color,
                               mew=0.8 if hollow else 0)  # fmt: skip
            handle = handle or points[0]
    return handle


def numbers(values: Sequence[float | None]) -> Any:
    """Return numbers of plotly as an array, with NaN for those that it leaves out."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _draw_error(axes: Any, x: Any, y: Any, error: Json, axis: str, palette: Palette, color: str) -> None:
    up = numbers(error["array"])
    down = numbers(error.get("arrayminus") or error["array"])
    shade, opacity = palette.color(error["color"]) if "color" in error else (color, 1.0)
    both = {"xerr" if axis == "error_x" else "yerr": np.maximum([down, up], 0.0)}
    axes.errorbar(x, y, **both, fmt="none", ecolor=shade, alpha=opacity, elinewidth=0.6 * error.get("thickness", 2),
                  capsize=0.4 * error.get("width", 0), capthick=0.6)  # fmt: skip


DASHES = {"solid": "-", "dash": (0, (4, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (4, 1.5, 1, 1.5))}
"""Dashes of plotly as those of matplotlib."""

SYMBOLS: dict[Any, tuple[str, bool]] = {
    0: ("o", False), 1: ("s", False), 2: ("D", False), 3: ("P", False), 4: ("X", False), 5: ("^", False),
    6: ("v", False), 7: ("<", False), "circle": ("o", False), "circle-open": ("o", True), "line-ew-open": ("_", True),
}  # fmt: skip
"""Symbols of plotly as those of matplotlib, and whether they are hollow."""


def _draw_shape(axes: Any, shape: Json, palette: Palette) -> None:
    if shape["type"] == "rect":
        color, opacity = palette.color(shape["fillcolor"])
        axes.axvspan(shape["x0"], shape["x1"], color=color, alpha=opacity, lw=0, zorder=0)
        return
    color, _ = palette.color(shape["line"]["color"])
    style = {"color": color, "lw": 0.6, "ls": DASHES[shape["line"].get("dash", "solid")], "zorder": 0}
    if shape.get("yref") == "paper":
        axes.axvline(shape["x0"], **style)
    else:
        axes.axhline(shape["y0"], **style)


def _set_axis(axes: Any, which: str, options: Json, palette: Palette) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

    is_log = options.get("type") == "log"
    if options.get("range"):
        ends = [10.0**end if is_log else end for end in options["range"]]
        (axes.set_xlim if which == "x" else axes.set_ylim)(*ends)
    title = plain_text(options.get("title", {}).get("text", ""))
    axis = axes.xaxis if which == "x" else axes.yaxis
    unit = next((name for name in (*UNITS.values(), "tokens", "step") if title.endswith(f"({name})")), "")
    if "tickvals" in options:
        axis.set_ticks(options["tickvals"], [plain_text(text) for text in options["ticktext"]])
        axis.set_minor_locator(NullLocator())
    elif which == "x" and unit:
        column = next((column for column, name in UNITS.items() if name == unit), unit)
        unit_text = compute_ticks(axes, column, axes.get_xlim()[1], "log" if is_log else "linear")
        title = f"{title.removesuffix(f'({unit})')}({unit_text})"
    elif is_log:
        low, high = (axes.get_xlim if which == "x" else axes.get_ylim)()
        decades = math.log10(high / low)
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.2 else (1.0,), numticks=12))
        axis.set_minor_formatter(NullFormatter())
        if decades < 5:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_major_locator(MaxNLocator(5))
        if options.get("tickformat", "").endswith("%"):
            axis.set_major_formatter(PercentFormatter(1.0))
    axis.set_label_text(title, fontsize=TEXT, color=palette.ink)


def _legend_above(axes: Any, legend: Mapping[str, Any], palette: Palette) -> None:
    """Draw the legend above the axes, in as many columns as fit in their width."""
    size = TEXT - 0.5
    inches = axes.figure.get_figwidth() - 0.6
    most = max(12, int(inches * 72 / size / 0.52) - 5)
    names = [textwrap.fill(name, most) for name in legend]
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, min(len(names), int(inches / ((longest * 0.5 + 4) * size / 72))))
    axes.legend(
        legend.values(), names, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, frameon=False, fontsize=size,
        labelcolor=palette.ink, handlelength=1.6, columnspacing=1.0, labelspacing=0.3, borderaxespad=0.2,
    )  # fmt: skip


def plain_text(text: str) -> str:
    """Return text of a page as text of matplotlib: without tags, with powers of ten as mathtext."""
    text = html.unescape(re.sub(r"</?b>", "", text.replace("<br>", "\n")).replace("$", r"\$"))
    return re.sub(r"<sup>(.*?)</sup>", r"$^{\1}$", text)


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
    lines += [_latex_row([f"{text} ({small})" if small else text for text, small in row]) for row in table.rows]
    body = "\n".join([r"\toprule", *lines, r"\bottomrule"])
    return (
        "% needs \\usepackage{booktabs}\n\\begin{tabular}{l" + "r" * (len(table.columns) - 1) + f"}}\n{body}\n"
        "\\end{tabular}\n"
    )


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "×": r"$\times$", "±": r"$\pm$",
}  # fmt: skip
"""Characters with a meaning in LaTeX, and those that its fonts lack."""

RAISED = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
"""Superscripts, which stand for powers of ten."""


def latex_text(text: str) -> str:
    """Return text for LaTeX."""
    escaped = "".join(SPECIAL.get(letter, letter) for letter in text)
    return re.sub(f"[{''.join(RAISED)}]+", lambda match: f"$^{{{''.join(RAISED[c] for c in match[0])}}}$", escaped)
