"""Measures accuracy, coverage and speed of `scalerl.reading.curves`, on simulated runs with known truth.

    python benchmarks/scaling_accuracy.py                        # every section, 400 curves per cell (about 40 minutes)
    python benchmarks/scaling_accuracy.py cells --curves 100     # one section, fewer curves
    python benchmarks/scaling_accuracy.py --json results.json    # also write JSON

Sections: cells (coverage, width and error for curves that follow the law), departures (runs that do not),
identification (accuracy of the ceilings that count as identified), kinds (coverage and identified ceilings for every
kind of world), falls (runs that have fallen), decisions (continue or stop), comparisons (two recipes), speed.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scaling_simulation import EFFICIENCIES, FALLS, KINDS, NOISE, NOISES, RHOS, SCENARIOS, Run, lawful, observed

from scalerl.reading.curves import BASELINES, Curve, Fit, compare, fit, paper_fit, sigmoid
from scalerl.reading.curves.comparison import AHEAD, LATER, UNDECIDED
from scalerl.reading.curves.falls import has_fallen

HORIZONS = np.array([2.0, 4.0, 10.0])
"""Multiples of the last compute at which forecasts are scored."""

NAMES = ("A", "2x", "4x", "10x")

Result = dict[str, Any]


def stream(seed: int, *key: object) -> np.random.Generator:
    """Return a separate random stream for every cell, independent of the sections that run."""
    return np.random.default_rng([seed, *(sum(str(part).encode()) for part in key)])


def judged(run: Run, fitted: Fit) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the errors, hits (0 or 1) and widths of A and the three forecasts, each of shape (4,)."""
    truth = np.array([run.asymptote, *run.truth(HORIZONS)])
    band, a = fitted.predict(HORIZONS), fitted.asymptote
    mean, low, high = np.append(a.mean, band.mean), np.append(a.low, band.low), np.append(a.high, band.high)
    return mean - truth, (low <= truth) & (truth <= high), high - low


def rms(errors: list[np.ndarray]) -> np.ndarray:
    return np.sqrt(np.mean(np.square(errors), axis=0))


def cells(curves: int, seed: int) -> Result:
    """Measure coverage and width of nominal 90% intervals in every cell, and errors of all forecasts."""
    rows, errors = [], {name: [] for name in ("posterior", "paper", *BASELINES)}
    for rho in RHOS:
        for noise in NOISES:
            for efficiency in EFFICIENCIES:
                rng, found = stream(seed, rho, noise, efficiency), []
                for _ in range(curves):
                    run = lawful(rng, rho, efficiency, noise)
                    found.append(judged(run, fit(run.curve)))
                    truth = run.truth(HORIZONS)
                    errors["posterior"].append(found[-1][0][1:])
                    errors["paper"].append(paper_fit(run.curve).level(HORIZONS) - truth)
                    for name, make in BASELINES.items():
                        errors[name].append(make(run.curve)(HORIZONS) - truth)
                error, hit, width = (np.array(part) for part in zip(*found, strict=True))
                rows.append({
                    "rho": rho, "noise": noise, "B": efficiency,
                    "coverage": hit.mean(axis=0).tolist(), "width": width.mean(axis=0).tolist(),
                    "rmse": rms(list(error)).tolist(),
                })  # fmt: skip
    lines = []
    for r in rows:
        scores = f"{numbers(r['coverage'], 3)} | {numbers(r['width'], 3)} | {numbers(r['rmse'], 4)}"
        lines.append(f"rho {r['rho']:>2} {r['noise']:<5} B {r['B']:<3} | {scores}")
    table("coverage | mean width | rmse of " + ", ".join(NAMES), lines)
    coverage = np.array([r["coverage"] for r in rows])
    pooled = {name: rms(list(values)).tolist() for name, values in errors.items()}
    table("pooled over all cells", [
        f"coverage {numbers(coverage.mean(axis=0), 3)}, least of any cell {numbers(coverage.min(axis=0), 3)}",
        *(f"rmse at 2x, 4x, 10x: {name:<22} {numbers(values, 4)}" for name, values in pooled.items()),
    ])  # fmt: skip
    return {
        "rows": rows,
        "coverage": coverage.mean(axis=0).tolist(),
        "least": coverage.min(axis=0).tolist(),
        "rmse": pooled,
    }


def departures(curves: int, seed: int) -> Result:
    """Measure errors and coverage for runs that are finished, creep, start late, rise twice or have just begun.

    Uses four times as many curves as the other sections, because false alarms are rare.
    """
    result: Result = {}
    for name, make in SCENARIOS.items():
        errors, hits = {key: [] for key in ("posterior", *BASELINES)}, []
        for noise in NOISES:
            rng = stream(seed, name, noise)
            for _ in range(2 * curves):
                run = make(rng, noise)
                truth, band = run.truth(HORIZONS), fit(run.curve).predict(HORIZONS)
                errors["posterior"].append(band.mean - truth)
                hits.append((band.low <= truth) & (truth <= band.high))
                for key, baseline in BASELINES.items():
                    errors[key].append(baseline(run.curve)(HORIZONS) - truth)
        rmse = {key: rms(values) for key, values in errors.items()}
        best = np.min([rmse[key] for key in BASELINES], axis=0)
        result[name] = {
            "rmse": {key: values.tolist() for key, values in rmse.items()},
            "ratio_to_best_baseline": (rmse["posterior"] / best).tolist(),
            "coverage": np.mean(hits, axis=0).tolist(),
        }
    lines = []
    for name, r in result.items():
        scores = f"{numbers(r['coverage'], 2)} | {numbers(r['rmse']['posterior'], 4)}"
        lines.append(f"{name:<13} {numbers(r['ratio_to_best_baseline'], 2)} | {scores}")
    table("2x, 4x, 10x: error over the best baseline's | coverage | rmse of the forecast", lines)
    return result


def identification(curves: int, seed: int) -> Result:
    """Measure the share of identified ceilings at each rho, and the share of these within 0.02 of the truth."""
    result: Result = {}
    for rho in (0.5, *RHOS):
        misses, total = [], 0
        for noise in NOISES:
            for efficiency in EFFICIENCIES:
                rng = stream(seed, "identified", rho, noise, efficiency)
                for _ in range(max(curves // 4, 1)):
                    run = lawful(rng, rho, efficiency, noise)
                    fitted = fit(run.curve)
                    total += 1
                    if fitted.identified:
                        misses.append(abs(fitted.asymptote.mean - run.asymptote))
        within = float(np.mean(np.array(misses) < 0.02)) if misses else float("nan")
        result[str(rho)] = {"identified": len(misses) / total, "count": len(misses), "within_0.02": within}
    called = sum(r["count"] for r in result.values())
    right = sum(r["count"] * r["within_0.02"] for r in result.values() if r["count"])
    lines = [
        f"rho {rho:>4}: identified {r['identified']:.2f}, of these {r['within_0.02']:.3f}" for rho, r in result.items()
    ]
    table("ceilings called known, and their share within 0.02 of the truth", [*lines, f"all: {right / called:.3f}"])
    return result


def kinds(curves: int, seed: int) -> Result:
    """Measure coverage and identified ceilings for every kind of world; half of the noise is white, half AR(1).

    An identified ceiling is that of the climb so far: it is right within 0.02 of the level before any later rise.
    """
    result: Result = {}
    for name, make in KINDS.items():
        for noise in NOISES:
            rng, hits, of_a, misses, means = stream(seed, name, noise), [], [], [], []
            for _ in range(curves):
                run = make(rng, noise)
                fitted, truth = fit(run.curve), run.truth(HORIZONS[:2])
                band, a = fitted.predict(HORIZONS[:2]), fitted.asymptote
                hits.append((band.low <= truth) & (truth <= band.high))
                means.append(band.mean[0])
                of_a += [a.low <= run.asymptote <= a.high] if np.isfinite(run.asymptote) else []
                misses += [abs(a.mean - run.asymptote)] if fitted.identified else []
            coverage = np.mean(hits, axis=0).tolist()
            result[f"{name}, {noise}"] = {
                "coverage": [*coverage, float(np.mean(of_a)) if of_a else float("nan")],
                "identified": len(misses) / curves,
                "within_0.02": float(np.mean(np.array(misses) < 0.02)) if misses else float("nan"),
                "mean_of_means": float(np.mean(means)),
            }
    table("coverage at 2x, 4x, of A | identified | of these within 0.02 | mean forecast", [
        f"{name:<20} {numbers(r['coverage'], 2)} | {r['identified']:.2f} | {r['within_0.02']:.2f} | "
        f"{r['mean_of_means']:.12f}"
        for name, r in result.items()
    ])  # fmt: skip
    return result


AFTER_FALL = np.array([1.1, 1.25, 1.5, 2.0])
"""Multiples of the last compute at which runs that have fallen are judged."""


def falls(curves: int, seed: int) -> Result:
    """Measure forecasts of runs that have fallen at their last point: error over the last value's, and coverage.

    The error of a run is the root mean square over `AFTER_FALL`; those of several are averaged, as for public runs.
    """
    cells: dict[tuple[str, str], Result] = {}
    for name, (make, share) in FALLS.items():
        for noise in NOISE:
            rng, runs = stream(seed, name, noise), []
            while len(runs) < curves:
                run = make(rng, noise)
                runs += [run] if has_fallen(run.curve) else []
            errors, naive, bias, hits, single, widths = [], [], [], [], [], []
            for run in runs:
                fitted, truth = fit(run.curve), run.truth(AFTER_FALL)
                band, noisy = (fitted.predict(AFTER_FALL, noise=each) for each in (False, True))
                value = truth + NOISE[noise](rng, truth)
                errors.append(rms(list(band.mean - truth)))
                naive.append(rms(list(run.curve.metric[-1] - truth)))
                bias.append(np.mean(band.mean - truth))
                hits.append((band.low <= truth) & (truth <= band.high))
                single.append((noisy.low <= value) & (value <= noisy.high))
                widths.append(noisy.high - noisy.low)
            cells[name, noise] = {
                "share": share / len(NOISE), "error": np.mean(errors), "naive": np.mean(naive),
                "bias": np.mean(bias), "coverage": np.mean(hits), "of_evaluations": np.mean(single),
                "width": np.mean(widths),
            }  # fmt: skip

    def pooled(chosen: list[Result], weights: list[float]) -> Result:
        mean = {key: float(np.average([r[key] for r in chosen], weights=weights)) for key in chosen[0]}
        rest = {key: mean[key] for key in ("error", "bias", "coverage", "of_evaluations", "width")}
        return {"over_last_value": mean["error"] / mean["naive"], **rest}

    result = {f"{name}, {noise}": pooled([r], [1.0]) for (name, noise), r in cells.items()}
    for name in FALLS:
        chosen = [r for (each, _), r in cells.items() if each == name]
        result[name] = pooled(chosen, [1.0] * len(chosen))
    every = list(cells.values())
    result["mixed as public runs"] = pooled(every, [r["share"] for r in every])
    table("error | over the last value's | bias | coverage of the level | of evaluations | width of the latter", [
        f"{name:<30} {r['error']:.4f} | {r['over_last_value']:.3f} | {r['bias']:+.4f} | {r['coverage']:.3f} | "
        f"{r['of_evaluations']:.3f} | {r['width']:.3f}" for name, r in result.items()
    ])  # fmt: skip
    return result


def decisions(curves: int, seed: int) -> Result:
    """Score whether twice the compute gains more than 0.01: accuracy of "probability above 0.5", and Brier score."""
    result: Result = {}
    for rho in (0.5, *RHOS):
        said, true = [], []
        for noise in NOISES:
            rng = stream(seed, "decide", rho, noise)
            for _ in range(curves):
                run = lawful(rng, rho, float(np.exp(rng.uniform(np.log(0.7), np.log(3.0)))), noise)
                f = fit(run.curve)
                said.append(f.probability_of_gain(2 * f.last_compute, 0.01))
                true.append(float(np.ptp(run.truth(np.array([1.0, 2.0])))) > 0.01)
        p, t = np.array(said), np.array(true)
        right, brier = float(((p > 0.5) == t).mean()), float(((p - t) ** 2).mean())
        result[str(rho)] = {"accuracy": right, "brier": brier, "gain_share": float(t.mean())}
    table("accuracy | Brier score | share of runs that gain", [
        f"rho {rho:>4} | {r['accuracy']:.3f} | {r['brier']:.3f} | {r['gain_share']:.2f}" for rho, r in result.items()
    ])  # fmt: skip
    return result


def pair_rates(
    pairs: int, rng: np.random.Generator, seeds: int, rho: float, noise: str, gap: float, ratio: float
) -> Result:
    """Return the shares of pairs whose A, B at the common ceiling, and compute needed differ significantly at 5%.

    Both recipes climb from 0.2 to 0.6, with B 1.8; the ceiling of each seed is off by a normal deviate of sd 0.012.
    """
    verdicts, a_differs, b_differs, compute_differs = [], [], [], []
    for _ in range(pairs):
        sides = []
        for sign in (0.5, -0.5):
            side = []
            for _ in range(seeds):
                asymptote = 0.6 + gap * (sign + 0.5) + 0.012 * rng.standard_normal()
                efficiency = 1.8 * ratio**sign
                side.append(observed(
                    rng, lambda c, a=asymptote, b=efficiency: sigmoid(c, a, b, 1 / rho, 0.2), noise, asymptote
                ).curve)  # fmt: skip
            sides.append(side)
        found = compare(*sides)
        verdicts.append(found.verdict)
        a_differs.append(min(found.probability_higher, 1 - found.probability_higher) < 0.025)
        b_differs.append(min(found.probability_more_efficient, 1 - found.probability_more_efficient) < 0.025)
        compute_differs.append(min(found.probability_less_compute, 1 - found.probability_less_compute) < 0.025)
    names = ("higher ceiling", "same ceiling and more efficient", LATER, AHEAD, UNDECIDED)
    return {
        "A": float(np.mean(a_differs)), "B": float(np.mean(b_differs)), "compute": float(np.mean(compute_differs)),
        "pairs": pairs,
        "verdicts": {name: verdicts.count(name) / pairs for name in names},
    }  # fmt: skip


CASES = {
    "equal": (0.0, 1.0),
    "A +.03": (0.03, 1.0),
    "A +.06": (0.06, 1.0),
    "B x1.25": (0.0, 1.25),
    "B x1.5": (0.0, 1.5),
}


def comparisons(curves: int, seed: int) -> Result:
    """Measure false alarms and power of comparisons, with one and three seeds per side."""
    result: Result = {}
    for seeds in (1, 3):
        for rho in (4, 8):
            for noise in NOISES:
                for name, (gap, ratio) in CASES.items():
                    pairs = curves if name == "equal" else curves // 4
                    rng = stream(seed, "compare", seeds, rho, noise, name)
                    result[f"{seeds} seeds, rho {rho}, {noise}, {name}"] = pair_rates(
                        pairs, rng, seeds, rho, noise, gap, ratio
                    )
    table("different A | different B | different compute (at the 5% level) | pairs", [
        f"{name:<32} {r['A']:.3f} | {r['B']:.3f} | {r['compute']:.3f} | {r['pairs']}" for name, r in result.items()
    ])  # fmt: skip
    equal = [(name, r) for name, r in result.items() if name.endswith("equal")]
    for seeds in (1, 3):
        chosen = [r for name, r in equal if name.startswith(str(seeds))]
        pooled = {key: float(np.mean([r[key] for r in chosen])) for key in ("A", "B", "compute")}
        result[f"{seeds} seeds, false alarms pooled"] = pooled
        print(f"{seeds} seeds, false alarms pooled: {numbers(list(pooled.values()), 3)}")
    return result


def speed(curves: int, seed: int) -> Result:
    """Measure the CPU time of posteriors of 41, a thousand and a million points, and the wall time of the import."""
    rng = stream(seed, "speed")
    runs = [
        lawful(rng, rho, efficiency, noise).curve
        for _ in range(25) for rho in RHOS for noise in NOISES for efficiency in EFFICIENCIES
    ]  # fmt: skip
    fit(runs[0])
    times = []
    for curve in runs:
        start = time.process_time()
        fit(curve)
        times.append(time.process_time() - start)
    code = "import time; t = time.perf_counter(); import scalerl.reading.curves; print(time.perf_counter() - t)"
    imports = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(5)
    ]
    whole = Curve(np.linspace(0, 1, 1_000_000), sigmoid(np.linspace(0, 1, 1_000_000), 0.6, 2.0, 0.2, 0.1))
    start = time.process_time()
    fit(whole)
    result = {
        "median_ms": 1e3 * float(np.median(times)), "p90_ms": 1e3 * float(np.quantile(times, 0.9)),
        "thousand_s": float(np.sum(times)) * 1000 / len(times), "import_s": float(np.median(imports)),
        "million_rows_s": time.process_time() - start,
    }  # fmt: skip
    table("speed", [f"{name}: {value:.3g}" for name, value in result.items()])
    return result


SECTIONS: dict[str, Callable[[int, int], Result]] = {
    "cells": cells,
    "departures": departures,
    "identification": identification,
    "kinds": kinds,
    "falls": falls,
    "decisions": decisions,
    "comparisons": comparisons,
    "speed": speed,
}


def numbers(values: Any, decimals: int) -> str:
    return " ".join(f"{value:.{decimals}f}" for value in values)


def table(title: str, lines: list[str]) -> None:
    print(f"\n## {title}", *lines, sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="sections to run; default: all")
    parser.add_argument("--curves", type=int, default=400, help="curves per cell, pairs per comparison")
    parser.add_argument("--seed", type=int, default=2026, help="random seed")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    results: Result = {"machine": platform.processor() or platform.machine(), "numpy": np.__version__}
    results |= {"curves": arguments.curves, "seed": arguments.seed}
    for name in arguments.sections or SECTIONS:
        start = time.perf_counter()
        results[name] = SECTIONS[name](arguments.curves, arguments.seed)
        print(f"({name}: {time.perf_counter() - start:.0f} s)")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
