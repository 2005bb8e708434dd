"""Measures what evaluations cost a run of the lab, with and without `evaluation.overlap`.

    python benchmarks/evaluations.py [--steps 100] [--rounds 1] [--out evaluations.json] [-- --any.field VALUE ...]

Each arm trains the same steps, and evaluates only at both ends, 10 times or 50 times in between. `waited` is the time
in which the trainer does nothing else because of evaluations: all of an evaluation that pauses training, and
`eval_wait_s` of one that does not. The last one is always waited for, so its share of the time of the command is left
out of the last column. `longer` and `more CPU` compare with the arm that evaluates at both ends, over all processes.
Points of arms with the same evaluations are compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from work import machine, train

COSTS = {"device_hours", "eval_s", "eval_devices", "eval_flops", "eval_wait_s", "replay_difference"}
"""Columns of a point that are measured, or that only overlapped evaluations have."""


def measured(words: list[str]) -> dict[str, Any]:
    """Train once; return seconds, CPU seconds, the trainer's wait, and the points."""
    with tempfile.TemporaryDirectory() as place:
        run, before, began = Path(place) / "run", resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        steps = train(run, words)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        points = [json.loads(line) for line in (run / "points.jsonl").read_text().splitlines()]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    waited = sum(point.get("eval_wait_s", point["eval_s"]) for point in points)
    return {
        "seconds": seconds,
        "cpu_s": cpu,
        "waited_s": waited,
        "evaluating_s": sum(point["eval_s"] for point in points),
        "trained_s": sum(row["step_s"] for row in steps),
        "last_wait_s": points[-1].get("eval_wait_s", points[-1]["eval_s"]),
        "points": [{name: value for name, value in point.items() if name not in COSTS} for point in points],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("evaluations.json"))
    parser.add_argument("extra", nargs="*", help="options of `scalerl train`, after --")
    options = parser.parse_args()
    arms = {
        f"{count or 'both ends'}{', overlap' * overlap}": [
            *("--steps", str(options.steps), "--evaluation.every", str(options.steps // (count or 1))),
            *("--evaluation.prompts", "100", "--evaluation.samples", "4", "--checkpoint.every", str(options.steps)),
            *("--evaluation.overlap", str(overlap).lower(), *options.extra),
        ]
        for count in (0, 10, 50)
        for overlap in (False, True)
        if count or not overlap
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, words in arms.items():
            found[name].append(measured(words))
    equal = {
        str(count): all(
            a["points"] == b["points"] for a, b in zip(found[str(count)], found[f"{count}, overlap"], strict=True)
        )
        for count in (10, 50)
    }
    rows = {name: {key: statistics.median(one[key] for one in own) for key in own[0] if key != "points"}
            for name, own in found.items()}  # fmt: skip
    base = rows["both ends"]
    print("evaluations        time   longer      CPU  more CPU   waited   share   before the last")
    for name, row in rows.items():
        print(
            f"{name:14s} {row['seconds']:6.1f} s {row['seconds'] - base['seconds']:6.1f} s {row['cpu_s']:6.1f} s "
            f"{row['cpu_s'] - base['cpu_s']:7.1f} s {row['waited_s']:6.1f} s {row['waited_s'] / row['seconds']:7.1%} "
            f"{(row['waited_s'] - row['last_wait_s']) / row['seconds']:17.1%}"
        )
    print(f"equal points with and without overlap: {equal}")
    options.out.write_text(json.dumps({"machine": machine(), "arms": rows, "equal_points": equal}, indent=1) + "\n")


if __name__ == "__main__":
    main()
