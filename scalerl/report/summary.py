"""Writes curve.png and summary.json of a run, and returns its closing lines. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from scalerl.config import RunConfig
from scalerl.config.data import generated
from scalerl.report.outlook import Outlook, points_by_task, run_outlook
from scalerl.scaling import CurveError
from scalerl.types import EvalPoint


def summarise(directory: Path, config: RunConfig, points: Sequence[EvalPoint]) -> list[str]:
    """Write curve.png and summary.json; return the outlook of each task and the paths for the user."""
    note, tasks = data_note(config), points_by_task(points)
    lines, found = [note] if note else [], dict[str, Outlook | None]()
    for task, own in tasks.items():
        lines += [f"task      {task}"] if len(tasks) > 1 else []
        try:
            ahead = run_outlook(own, default_axis(config), label=f"{directory.name} · {task}")
        except CurveError as error:
            found[task] = None
            lines.append(f"forecast  none: {error}")
        else:
            found[task] = ahead
            lines += ahead.lines()
    if any(found.values()):
        write_summary(directory, found, note)
        lines.append(f"picture   {directory / 'curve.png'}")
    return [*lines, f"run       {directory}"]


def write_summary(directory: Path, found: Mapping[str, Outlook | None], note: str) -> None:
    """Write curve.png and summary.json with all tasks of a run; None stands for a task without a forecast."""
    from scalerl.report.figures import save_curves

    save_curves(directory / "curve.png", [ahead.fit for ahead in found.values() if ahead], note)
    values = {task: ahead.to_dict() if ahead else None for task, ahead in found.items()}
    content = {"tasks": values} if len(values) > 1 else next(iter(values.values()))
    (directory / "summary.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def refresh(directory: Path, config: RunConfig, ahead: Outlook, note: str) -> Path:
    """Update the files of a run directory after a new fit of one task; return the path of the picture.

    If the run has several tasks, the summary and the picture of all tasks stay unchanged, because the fit has only one.
    """
    from scalerl.report.figures import save_curves

    task = ahead.fit.curve.label
    if len(config.tasks) == 1:
        write_summary(directory, {task: ahead}, note)
        return directory / "curve.png"
    path = directory / f"curve-{task}.png"
    save_curves(path, [ahead.fit], note)
    return path


def default_axis(config: RunConfig) -> str:
    """Return the default compute axis of a fit: device-hours on GPUs, counted FLOPs on CPU."""
    return "device_hours" if config.hardware.device == "cuda" else "flops"


def data_note(config: RunConfig) -> str:
    """Return what a reader of the curve must know about the data."""
    noise = {task.curve: f"{task.label_noise:.0%}" for task in generated(config.data) if task.label_noise}
    if not noise:
        return ""
    alike = len(noise) == len(config.tasks) and len(set(noise.values())) == 1
    amount = next(iter(noise.values())) if alike else ", ".join(f"{share} ({kind})" for kind, share in noise.items())
    return f"{amount} of the reference answers are wrong on purpose, which caps the pass rate"
