"""Computes everything that a page about runs shows: fits, forecasts, backtests, and the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.scaling import Backtest, Comparison, Curve, CurveError, Fit, backtest, compare
from scalerl.view.outlook import Outlook, outlook
from scalerl.view.quantities import (
    QUANTITIES,
    Density,
    Side,
    Slope,
    common_asymptote,
    first_parts,
    joint_density,
    slope_at,
)
from scalerl.view.sources import Source, naming

FRACTIONS = (0.3, 0.5, 0.7)
"""Shares of a run's compute at which a backtest splits it."""


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """One run of a page."""

    name: str
    """Name, unique on the page."""

    side: int
    """The recipe: 0, or 1 for the runs after `--versus`."""

    curve: Curve
    """Points of the run, including those left out of the fit."""

    outlook: Outlook
    """Fit, forecast and advice."""

    slope: Slope
    """The fitted law as a straight line at the common ceiling."""

    density: Density | None
    """Joint posterior of A and B."""

    parts: tuple[Fit, ...]
    """Fits of the first parts of the run; empty if they have too few points."""

    backtest: Backtest | None
    """Scores of these fits; None if they have too few points."""

    untested: str
    """Reason why there is no backtest; empty if there is one."""

    notes: tuple[str, ...]
    """Notes about the data, and the warnings of the fit."""

    suites: tuple[Curve, ...] = ()
    """Curves of the run's evaluation suites; the label of each is the name of the suite."""

    def to_dict(self) -> dict[str, Any]:
        """Return the run's numbers as JSON values."""
        splits = self.backtest.to_dict() if self.backtest else {"splits": None}
        return {"name": self.name, "side": self.side, **self.outlook.to_dict(), **splits}


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
        return self.runs[0].curve.unit

    def headlines(self) -> list[str]:
        """Return the verdicts, one line each: the comparison, then each run's advice."""
        lines = [self.comparison.sentence] if self.comparison else []
        return lines + [f"{run.name}: {run.outlook.advice}" for run in self.runs]

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
    method: str = "posterior",
) -> Analysis:
    """Fit runs, and compare the two sides if there are two; `exclude_below` and `method` are passed to `fit`.

    Raises:
        CurveError: A run cannot be fitted, the runs have different compute axes, or a fit has no uncertainty.
    """
    sources = [*first, *second]
    axes = sorted({source.curve.axis for source in sources})
    if len(axes) > 1:
        raise CurveError(f"the runs are on different compute axes ({', '.join(axes)}); name one with --compute")
    outlooks = []
    for source in sources:
        with naming(source):
            outlooks.append(outlook(source.curve, method=method, exclude_below=exclude_below))
            if outlooks[-1].advice is None:
                raise CurveError(
                    f"method: got {method!r}, whose fit of this run has no intervals for the page; use posterior. "
                    f"`scalerl fit --method {method}` prints its numbers"
                )
    fits = [ahead.fit for ahead in outlooks]
    comparison = compare(fits[: len(first)], fits[len(first) :]) if second else None
    ceiling = comparison.common_asymptote if comparison else common_asymptote(fits)
    runs = [
        _run(source, int(i >= len(first)), ahead, ceiling, exclude_below)
        for i, (source, ahead) in enumerate(zip(sources, outlooks, strict=True))
    ]
    rng = np.random.default_rng(0)
    sides = {name: make(comparison, rng) for name, make in QUANTITIES.items()} if comparison else {}
    return Analysis(tuple(runs), ceiling, comparison, sides)


def _run(source: Source, side: int, ahead: Outlook, ceiling: float, exclude_below: float) -> RunAnalysis:
    window, method = source.curve.between(exclude_below), ahead.fit.method
    scores: Backtest | None = None
    parts: tuple[Fit, ...] = ()
    untested = ""
    try:
        scores, parts = backtest(window, FRACTIONS, method), first_parts(window, FRACTIONS, method)
    except CurveError as error:  # a run too short for a backtest is still shown
        untested = str(error)
    return RunAnalysis(
        name=source.name,
        side=side,
        curve=source.curve,
        outlook=ahead,
        slope=slope_at(ahead.fit.curve, ceiling, source.name),
        density=joint_density(ahead.fit.draws, source.curve.bounds),
        parts=parts,
        backtest=scores,
        untested=untested,
        notes=(*((source.note,) if source.note else ()), *ahead.fit.warnings),
        suites=source.suites,
    )
