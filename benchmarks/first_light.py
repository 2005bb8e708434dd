"""Runs the embedded lab: time, climb, and the forecast at half the compute compared with the end.

    python benchmarks/first_light.py --seeds 0 1 2 3 4 --out first_light.json [-- --any.field VALUE ...]

Each seed is one `scalerl train` in a separate process. "End" is the mean of the last three evaluations; the forecast is
fitted to the evaluations up to half of the final compute and compared at the same three computes. Prints a table and
writes JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from work import rows, train

from scalerl.reading.curves import Curve, fit


def measure(seed: int, directory: Path, extra: list[str]) -> dict[str, Any]:
    """Run one seed and return its figures."""
    began = time.perf_counter()
    train(directory, ["--seed", str(seed), *extra])
    return {"seed": seed, "wall_s": time.perf_counter() - began, **figures(directory)}


def figures(directory: Path) -> dict[str, Any]:
    """Return the figures of a finished run."""
    curve = Curve.read(directory, compute="flops")
    half = curve.between(most=curve.last_compute / 2)
    found = fit(half)
    last_3 = curve.metric[-3:]
    end, ahead = last_3.mean(), found.predict(curve.compute[-3:])
    noisy = found.predict(curve.compute[-3:], noise=True)
    metrics, points = rows(directory / "metrics.jsonl"), rows(directory / "points.jsonl")
    idle = {side: statistics.mean(row[f"{side}_idle"] for row in metrics[5:]) for side in ("generator", "trainer")}
    whole = fit(curve)
    return {
        "evaluations": len(curve),
        "start": float(curve.metric[0]),
        "end": float(end),
        "climb": float(end - curve.metric[0]),
        "half_forecast": float(ahead.mean.mean()),
        "half_error": float(ahead.mean.mean() - end),
        "half_band": [float(ahead.low.mean()), float(ahead.high.mean())],
        "band_holds_end": bool(ahead.low.mean() <= end <= ahead.high.mean()),
        "noise_band_holds_last_points": float(((noisy.low <= last_3) & (last_3 <= noisy.high)).mean()),
        "A": whole.asymptote.mean, "A_low": whole.asymptote.low, "A_high": whole.asymptote.high,
        "B": whole.efficiency.mean,
        "training_s": points[-1]["device_hours"] * 3600,
        "evaluation_s": sum(point["eval_s"] for point in points),
        "slower_side_idle": min(idle.values()), "idle": idle,
        "swap_ms": statistics.median(row["swap_ms"] for row in metrics[1:]),
        "first_log_ratio": max(abs(metrics[0]["log_ratio_min"]), abs(metrics[0]["log_ratio_max"])),
        "staleness": [statistics.mean(r["staleness_mean"] for r in metrics), max(r["staleness_max"] for r in metrics)],
        "retired": metrics[-1]["retired_prompts"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("first_light.json"))
    parser.add_argument("--keep", type=Path, help="directory to keep the runs in")
    parser.add_argument("extra", nargs="*", help="options of `scalerl train`, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        parent = options.keep or Path(scratch)
        rows = []
        for seed in options.seeds:
            rows.append(measure(seed, parent / f"seed-{seed}", options.extra))
            row = rows[-1]
            print(
                f"seed {seed}: {row['wall_s']:.0f} s ({row['training_s']:.0f} training, "
                f"{row['evaluation_s']:.0f} evaluation), "
                f"{row['start']:.3f} -> {row['end']:.3f}, half predicts {row['half_forecast']:.3f} "
                f"({row['half_error']:+.3f}, band {row['half_band'][0]:.3f} to {row['half_band'][1]:.3f} "
                f"{'holds' if row['band_holds_end'] else 'MISSES'}), slower side idle {row['slower_side_idle']:.1%}, "
                f"first log ratio {row['first_log_ratio']:.1e}, A {row['A']:.3f} B {row['B']:.2f}",
                flush=True,
            )
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
