"""Building blocks of the figures of a page, as plotly JSON: numbers, axes and error bars.

A color is a name such as "@s0", or "@s0/0.2" with an opacity; the page's script replaces it by the color of the
theme.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalerl.scaling import Estimate

LOG = {"type": "log", "dtick": "D2"}
"""A logarithmic axis labeled at 1, 2 and 5."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure: title, caption and drawing.

    Example: `Figure("Curves", "What to see.", [{"x": [1], "y": [2]}], {"xaxis": {"title": {"text": "compute"}}})`
    """

    title: str
    caption: str
    data: list[Json]
    layout: Json
    choices: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Choices for the reader, by name, with the effect of each option: `{"layout": ...}` changes the figure's
    layout, `{"data": ...}` is drawn in addition. The first option is the default."""


def compute_axes(least: float, most: float) -> dict[str, Json]:
    """Return the options for an x axis of compute: logarithmic over a span, or linear."""
    return {
        "logarithmic": {"layout": {"xaxis": {**LOG, "range": plain(np.log10([least, most]))}}},
        "linear": {"layout": {"xaxis": {"type": "linear"}}},
    }


def whiskers(*estimates: Estimate) -> Json:
    """Return the 90% intervals as plotly error bars, one for each point."""
    up, down = ([e.high - e.mean for e in estimates], [e.mean - e.low for e in estimates])
    return {"type": "data", "symmetric": False, "array": plain(up), "arrayminus": plain(down)}


def number_html(value: float) -> str:
    """Return a number such as `4.2e+11` as HTML for pages and plotly, with the power of ten as a superscript."""
    digits, e, power = f"{value:.3g}".partition("e")
    return f"{digits}×10<sup>{int(power)}</sup>" if e else digits


def plain(values: ArrayLike | Iterable[float]) -> list[float | None]:
    """Return numbers rounded to five digits; infinite and NaN become None, which plotly leaves out."""
    return [rounded(float(value)) for value in np.asarray(values).ravel()]


def rounded(value: float) -> float | None:
    """Return a number rounded to five digits; None if it is infinite or NaN."""
    return float(f"{value:.5g}") if np.isfinite(value) else None


def cut(name: str, most: int = 24) -> str:
    """Return a name for an axis; a long one is cut to its end, because the ends of paths differ."""
    return name if len(name) <= most else "…" + name[1 - most :]
