"""Writes curve.png and summary.json of a run, and returns its closing lines. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.config import RunConfig
from scalerl.core.files import whole, write_whole
from scalerl.core.outputs import why_not
from scalerl.scaling import CurveError
from scalerl.types import EvalPoint
from scalerl.view.figures import picture
from scalerl.view.outlook import Outlook, data_note
from scalerl.view.run import RunView


def summarize(directory: Path, config: RunConfig, points: Sequence[EvalPoint]) -> list[str]:
    """Write curve.png and summary.json; return closing lines with the outlook of each task and the paths."""
    view, note = RunView(config, (), points), data_note(config)
    suites = {task: own[-1] for task, own in view.points.items() if task not in view.tasks}
    lines, outlooks = [note] if note else [], dict[str, Outlook | None]()
    for task in view.tasks:
        lines += [f"task      {task}"] if len(view.tasks) > 1 else []
        outlooks[task] = None
        try:
            outlooks[task] = ahead = view.outlook(task)
            lines += ahead.lines()
        except CurveError as error:
            lines.append(f"forecast  none: {error}")
    lines += [f"suite     {name}: {_suite_line(last)}" for name, last in suites.items()]
    if any(outlooks.values()):
        try:
            write_summary(directory, outlooks, note, suites)
            lines.append(f"picture   {directory / 'curve.png'}")
        except OSError as error:  # the run is complete even without the figure
            lines.append(f"picture   none: {why_not(directory / 'curve.png', error)}")
    return [*lines, f"run       {directory}"]


def _suite_line(point: EvalPoint) -> str:
    """Return the last point of an evaluation suite as text; suites have no forecast."""
    return (
        f"mean@{point.samples_per_prompt} {point.pass_rate:.3f} ± {point.stderr:.3f} at step {point.step} "
        f"({point.prompts} prompts)"
    )


def write_summary(
    directory: Path, outlooks: Mapping[str, Outlook | None], note: str, suites: Mapping[str, EvalPoint]
) -> None:
    """Write curve.png and summary.json with all tasks of a run.

    Args:
        directory: Directory of the run.
        outlooks: Outlooks of the tasks; None for a task without a forecast.
        note: Note about the data.
        suites: Last points of evaluation suites.
    """
    with whole(directory / "curve.png") as temporary:
        temporary.write_bytes(picture([ahead.fit for ahead in outlooks.values() if ahead], note))
    values = {task: ahead.to_dict() if ahead else None for task, ahead in outlooks.items()}
    content: dict[str, Any] = {"tasks": values} if len(values) > 1 else next(filter(None, values.values()))
    last = {"suites": {name: point.to_dict() for name, point in suites.items()}} if suites else {}
    write_whole(directory / "summary.json", json.dumps({**content, **last}, indent=1) + "\n")
