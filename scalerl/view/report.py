"""Writes a page about runs, for `scalerl report` and for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.core.outputs import check_output
from scalerl.scaling import Curve
from scalerl.view.analysis import Analysis, analyze
from scalerl.view.frozen import write_page
from scalerl.view.outlook import Source, read_sources
from scalerl.view.page import analyses_of, large_figures, page, runs_page
from scalerl.view.run import FollowedRun


class Report(NamedTuple):
    """A page about runs that is not written yet."""

    page: dict[str, Any]
    large: dict[str, Any] | None
    """Large figures of the metrics of a single run directory."""


def report(
    runs: str | Path | Curve | Sequence[str | Path | Curve],
    versus: str | Path | Curve | Sequence[str | Path | Curve] = (),
    output: str | Path = "report.html",
    *,
    figures: str | Path | None = None,
) -> Path:
    """Write one page about runs that needs no network, as `scalerl report`, and return its path.

    Args:
        runs: Run directories, files of points, logs of any trainer, or curves; one or several.
        versus: Runs of another recipe, with which they are compared.
        output: Path of the page.
        figures: Directory for the figures and tables as files for papers (`papers.save_page`); None: none.

    Raises:
        CurveError: The runs cannot be read, fitted or compared.
        ConfigError: The page would replace an input or a file that is not a page, or plotly is not installed.
    """
    first, second = as_list(runs), as_list(versus)
    paths = [Path(run) for run in (*first, *second) if not isinstance(run, Curve)]
    place = check_output(Path(output), paths)
    sources = sources_of([*first, *second])
    analysis = analyze(sources[: len(first)], sources[len(first) :])
    report_page = page_of(sources, analysis)
    if figures is not None:
        from scalerl.view.papers import save_page

        save_page(Path(figures), report_page.page)
    write_page(place, report_page.page, report_page.large)
    return Path(output)


def page_of(sources: Sequence[Source], analysis: Analysis) -> Report:
    """Return the page about runs: that of the run directory if there is one, else that of several curves."""
    runs = [FollowedRun(source.path, source.name) for source in sources if source.info is not None]
    if len(sources) == len(runs) == 1:
        (run,), (only,) = runs, analysis.runs
        return Report(page(run, analyses_of(run, only.source.curve, analysis)), large_figures(run))
    return Report(runs_page(analysis, runs), None)


def as_list(runs: Any) -> list[Any]:
    """Return one run, or several, as a list."""
    return [runs] if isinstance(runs, str | Path | Curve) else list(runs)


def sources_of(runs: Sequence[str | Path | Curve]) -> list[Source]:
    """Return runs as sources; curves are named by their labels."""
    read = iter(read_sources([Path(run) for run in runs if not isinstance(run, Curve)]))
    names = [run.label or f"run {number}" if isinstance(run, Curve) else "" for number, run in enumerate(runs, 1)]
    twice = len(set(filter(None, names))) < len(list(filter(None, names)))
    return [
        Source(Path(name), f"{name} ({number})" if twice else name, run, None) if isinstance(run, Curve) else next(read)
        for number, (run, name) in enumerate(zip(runs, names, strict=True), 1)
    ]
