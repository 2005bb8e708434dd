"""Writes curve.png and summary.json of a run, and returns its closing lines. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.core.files import atomic_file, write_whole
from scalerl.core.outputs import why_not
from scalerl.core.run_files import PICTURE, SUMMARY, RunInfo
from scalerl.core.types import EvalPoint
from scalerl.reading.curves import CurveError
from scalerl.reading.curves.estimate import as_json, with_error
from scalerl.reading.pages.drawing import picture
from scalerl.reading.pages.outlook import Outlook
from scalerl.reading.pages.run import RunView


def write_summary(directory: Path, info: RunInfo, points: Sequence[EvalPoint]) -> list[str]:
    """Write curve.png and summary.json; return closing lines with the outlook of each task and the paths."""
    view, note = RunView(info, (), points, directory), "; ".join(info.notes)
    suites = {task: points_of_task[-1] for task, points_of_task in view.points.items() if task not in view.tasks}
    lines, outlooks = [note] if note else [], dict[str, Outlook | None]()
    for task in view.tasks:
        lines += [f"task      {task}"] if len(view.tasks) > 1 else []
        outlooks[task] = None
        try:
            outlooks[task] = outlook = view.outlook(task)
            lines += outlook.lines()
        except CurveError as error:
            lines.append(f"forecast  none: {error}")
    lines += [f"suite     {name}: {_suite_line(last)}" for name, last in suites.items()]
    if any(outlooks.values()):
        of_tasks = {task: outlook.to_dict() if outlook else None for task, outlook in outlooks.items()}
        values: dict[str, Any] = {"tasks": of_tasks} if len(of_tasks) > 1 else next(filter(None, of_tasks.values()))
        of_suites = {"suites": {name: as_json(point.to_dict()) for name, point in suites.items()}} if suites else {}
        try:
            with atomic_file(directory / PICTURE) as temporary:
                temporary.write_bytes(picture([outlook.fit for outlook in outlooks.values() if outlook], note))
            write_whole(directory / SUMMARY, json.dumps({**values, **of_suites}, indent=1) + "\n")
            lines.append(f"picture   {directory / 'curve.png'}")
        except OSError as error:  # the run is complete even without the figure
            lines.append(f"picture   none: {why_not(directory / 'curve.png', error)}")
    return [*lines, f"run       {directory}"]


def _suite_line(point: EvalPoint) -> str:
    """Return the last point of an evaluation suite as text; suites have no forecast."""
    return (
        f"mean@{point.samples_per_prompt} {with_error(point.pass_rate, point.stderr)} at step {point.step} "
        f"({point.prompts} prompts)"
    )
