"""Computes everything that a page about runs shows: fits, forecasts, backtests, and the comparison.

Axes in names: N points, D draws, S runs of a side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from scalerl.reading.curves import Backtest, Comparison, Curve, CurveError, Estimate, Fit, backtest, compare, fit
from scalerl.reading.curves.comparison import (
    ASSUMED_SEED_SD,
    common_ceiling,
    log_efficiency,
    recipe_ceilings,
    side_mean,
    summarize_ratio,
)
from scalerl.reading.curves.estimate import summarize
from scalerl.reading.curves.law import Array
from scalerl.reading.curves.price import shared_price
from scalerl.reading.curves.sampling import held_at
from scalerl.reading.pages.outlook import Outlook, Source, side_names, source_outlook

FRACTIONS = (0.3, 0.5, 0.7)
"""Shares of a run's compute at which a backtest splits it."""

FORECAST_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The same for the figure of earlier forecasts of a page about at most `FEW_RUNS` runs; others use `FRACTIONS`."""

FEW_RUNS = 3
"""Largest number of runs for `FORECAST_SHARES`: each of their fits takes about 0.02 s."""

COLORS = 8
"""Number of colors of the pages, "@s0" to "@s7"."""


@dataclass(frozen=True, eq=False)
class Slope:
    """One run as a straight line: log F against log C, of slope B (arXiv 2510.13786, figure 7).

    F(R) = C_mid^B / ((A - R0) / (R - R0) - 1), which is C^B if R follows the law. Points at or above A, or at or
    below R0, have no F and are left out.
    """

    label: str

    ceiling: float
    """A, fixed for the fit."""

    efficiency: float
    """B with A fixed."""

    midpoint: float
    """C_mid with A fixed, unit of the compute axis."""

    initial: float
    """R0 with A fixed."""

    span: Array
    """Smallest and largest compute above 0 of all points, shape (2,); a run may have no point with an F."""

    compute: Array
    """Compute of the points that have an F, shape (N,)."""

    share: Array
    """(R - R0) / (A - R0) of these points, shape (N,), in (0, 1)."""

    dropped: int
    """Number of points after compute 0 without an F."""

    def level(self, unit: float = 1.0) -> Array:
        """Return F of each point, shape (N,), with compute in multiples of `unit`."""
        return np.asarray((self.midpoint / unit) ** self.efficiency / (1 / self.share - 1))

    def line(self, compute: Array, unit: float = 1.0) -> Array:
        """Return C^B, with compute in multiples of `unit`; any shape."""
        return np.asarray((np.asarray(compute) / unit) ** self.efficiency)


def slope_at(curve: Curve, ceiling: float, label: str = "") -> Slope:
    """Fit a curve with its ceiling fixed, and transform its points to a straight line."""
    held, draws = held_at(curve, ceiling)
    initial = float(draws.initial.mean())
    after_N = curve.compute > 0
    share_N = (curve.metric[after_N] - initial) / (held - initial)
    usable_N = (share_N > 0) & (share_N < 1)
    return Slope(
        label=label or curve.label,
        ceiling=held,
        efficiency=float(np.exp(np.log(draws.efficiency).mean())),
        midpoint=float(np.exp(np.log(draws.midpoint).mean())),
        initial=initial,
        span=curve.compute[after_N][[0, -1]],
        compute=curve.compute[after_N][usable_N],
        share=share_N[usable_N],
        dropped=int((~usable_N).sum()),
    )


def common_unit(slopes: Sequence[Slope]) -> float:
    """Return a unit of compute in which all lines pass near each other: the geometric mean of the midpoints."""
    return float(np.exp(np.mean([np.log(slope.midpoint) for slope in slopes])))


def height_range(slopes: Sequence[Slope], unit: float) -> tuple[float, float]:
    """Return the range of F in a figure; it follows the lines, because F of points near the ceiling can be any value.

    `unit` is a unit of compute, in the unit of the axis.
    """
    heights = [slope.line(slope.span, unit) for slope in slopes]
    return float(np.min(heights)) / 4, float(np.max(heights)) * 6


def compared(
    sources: Sequence[Source], fits: Sequence[Fit], count: int, terms: Mapping[str, Any], at: str | float | None
) -> Comparison:
    """Return the comparison of the first runs with the others, with their names."""
    names = [source.name for source in sources]
    price = shared_price(terms.get("price"), [source.terms({}).get("price") for source in sources])
    return compare(fits[:count], fits[count:], names=side_names([names[:count], names[count:]]), price=price, at=at)


class Side(NamedTuple):
    """One quantity of a recipe in a comparison, and of each of its runs."""

    recipe: Estimate
    """Estimate from all runs, including the scatter between seeds."""

    runs: tuple[Estimate, ...]
    """Estimate from each run, shape (S,)."""


def climb_ends(comparison: Comparison) -> tuple[Side, Side]:
    """Return where the climbs of both recipes end, from the draws that `compare` uses."""
    rng = np.random.default_rng(0)

    def ends(fits: tuple[Fit, ...]) -> Side:
        draws = [rng.permutation(recipe_ceilings(f)) for f in fits]
        recipe_D = side_mean(draws, np.full(len(draws[0]), comparison.seed_sd), rng)
        return Side(summarize(recipe_D), tuple(map(summarize, draws)))

    return ends(comparison.sides[0]), ends(comparison.sides[1])


def sides_of(comparison: Comparison) -> dict[str, tuple[Side, Side]]:
    """Return the ceiling A of both recipes, and B at the common ceiling, by the name of the attribute of a fit."""
    rng = np.random.default_rng(0)

    def steepness(fits: tuple[Fit, ...]) -> Side:
        log_SD = [log_efficiency(f.curve, comparison.common_asymptote, comparison.seed_sd, rng) for f in fits]
        return Side(summarize_ratio(np.mean(log_SD, axis=0)), tuple(summarize_ratio(log_D) for log_D in log_SD))

    first, second = comparison.sides
    return {"asymptote": climb_ends(comparison), "efficiency": (steepness(first), steepness(second))}


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """One run of a page."""

    source: Source
    """Name, unique on the page, with all points of the run, also those left out of the fit, and its suites."""

    side: int
    """The recipe: 0, or 1 for the runs after `--versus`."""

    color: str
    """Color on the page: one for each run, or one for each recipe."""

    outlook: Outlook
    """Fit, forecast and advice."""

    slope: Slope
    """The fitted law as a straight line at the common ceiling."""

    parts: tuple[Fit, ...]
    """Fits of the first parts of the run, the shortest first; empty if they have too few points."""

    backtest: Backtest | None
    """Scores of the fits at `FRACTIONS`; None if they have too few points."""

    untested: str
    """Reason why there is no backtest; empty if there is one."""

    def to_dict(self) -> dict[str, Any]:
        """Return the run's numbers as JSON values."""
        splits = self.backtest.to_dict() if self.backtest else {"splits": None}
        return {"name": self.source.name, "side": self.side, **self.outlook.to_dict(), **splits}


@dataclass(frozen=True, eq=False)
class Analysis:
    """All runs of a page."""

    runs: tuple[RunAnalysis, ...]
    """The runs of the first side, then those of the second."""

    ceiling: float
    """The common ceiling, at which steepness is compared."""

    comparison: Comparison | None
    """None without `--versus`."""

    sides: dict[str, tuple[Side, Side]]
    """Estimates of both recipes by quantity; empty without `--versus`."""

    @property
    def axis(self) -> str:
        """Unit of the compute axis that all runs share."""
        return self.runs[0].source.curve.unit

    def headlines(self) -> list[str]:
        """Return the verdicts, one line each: the comparison, then each run's advice."""
        lines = [self.comparison.sentence] if self.comparison else []
        return lines + [f"{run.source.name}: {run.outlook.advice}" for run in self.runs]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of the page as JSON values; docs/json.md has the keys."""
        return {
            "runs": [run.to_dict() for run in self.runs],
            "comparison": self.comparison.to_dict() if self.comparison else None,
        }


def analyze(
    first: Sequence[Source],
    second: Sequence[Source] = (),
    exclude_below: float = 0.0,
    outlooks: Sequence[Outlook] = (),
    terms: Mapping[str, Any] = MappingProxyType({}),
    at: str | float | None = None,
) -> Analysis:
    """Fit runs, and compare the two sides if there are two.

    Args:
        first: Runs of the first side.
        second: Runs of the second side; empty: no comparison.
        exclude_below: As in `fit`.
        outlooks: Of all runs, if they are known.
        terms: Smallest gain and price, `min_gain` and `price`; those of the runs if they are missing or None.
        at: Compute at which the lead of a side is forecast, as for `compare`.

    Raises:
        CurveError: A run cannot be fitted, or the runs have different compute axes.
    """
    if at is not None and not second:
        raise CurveError(
            f"at={at} (--at) is the compute at which two recipes are compared; give the runs of the other one "
            "(--versus)"
        )
    sources = [*first, *second]
    axes = sorted({source.curve.axis for source in sources})
    if len(axes) > 1:
        raise CurveError(f"the runs are on different compute axes ({', '.join(axes)}); name one with --compute")
    outlooks = outlooks or [source_outlook(source, exclude_below=exclude_below, **terms) for source in sources]
    fits = [outlook.fit for outlook in outlooks]
    comparison = compared(sources, fits, len(first), terms, at) if second else None
    low, high = fits[0].curve.bounds
    ceiling = comparison.common_asymptote if comparison else common_ceiling(fits, ASSUMED_SEED_SD * (high - low))
    runs = []
    for number, (source, outlook) in enumerate(zip(sources, outlooks, strict=True)):
        side = int(number >= len(first))
        color = f"@s{side if second else number % COLORS}"
        moments = FORECAST_SHARES if len(sources) <= FEW_RUNS else FRACTIONS
        runs.append(_run(source, side, color, outlook, ceiling, exclude_below, moments))
    return Analysis(tuple(runs), ceiling, comparison, sides_of(comparison) if comparison else {})


def _run(
    source: Source,
    side: int,
    color: str,
    outlook: Outlook,
    ceiling: float,
    exclude_below: float,
    moments: Sequence[float],
) -> RunAnalysis:
    window = source.curve.between(exclude_below)
    scores: Backtest | None = None
    parts: tuple[Fit, ...] = ()
    untested = ""
    try:
        scores = backtest(window, FRACTIONS)
        fits_by_share = {split.fraction: split.fit for split in scores.splits}
        parts = tuple(
            fits_by_share.get(share) or fit(window.between(most=share * window.last_compute)) for share in moments
        )
    except CurveError as error:  # a run too short for a backtest is still shown
        untested = str(error)
    slope = slope_at(outlook.fit.curve, ceiling, source.name)
    return RunAnalysis(source, side, color, outlook, slope, parts, scores, untested)
