"""Measures the live page with 20 runs of 10,000 steps: time to open, CPU use while it follows runs, and delay.

    python benchmarks/watch.py                                  # needs the extra `watch`, playwright and Chromium
    python benchmarks/watch.py --runs 4 --steps 1000 --seconds 10 --json results.json

The run directories are generated, with rows as in training. Then every run gets a step every 1.5 s, and an evaluation
every `--every` steps in turn, while a browser shows the list and one run. CPU seconds are those of the server process,
including its fits, from /proc. Opening times are the fastest of five, because other load only adds to them; their CPU
seconds are those of server and browser together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scalerl.config import PRESETS, to_toml
from scalerl.config.base import replace
from scalerl.core.status import Heartbeat
from scalerl.training.catalog import METRICS

STEP_S = 1.5


def row(step: int) -> str:
    values = {name: round(random.random(), 6) for name in METRICS}
    used = {"device_hours": 4e-4 * step, "flops": 2e12 * step, "tokens": 50_000 * step, "step_s": STEP_S}
    return json.dumps({"step": step, **values, "truncation_rate": 0.01, **used}) + "\n"


def point(step: int, last: int) -> str:
    rate = 0.2 + 0.41 / (1 + (0.2 * last / step) ** 1.9) if step else 0.2
    found = {
        "step": step, "device_hours": 4e-4 * step, "flops": 2e12 * step, "tokens": 50_000 * step, "task": "arithmetic",
        "pass_rate": rate + random.gauss(0, 0.004), "stderr": 0.004, "prompts": 1000, "samples_per_prompt": 4,
    }  # fmt: skip
    return json.dumps(found) + "\n"


def make_runs(root: Path, runs: int, steps: int, every: int) -> list[Path]:
    paths = [root / f"run-{number:02d}" for number in range(runs)]
    for path in paths:
        path.mkdir(parents=True)
        config = replace(PRESETS["lab"], steps=2 * steps, seed=len(path.name))
        (path / "config.toml").write_text(to_toml(config), encoding="utf-8")
        (path / "metrics.jsonl").write_text("".join(row(step) for step in range(1, steps + 1)))
        (path / "points.jsonl").write_text("".join(point(step, steps) for step in range(0, steps + 1, every)))
    return paths


def start(root: Path) -> tuple[subprocess.Popen[str], str, float]:
    """Start the server; return it with its address and its start time in seconds."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "scalerl.cli", "watch", "--port", "0", str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"watch at +(\S+)", line):
            return process, found[1], time.perf_counter() - began
    raise SystemExit("the server did not start")


def cpu_s(pid: int, *, ended: bool = False) -> float:
    """Return the CPU seconds of a process, on request with those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11 : 15 if ended else 13]) / os.sysconf("SC_CLK_TCK")


def until(tab: Any, script: str, seconds: float = 60.0) -> float:
    """Wait until an expression is true in the page; return the time in seconds."""
    began = time.perf_counter()
    while not tab.evaluate(script):
        if time.perf_counter() - began > seconds:
            raise SystemExit(f"waited {seconds} s for {script}")
        time.sleep(0.02)
    return time.perf_counter() - began


def opened(tab: Any, address: str, script: str) -> tuple[float, float]:
    """Return wall-clock and CPU seconds from the request of an address until an expression is true in its page."""
    tab.goto("about:blank")
    began, used = time.perf_counter(), children_cpu_s()
    tab.goto(address)
    until(tab, script)
    return time.perf_counter() - began, children_cpu_s() - used


def children_cpu_s() -> float:
    """Return the CPU seconds of all descendants of this process: server, browser and its driver."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    below, waiting = set[int](), [os.getpid()]
    while waiting:
        parent = waiting.pop()
        waiting += [pid for pid, own in parents.items() if own == parent]
        below |= {pid for pid, own in parents.items() if own == parent}
    total = 0.0
    for pid in below:
        with contextlib.suppress(OSError):
            total += cpu_s(pid, ended=True)  # the browser replaces processes between two pages
    return total


def follow(paths: list[Path], pid: int, seconds: float, steps: int, every: int) -> tuple[float, int]:
    """Add steps to the runs for some seconds; return the CPU use of the server in cores, and the evaluations."""
    began, used, evaluations = time.perf_counter(), cpu_s(pid), 0
    turn = 0
    while time.perf_counter() - began < seconds:
        for number, path in enumerate(paths):
            step = steps + turn + 1
            with (path / "metrics.jsonl").open("a") as file:
                file.write(row(step))
            if (step + number * every // len(paths)) % every == 0:
                evaluations += 1
                with (path / "points.jsonl").open("a") as file:
                    file.write(point(step, steps))
        turn += 1
        time.sleep(max(0.0, began + turn * STEP_S - time.perf_counter()))
    return (cpu_s(pid) - used) / (time.perf_counter() - began), evaluations


def measure(options: argparse.Namespace, tab: Any, root: Path) -> dict[str, Any]:
    paths = make_runs(root / "runs", options.runs, options.steps, options.every)
    beats = [Heartbeat(path, phase="training") for path in paths]
    for beat in beats:
        beat.__enter__()
    process, address, started = start(root / "runs")
    found: dict[str, Any] = {"runs": options.runs, "steps": options.steps, "server_starts_s": started}
    listed = f"document.querySelectorAll('table.runs tbody tr').length === {options.runs}"
    try:
        found["list_opens_while_it_fits_s"], found["list_opens_while_it_fits_cpu_s"] = opened(tab, address, listed)
        address = address.partition("?")[0]  # the browser has the cookie now
        began, used = time.perf_counter(), cpu_s(process.pid)
        until(tab, "!document.body.textContent.includes('fitting …')", 600)
        found["all_runs_fitted_s"] = time.perf_counter() - began
        found["cpu_s_a_fit"] = (cpu_s(process.pid) - used) / options.runs
        print(json.dumps(found), flush=True)
        found["list_opens_s"], found["list_opens_cpu_s"] = min(opened(tab, address, listed) for _ in range(5))
        link = tab.evaluate("document.querySelector('table.runs a').getAttribute('href')")
        read = "document.querySelectorAll('.tile').length > 30"
        drawn = f"{read} && !!document.querySelector('#plot-curves .main-svg')"
        for name, script in {"run_opens": read, "run_opens_with_its_figure": drawn}.items():
            found[f"{name}_s"], found[f"{name}_cpu_s"] = min(opened(tab, address + link, script) for _ in range(5))
        print(json.dumps(found), flush=True)
        share, count = follow(paths, process.pid, options.seconds, options.steps, options.every)
        found |= {"following_a_run": share, "evaluations": count}
        opened(tab, address, listed)
        share, count = follow(paths, process.pid, options.seconds, 2 * options.steps, options.every)
        found |= {"following_the_list": share, "evaluations_of_the_list": count}
        share, _ = follow(paths, process.pid, options.seconds, 3 * options.steps, 10**9)
        found["following_the_list_without_evaluations"] = share
        late = []
        for number in range(5):
            with (paths[0] / "points.jsonl").open("a") as file:
                text = point(5 * options.steps, options.steps)
                file.write(re.sub(r'"pass_rate": [\d.]+', f'"pass_rate": 0.77{number}', text))
            late.append(until(tab, f"document.body.textContent.includes('0.77{number}')"))
        found["point_seen_after_s"] = max(late)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        for beat in beats:
            beat.__exit__(None, None, None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=200, help="steps between evaluations; default 200")
    parser.add_argument("--seconds", type=float, default=60.0, help="time to follow; default 60")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as root, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = measure(options, browser.new_page(viewport={"width": 1400, "height": 900}), Path(root))
        browser.close()
    for name, value in found.items():
        print(f"{name:<42} {value:.3g}" if isinstance(value, float) and math.isfinite(value) else f"{name:<42} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
