"""Measures the CPU time of logging a run, for each tracker, relative to the step time of the lab.

    python benchmarks/loggers.py [--loggers tensorboard wandb mlflow] [--steps 480] [--step-s 0.32]

Rows with the lab's columns and an evaluation at every 15th step are logged as in a run, but faster. The CPU time is
that of the whole process, after the first 90 steps with all imports. Processes of the tracker's library and fits, which
the display computes anyway, are not counted. Neither are pictures, 0.3 s of a core for each
evaluation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from scalerl.core.types import EvalPoint
from scalerl.reading.curves import CurveError
from scalerl.reading.pages.outlook import run_outlook
from scalerl.training.config import read_config
from scalerl.training.config.overrides import plain_values
from scalerl.training.loop.run_info import default_axis, run_info
from scalerl.training.trackers import follow
from scalerl.training.trackers.base import makers_of
from scalerl.training.trackers.follow import Followers

COLUMNS, CHANGING = 39, 27
"""Columns of a row of metrics.jsonl, and how many of them change from row to row in a run of the lab (26.4)."""
EVERY = 15
"""Steps between evaluations, in the lab."""
WARM = 90


def point(step: int) -> EvalPoint:
    rate = 0.6 - 0.5 / (1 + step / 120) + 0.004 * math.sin(step)
    return EvalPoint(
        step=step, device_hours=step / 3e3, flops=step * 1e9, tokens=step * 1000, task="arithmetic", pass_rate=rate,
        stderr=0.004, prompts=1000, samples_per_prompt=4, truncated=0.01, mean_tokens=30.0, eval_s=2.0,
    )  # fmt: skip


def wait_until_logged(path: Path, name: str, step: int) -> None:
    while json.loads((path / "loggers.json").read_text() or "{}").get(name, {}).get("row", -1) < step:
        time.sleep(0.02)
    time.sleep(0.3)


def measure(name: str, steps: int, step_s: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{path}/mlflow.db"
        config = read_config(None, {"loggers": [name]})
        (path / "loggers.json").write_text("{}")
        settings, makers = plain_values(config, mode="json"), makers_of(config.loggers)
        followers = Followers(settings, run_info(config), path, makers, print)
        points: list[EvalPoint] = []
        handed_s, display_cpu, began_cpu = 0.0, 0.0, 0.0
        for step in range(steps + 1):
            row = {"step": step, **{f"column_{n}": n + step * (n < CHANGING) for n in range(COLUMNS)}}
            began = time.perf_counter()
            followers.step(row)
            if step % EVERY == 0:
                points.append(point(step))
                fitting = time.thread_time(), time.perf_counter()
                with suppress(CurveError):
                    run_outlook(points, default_axis(config))  # as the display
                display_cpu += time.thread_time() - fitting[0]
                handed_s -= time.perf_counter() - fitting[1]
                followers.evaluated(points)
            if step == WARM:
                wait_until_logged(path, name, step)
                handed_s, display_cpu, began_cpu = 0.0, 0.0, time.process_time()
            else:
                handed_s += time.perf_counter() - began
            time.sleep(0.002)
        wait_until_logged(path, name, steps)
        cpu_s = time.process_time() - began_cpu - display_cpu
        counted = steps - WARM
        print(
            f"{name:<12} {1e6 * handed_s / counted:7.0f} us per step in the run's thread, "
            f"{1e3 * cpu_s / counted:6.2f} ms of CPU per step in all = {cpu_s / counted / step_s:.2%} of {step_s:g} s",
            flush=True,
        )
        followers.ended("finished")
        followers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loggers", nargs="+", default=["tensorboard", "wandb", "mlflow"])
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--step-s", type=float, default=0.32, help="step time of the lab on this machine, seconds")
    arguments = parser.parse_args()
    os.environ.setdefault("WANDB_MODE", "offline")
    follow.LOGGER_FINISH_S = 120.0
    follow.curve_picture = lambda view: b""
    for name in arguments.loggers:
        measure(name, arguments.steps, arguments.step_s)


if __name__ == "__main__":
    main()
