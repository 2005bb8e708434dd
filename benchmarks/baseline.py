"""What a change of structure must leave equal: the bits of short lab runs, and what the reading commands print.

    python benchmarks/baseline.py --json before.json               # measure
    python benchmarks/baseline.py --versus before.json             # measure again, and list what differs
    python benchmarks/baseline.py reading --versus before.json     # only the reading commands (20 s)

Runs: plain, two generators, a mixture of experts, and one that is killed and resumed, which must equal the plain one.
Reading: fit, forecast, backtest, compare and frontier on ten simulated curves, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import runs
import scaling_simulation as simulation

from scalerl.cli.main import main as scalerl

Results = dict[str, Any]
PARTS = ("reading", "training")


def curves() -> dict[str, simulation.Run]:
    """Return ten curves: lawful ones with little and much noise, one of each departure, and one that falls."""
    random = np.random.default_rng(0)
    made = {
        f"lawful {rho} {noise}": simulation.lawful(random, rho, 1.5, noise)
        for rho, noise in ((1, "white"), (4, "white"), (4, "AR"), (16, "AR"))
    }
    return made | {name: draw(random, "AR") for name, draw in simulation.SCENARIOS.items()}


def write_points(place: Path) -> dict[str, Path]:
    """Write each curve as a file of points with settings, and one that falls; return the files by name."""
    files, rows_of = {}, {}
    for name, run in curves().items():
        rows_of[name] = [
            {"step": 10 * i, "flops": 1e12 * float(c), "pass_rate": float(m), "stderr": 0.01, "prompts": 512}
            for i, (c, m) in enumerate(zip(run.curve.compute, run.curve.metric, strict=True))
        ]
    rising = rows_of["lawful 4 AR"]
    rows_of["fallen"] = [row | {"pass_rate": row["pass_rate"] * (1 if i < 30 else 0.3)} for i, row in enumerate(rising)]
    for name, rows in rows_of.items():
        files[name] = place / f"{name.replace(' ', '-')}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


def printed(*words: str) -> Any:
    """Return what a command prints as JSON, or its error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = scalerl(list(words))
        except SystemExit as end:  # of the parser
            code = end.code
    return json.loads(out.getvalue()) if code == 0 else {"exit code": code, "error": err.getvalue()}


def reading() -> Iterator[tuple[str, Any]]:
    """Yield the output of every reading command on the ten curves."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        files = {name: path.name for name, path in write_points(Path(folder)).items()}
        for name, file in files.items():
            for command in ("fit", "forecast", "backtest"):
                yield f"{command} {name}", printed(command, file, "--json")
        names = list(files)
        for first, second in itertools.pairwise(names):
            yield f"compare {first}, {second}", printed("compare", files[first], "--versus", files[second], "--json")
        settings = Path("settings.csv")
        lines = [f"{file},{2 ** (i % 3)}" for i, file in enumerate(files.values())]
        settings.write_text("run,width\n" + "\n".join(lines) + "\n")
        words = ["--settings", settings.name, "--vary", "width", "--budget", "4e12", "--json"]
        yield "frontier", printed("frontier", *files.values(), *words)


def training() -> Iterator[tuple[str, Any]]:
    """Yield the digests of the results of short lab runs."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = runs.make_model(place / "model")
        runs.train(model, place / "plain")
        runs.train(model, place / "two", "--placement.generators", "2")
        words = ["train", "--run-dir", str(place / "experts"), *runs.RECIPE, "--model.experts", "4"]
        code, text = runs.call(*words, timeout=1800.0)  # with a warm start
        assert code == 0, text
        killed = runs.start(["train", "--model", str(model), "--run-dir", str(place / "killed"), *runs.SMALL])
        while len(runs.rows(place / "killed", "metrics.jsonl")) < 10:
            assert killed.poll() is None, killed.communicate()[0]
        killed.kill()
        killed.communicate()
        runs.finish("resume", str(place / "killed"), "--trust")
        for name in ("plain", "two", "experts", "killed"):
            outcome = json.dumps(runs.outcome(place / name), sort_keys=True)
            yield name, hashlib.sha256(outcome.encode()).hexdigest()


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield one line for each value that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in after or key not in before:
                yield f"{place}/{key}: {'missing' if key not in after else 'new'}"
            else:
                yield from differences(before[key], after[key], f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}[{i}]")
    elif before != after:
        yield f"{place}: {before!r:.200} -> {after!r:.200}"


def main() -> None:
    """Measure, print the digests, and compare with an earlier measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="reading or training; default: both")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--versus", type=Path)
    options = parser.parse_args()
    measured: Results = {"machine": platform.processor() or platform.machine()}
    for part in options.parts or PARTS:
        measured[part] = json.loads(json.dumps(dict({"reading": reading, "training": training}[part]())))
        digest = hashlib.sha256(json.dumps(measured[part], sort_keys=True).encode()).hexdigest()
        print(f"{part:<10} {len(measured[part])} results, sha256 {digest[:16]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    if options.versus:
        before = json.loads(options.versus.read_text())
        lines = [line for part in options.parts or PARTS for line in differences(before[part], measured[part], part)]
        print("\n".join(lines) or "equal")


if __name__ == "__main__":
    main()
