"""Rows and evaluations of a synthetic run, and a logger that records its calls."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from scalerl.core.types import EvalPoint


def point(step, task="arithmetic", rate=None):
    """Return an evaluation on the law 0.1 + 0.5 / (1 + 60 / step), with 0.6 as its ceiling."""
    level = 0.6 - 0.5 / (1 + step / 60) if rate is None else rate
    return EvalPoint(
        step=step, device_hours=step / 1e3, flops=step * 1e9, tokens=step * 1000, task=task, pass_rate=level,
        stderr=0.004, prompts=1000, samples_per_prompt=2, truncated=0.0, mean_tokens=10.0, eval_s=1.0,
    )  # fmt: skip


def row(step):
    return {"step": step, "pass_rate": step / 100, "entropy": 0.5, "occupancy": math.nan, "truncation_rate": 0.0}


def play(followers, first, last, every=5):
    """Train the steps from first to last, with an evaluation at each multiple of `every`."""
    points = [point(step) for step in range(0, first, every)]
    for step in range(first, last + 1):
        if step:
            followers.step(row(step))
        if step % every == 0:
            points.append(point(step))
            followers.evaluated(points)


class Remembers:
    """A custom logger that records its calls."""

    def __init__(self, file, slow=0.0, fails_in=""):
        self.file, self.slow, self.fails_in = Path(file), slow, fails_in

    def _write(self, *call):
        time.sleep(self.slow)
        if call[0] == self.fails_in:
            raise ValueError(f"no {call[0]} today")
        with self.file.open("a") as out:
            out.write(json.dumps(call) + "\n")

    def start(self, config, run):
        self._write("start", config["steps"], run.name, run.id, run.resumed_step)
        return run.id or "number-7"

    def log(self, metrics, step):
        self._write("log", dict(metrics), step)

    def figure(self, name, png, step):
        self._write("figure", name, png.name, png.read_bytes()[1:4].decode(), step)

    def finish(self, state):
        self._write("finish", state)


def calls(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]
