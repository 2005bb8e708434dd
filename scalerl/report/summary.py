"""What a run leaves for its reader: curve.png, summary.json and closing words. It loads no torch and fits nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from scalerl.config import ArithmeticTask, RunConfig
from scalerl.report.outlook import Outlook, run_outlook
from scalerl.scaling import CurveError
from scalerl.types import EvalPoint


def summarise(directory: Path, config: RunConfig, points: Sequence[EvalPoint]) -> list[str]:
    """Write curve.png and summary.json; return the outlook and the paths for the user."""
    paths = [f"run       {directory}"]
    note = data_note(config)
    lines = [note] if note else []
    try:
        ahead = run_outlook(points, default_axis(config), label=f"{directory.name} · {points[0].task}")
    except CurveError as error:
        return [*lines, f"forecast  none: {error}", *paths]
    write_summary(directory, ahead, note)
    return [*lines, *ahead.lines(), f"picture   {directory / 'curve.png'}", *paths]


def write_summary(directory: Path, ahead: Outlook, note: str) -> None:
    """Write curve.png and summary.json."""
    from scalerl.report.figures import save_curve

    save_curve(directory / "curve.png", ahead.fit, note)
    (directory / "summary.json").write_text(json.dumps(ahead.to_dict(), indent=1) + "\n", encoding="utf-8")


def default_axis(config: RunConfig) -> str:
    """Return the compute axis a fit uses when none is asked for: device-hours on GPUs, counted FLOPs on CPU."""
    return "device_hours" if config.hardware.device == "cuda" else "flops"


def data_note(config: RunConfig) -> str:
    """Return what a reader of the curve must know about the data."""
    if isinstance(config.data, ArithmeticTask) and config.data.label_noise:
        return f"{config.data.label_noise:.0%} of the reference answers are wrong on purpose, which caps the pass rate"
    return ""
