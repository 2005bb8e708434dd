"""Draw the pictures of the docs from simulated runs and from measured results: `python docs/make_pictures.py`.

It measures nothing itself.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from scalerl.reading.curves import Curve, fit, sigmoid
from scalerl.reading.pages.analysis import Analysis, analyze
from scalerl.reading.pages.drawing import plot
from scalerl.reading.pages.frozen import frozen
from scalerl.reading.pages.outlook import Source
from scalerl.reading.pages.page import page
from scalerl.reading.pages.palette import LIGHT

BLUE, ORANGE, INK, GRAY = LIGHT.series[0], LIGHT.series[1], LIGHT.ink, "#8a8f98"

LAST = 16_000.0
"""Compute of a whole run, in device-hours."""


def run(
    last: float = LAST,
    seed: int = 0,
    points: int = 41,
    law: Callable[[Any], Any] | None = None,
    noise: float = 0.004,
    **changes: float,
) -> Curve:
    """Simulate a run like the one published for ScaleRL (arXiv 2510.13786, table 1), or one that departs from it."""
    truth = {"asymptote": 0.61, "efficiency": 1.92, "midpoint": 2542.0, "initial": 0.2, **changes}
    compute = np.linspace(0, last, points)
    level = law(compute) if law else sigmoid(compute, **truth)
    scatter = noise * np.random.default_rng(seed).standard_normal(points)
    return Curve(compute, np.clip(level + scatter, 0, 1), axis="device_hours")


def falls(compute: Any) -> Any:
    """Rise, then decline."""
    return sigmoid(compute, 0.61, 1.92, 2542.0, 0.2) - 0.2 * np.maximum(compute / LAST - 0.7, 0) / 0.3


def starts_late(compute: Any) -> Any:
    """Do nothing for a fifth of the run."""
    return sigmoid(np.maximum(compute - 0.2 * LAST, 0), 0.61, 1.92, 2542.0, 0.2)


def rises_twice(compute: Any) -> Any:
    """Rise to one level, then to another."""
    return sigmoid(compute, 0.45, 2.5, 1500.0, 0.2) + sigmoid(compute, 0.2, 5.0, 10_000.0, 0.0)


def ends_slowly(compute: Any) -> Any:
    """Rise fast, and end more slowly than the law."""
    return sigmoid(compute, 0.45, 2.5, 1500.0, 0.2) + sigmoid(compute, 0.2, 2.0, 6000.0, 0.0)


def creeps(compute: Any) -> Any:
    """Rise, then drift on in proportion to compute."""
    return sigmoid(compute, 0.5, 2.5, 1500.0, 0.2) + 0.06 * compute / LAST


SYMPTOMS: dict[str, Curve] = {
    "too few points": run(points=7),
    "decline": run(law=falls),
    "saturation before the window": run(points=15, midpoint=60.0, efficiency=3.0),
    "missing start": Curve(run().compute[:16] + 9000.0, run().metric[25:], axis="device_hours"),
    "late take-off": run(law=starts_late),
    "two-phase rise": run(law=rises_twice),
    "slow end": run(law=ends_slowly),
    "creep": run(law=creeps),
}
"""A run for each warning."""


def meaning(path: Path) -> None:
    """Draw A, R0 and Cmid on one curve, and what B does."""
    figure, axes = new_figure(1, 2, (11, 4))
    compute = np.geomspace(100, 1e5, 300)
    axes[0].plot(compute, sigmoid(compute, 0.61, 1.92, 2542.0, 0.2), color=BLUE, lw=2.5)
    for level, words in ((0.61, "A, the ceiling"), (0.2, "R0, the level before training")):
        axes[0].axhline(level, color=ORANGE if level > 0.5 else GRAY, lw=1, ls="--")
        axes[0].annotate(words, (110, level + (0.01 if level > 0.5 else -0.025)), color=INK)
    axes[0].plot([2542, 2542], [0.14, 0.405], color=GRAY, lw=1, ls=":")
    axes[0].plot(2542, 0.405, "o", color=BLUE)
    axes[0].annotate("half of the climb,\nat C_mid", (2542, 0.405), xytext=(12, -24), textcoords="offset points")
    for efficiency, color in zip((1.0, 2.0, 4.0), (ORANGE, "#2f8f6b", "#a3477f"), strict=True):
        level = sigmoid(compute, 0.61, efficiency, 2542.0, 0.2)
        axes[1].plot(compute, level, color=color, lw=2, label=f"B = {efficiency:.0f}")
    axes[1].legend(frameon=False)
    for drawn in axes:
        drawn.set(xscale="log", ylim=(0.14, 0.66), xlabel="training compute (log scale)", ylabel="pass rate")
        drawn.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def belief(path: Path) -> None:
    """Draw what is known of one run at three moments of it."""
    figure, axes = new_figure(1, 3, (15, 4.6))
    for drawn, last in zip(axes, (1500.0, 4000.0, LAST), strict=True):
        plot(fit(run(last)), drawn, note=f"as known at {last:,.0f} device-hours; A is really 0.61")
        drawn.set_ylim(0.15, 1.0)
    figure.savefig(path)


def comparison(path: Path) -> None:
    """Draw two recipes of one ceiling, one of them steeper."""
    quick, slow = (
        [source(f"{name} {i}", run(seed=10 * side + i, efficiency=b)) for i in range(3)]
        for side, (name, b) in enumerate((("quick", 2.6), ("slow", 1.5)))
    )
    screenshot(path, analyze(quick, slow), "ceilings", "steepness", "slopes", width=1500)


def tested(path: Path) -> None:
    """Draw a backtest."""
    screenshot(path, analyze([source("run", run())]), "backtests", width=900)


def source(name: str, curve: Curve) -> Source:
    """Return a simulated run as a source of a page."""
    return Source(Path(name), name, curve, None, "")


def screenshot(path: Path, found: Analysis, *names: str, width: int) -> None:
    """Draw figures of the page about runs side by side, without their captions; needs playwright and chromium."""
    from playwright.sync_api import sync_playwright

    hidden = "".join(f":not(:has(#plot-{name}))" for name in names)
    style = (
        f"figure{hidden}, figcaption p, .choices {{display: none}} .figures figure {{grid-column: auto}}"
        f".figures {{display: grid; grid-template-columns: repeat({len(names)}, 1fr); width: {width}px}}"
    )
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as driver:
        file = Path(directory) / "page.html"
        file.write_text(frozen(page(found)).replace("</style>", f"{style}</style>", 1), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width + 100, "height": 900}, color_scheme="light")
        tab.goto(file.as_uri())
        tab.wait_for_timeout(3000)
        tab.locator(".figures").screenshot(path=path)
        browser.close()


def symptoms(path: Path) -> None:
    """Draw a run for each warning."""
    figure, axes = new_figure(2, 4, (19, 8))
    for unused in axes.ravel()[len(SYMPTOMS) :]:
        unused.remove()
    for drawn, (name, curve) in zip(axes.ravel(), SYMPTOMS.items(), strict=False):
        band = fit(curve).predict(np.linspace(0, curve.last_compute, 200))
        drawn.fill_between(band.compute, band.low, band.high, color=BLUE, alpha=0.18, lw=0)
        drawn.plot(band.compute, band.mean, color=BLUE, lw=1.5)
        drawn.plot(curve.compute, curve.metric, "o", color=INK, ms=3.5)
        drawn.set_title(name, loc="left")
        drawn.set(xlabel="training compute (device-hours)", ylabel="pass rate", ylim=(0.1, 0.75))
        drawn.set_xticks(range(0, int(LAST) + 1, 4000))
        drawn.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


MEASURED = Path(__file__).parents[1] / "benchmarks" / "results"

MARKED = {"equal allocation": (GRAY, "s"), "forecast": (BLUE, "o"), "halving on the present score": (ORANGE, "^")}
"""Policies drawn, with color and marker."""


def allocation(path: Path) -> None:
    """Draw compute used against the share of studies in which a best arm was found."""
    result = json.loads((MEASURED / "allocation.json").read_text())
    figure, axes = new_figure(1, len(result["settings"]), (11, 4))
    for drawn, (setting, rows) in zip(axes, result["settings"].items(), strict=True):
        for policy, (color, marker) in MARKED.items():
            r = rows[policy]
            found, most = r["found_within_0.01"], r["compute_p90"]
            drawn.plot([r["compute_mean"], most], [found, found], color=color, lw=1.5)
            drawn.plot(r["compute_mean"], found, marker, color=color, ms=9)
            left = policy == "equal allocation"
            drawn.annotate(
                policy, (r["compute_mean"], found), xytext=(4 if left else 0, -18), textcoords="offset points",
                ha="right" if left else "left", color=color,
            )  # fmt: skip
        drawn.set_title(setting, loc="left", fontsize=10)
        drawn.set(xlim=(0, 1.05), ylim=(0, 1.05), xlabel="compute, as a share of equal allocation")
        drawn.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"found within .01, share of {result['studies']} studies")
    figure.savefig(path)


def climbs_and_falls(compute: Any) -> Any:
    """Rise according to the law, then fall to a third within a fifth of the run."""
    height = sigmoid(compute, 0.61, 2.5, 1500.0, 0.2)
    return height - 0.4 * np.clip((compute - 0.3 * LAST) / (0.1 * LAST), 0, 1)


def futures(path: Path) -> None:
    """Draw the forecasts from half of four runs, with the later evaluations."""
    runs = {
        "a clean rise": run(),
        "noise about a level": run(law=lambda c: np.full_like(c, 0.4), noise=0.04),
        "a run that has fallen": run(law=climbs_and_falls, noise=0.015),
        "nothing yet, then a late rise": run(law=lambda c: sigmoid(np.maximum(c - 0.55 * LAST, 0), 0.5, 2, 2500, 0.05)),
    }
    figure, axes = new_figure(1, 4, (18, 4.2))
    for drawn, (name, whole) in zip(axes, runs.items(), strict=True):
        shown = whole.first(len(whole) // 2)
        found = fit(shown)
        grid = np.linspace(shown.last_compute, LAST, 60)
        band = found.predict(grid, noise=True)
        law = found.draws.levels(grid).mean(axis=1)
        drawn.fill_between(grid, band.low, band.high, color=BLUE, alpha=0.18, lw=0)
        drawn.plot(grid, band.mean, color=BLUE, lw=2.2, label="forecast, 90% of evaluations")
        drawn.plot(grid, law, color=ORANGE, lw=1.2, ls="--", label="the law alone")
        drawn.plot(whole.compute, whole.metric, "o", color=GRAY, ms=3.5, mfc="none", label="later evaluations")
        drawn.plot(shown.compute, shown.metric, "o", color=INK, ms=3.5, label="shown")
        stays = found.posterior.stay_probability
        drawn.set_title(f"{name}: stays with probability {stays:.2f}", loc="left", fontsize=10)
        drawn.set(ylim=(0, 1), xlabel="compute, device-hours")
        drawn.locator_params(axis="x", nbins=5)
        drawn.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("pass rate")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path)


PICTURES: dict[str, Callable[[Path], None]] = {
    "meaning.png": meaning,
    "belief.png": belief,
    "comparison.png": comparison,
    "backtest.png": tested,
    "symptoms.png": symptoms,
    "futures.png": futures,
    "allocation.png": allocation,
}
"""File in docs/images, and what draws it."""


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> Any:
    """Return a figure and its axes."""
    from matplotlib import pyplot as plt

    return plt.subplots(rows, columns, figsize=size, dpi=110, layout="constrained")


if __name__ == "__main__":
    matplotlib.use("agg")
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    for name, draw in PICTURES.items():
        draw(place / name)
        print(place / name)
