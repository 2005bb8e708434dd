"""Compares the curves of the lab on one machine, on Ray and on vLLM, while engines are killed.

    python benchmarks/placements.py [--seeds 3] [--kills 7] [--sides "one machine" Ray vLLM] [--out placements.json]

One machine: a trainer process and a generator process, deterministic. Ray: two engines and two trainer ranks (FSDP2
over gloo) as actors; in each run `--kills` engine actors are killed at random steps. vLLM (with `--vllm-python`): one
server on the CPU, with `--kills-vllm` kills. Prints the verdict of `scalerl compare` over FLOPs, each side against the
first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from work import machine

RAY = ["--placement.backend", "ray", "--placement.ray_address", "local", "--placement.generators", "2",
       "--placement.trainer_ranks", "2"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=7, help="engines killed in each run on Ray")
    parser.add_argument("--kills-vllm", type=int, default=0, help="servers killed in each run on vLLM")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--sides", nargs="+", default=["one machine", "Ray"])
    parser.add_argument("--vllm-python", default="", help="Python of an environment with vLLM")
    parser.add_argument("--work", type=Path, default=Path("placements"), help="directory of the runs")
    parser.add_argument("--out", type=Path, default=Path("placements.json"))
    parser.add_argument("extra", nargs="*", help="options of `scalerl train`, after --")
    options = parser.parse_args()
    vllm = ["--placement.engine", "vllm", "--placement.vllm_python", options.vllm_python,
            "--placement.vllm_arguments", '["--enforce-eager"]', "--rollouts.slots", "64"]  # fmt: skip
    sides = {"one machine": ([], "", 0), "Ray": (RAY, "ray::EngineActor", options.kills),
             "vLLM": (vllm, "vllm.entrypoints", options.kills_vllm)}  # fmt: skip
    runs: dict[str, list[Path]] = {}
    figures: dict[str, Any] = {"machine": machine(), "runs": [], "comparisons": {}}
    for seed in range(options.seeds):  # sides alternate, so that other load on the machine affects all
        for name in options.sides:
            words, victims, kills = sides[name]
            path = options.work / f"{name.replace(' ', '_')}-{seed}"
            words = ["--preset", options.preset, "--seed", str(seed), *words, *options.extra]
            runs.setdefault(name, []).append(path)
            figures["runs"].append(train_and_kill(name, path, words, victims, random.Random(f"{name} {seed}"), kills))
            print(json.dumps(figures["runs"][-1]), flush=True)
    base, *others = options.sides
    for name in others:
        found = compare(runs[name], runs[base])
        figures["comparisons"][name] = found
        print(f"{name} against {base}: {found['sentence']}", flush=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


def train_and_kill(
    side: str, path: Path, words: list[str], victims: str, rng: random.Random, kills: int
) -> dict[str, Any]:
    """Train a run, and kill processes whose command contains a text at random steps; return a summary."""
    command = [sys.executable, "-m", "scalerl.cli", "train", "--run-dir", str(path), *words]
    began, done = time.monotonic(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        while not (path / "config.toml").exists() and process.poll() is None:
            time.sleep(0.2)
        steps = _steps(path)
        at = [steps * (number + rng.random()) / (kills + 1) for number in range(kills)]
        while process.poll() is None:
            if done < kills and len(_rows(path)) >= at[done]:
                alive = [pid for pid, line in descendants(process.pid) if victims in line]
                if alive:
                    os.kill(rng.choice(alive), signal.SIGKILL)
                    done += 1
            time.sleep(0.2)
    if process.returncode:
        sys.exit(f"{path} ended with exit code {process.returncode}; see {path.with_suffix('.log')}")
    last = _rows(path)[-1]
    found = {"side": side, "run": str(path), "seconds": time.monotonic() - began, "steps": last["step"], "killed": done}
    names = ("engine_restarts", "resampled", "replay_difference", "staleness_mean", "staleness_max", "step_s")
    return {**found, **{name: last[name] for name in names if name in last}}


def compare(first: list[Path], second: list[Path]) -> dict[str, Any]:
    """Return the result of `scalerl compare --json` over FLOPs, or its error."""
    paths = [*map(str, first), "--versus", *map(str, second)]
    command = [sys.executable, "-m", "scalerl.cli", "compare", "--compute", "flops", "--json", *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"sentence": done.stderr.strip()}


def descendants(pid: int) -> list[tuple[int, str]]:
    """Return (process id, command line) of all descendants of a process."""
    found: list[tuple[int, str]] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                line = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()
                found += [(int(child), line), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):  # the process has ended
        pass
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows so far; the run may be writing the next one."""
    file = path / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def _steps(path: Path) -> int:
    text = (path / "config.toml").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("steps = ")).split("=")[1])


if __name__ == "__main__":
    main()
