"""The colors of pages and pictures, light and dark; assets/page.css has the same (a test compares them)."""

from __future__ import annotations

from typing import NamedTuple


class Palette(NamedTuple):
    """Colors of one theme, as hexadecimal numbers."""

    paper: str
    """Background."""
    ink: str
    """Text and the most important lines."""
    muted: str
    """Less important text and lines."""
    rule: str
    """Rules and grids."""
    series: tuple[str, ...]
    """Colors of runs, "@s0" to "@s7" on a page."""

    def color(self, name: str) -> tuple[str, float]:
        """Return the color and the opacity of a name on a page, such as "@s0", "@ink" or "@muted/0.4"."""
        base, _, opacity = name.removeprefix("@").partition("/")
        named = {"ink": self.ink, "muted": self.muted, "paper": self.paper, "line": self.rule}
        shade = self.series[int(base[1:])] if base[:1] == "s" and base[1:].isdecimal() else named.get(base, self.ink)
        return shade, float(opacity or 1.0)

    def mixed(self, name: str, share: float) -> tuple[float, ...]:
        """Return an opaque mixture of a color and the background, as red, green and blue from 0 to 1."""
        both = zip(*(bytes.fromhex(color[1:]) for color in (self.color(name)[0], self.paper)), strict=True)
        return tuple((share * one + (1 - share) * other) / 255 for one, other in both)


LIGHT = Palette(
    "#ffffff", "#1b1f24", "#59626d", "#d5d9df",
    ("#2a5d9f", "#c8641e", "#2f8f6b", "#a3477f", "#7a6a1d", "#3a8fb3", "#6b4fa0", "#b23a3a"),
)  # fmt: skip
DARK = Palette(
    "#14171b", "#e8eaed", "#a3abb5", "#3a414a",
    ("#7fb0ea", "#f2a065", "#6fcfa8", "#dd8fbf", "#d3c06a", "#8fd0ec", "#b39ee6", "#ef8f8f"),
)  # fmt: skip
