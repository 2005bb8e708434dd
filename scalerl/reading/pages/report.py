"""The page about runs of `scalerl report`, for the command and for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalerl.reading.pages.analysis import Analysis
from scalerl.reading.pages.figure import Figure
from scalerl.reading.pages.outlook import Source
from scalerl.reading.pages.page import (
    analyses_of,
    figures_of,
    large_figures,
    metrics_figures,
    page,
    run_figures,
    runs_page,
)
from scalerl.reading.pages.run import FollowedRun


class ReportPage(NamedTuple):
    """A page about runs that is not written yet."""

    page: dict[str, Any]
    figures: Mapping[str, Figure | None]
    """Its figures by name."""
    large: dict[str, Any] | None
    """Large figures of the metrics of a single run directory."""


def page_of(sources: Sequence[Source], analysis: Analysis) -> ReportPage:
    """Return the page about runs: that of the run directory if there is one, else that of several curves."""
    runs = [FollowedRun(source.path, source.name) for source in sources if source.info is not None]
    if len(sources) == len(runs) == 1:
        (run,), (only,) = runs, analysis.runs
        analyses = analyses_of(run, only.source.curve, analysis)
        return ReportPage(page(run, analyses), run_figures(run, analyses), large_figures(run))
    return ReportPage(runs_page(analysis, runs), {**figures_of(analysis), **metrics_figures(runs)}, None)
