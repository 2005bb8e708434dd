"""Errors and coverage of related runs that are fitted together, next to each run alone, on simulated worlds.

    python benchmarks/together.py              # the table of docs/benchmarks.md; about five minutes

A world has four runs of one recipe that end at 1.5, 1.5, 3 or 8 times the median midpoint. Their logit A, ln C_mid and
ln B scatter around a middle as those of seeds, as those of models of several sizes, or without anything in common.
"""

from __future__ import annotations

import argparse

import numpy as np

from scalerl.reading.curves import Curve, Fit, fit, fit_together, sigmoid

SCATTER = {"seeds": (0.06, 0.15, 0.1), "models": (0.8, 0.8, 0.15), "nothing shared": (1.0, 1.5, 0.5)}
"""Standard deviations of logit A, ln C_mid and ln B between the runs of a world."""

LASTS = (1500.0, 1500.0, 3000.0, 8000.0)
"""Compute of the last point of each run; the middle of the midpoints is 1000."""

FIRST_WORLD = 500
"""Seed of the first world. Worlds 0 to 230 were used for the choice of the prior of the scatter."""


def world(rng: np.random.Generator, scatter: tuple[float, float, float]) -> list[tuple[Curve, dict[str, float]]]:
    """Return four runs and their true parameters."""
    middle = np.array([rng.normal(0.5, 0.5), np.log(1000.0), rng.normal(np.log(1.7), 0.25)])
    runs = []
    for last in LASTS:
        theta = middle + np.array(scatter) * rng.standard_normal(3)
        asymptote = 1 / (1 + np.exp(-theta[0]))
        truth = {"asymptote": asymptote, "midpoint": float(np.exp(theta[1])), "efficiency": float(np.exp(theta[2])),
                 "initial": 0.03 + 0.1 * asymptote}  # fmt: skip
        compute = np.linspace(0, last, 25)
        level = sigmoid(compute, **truth) + 0.012 * rng.standard_normal(25)
        runs.append((Curve(compute, np.clip(level, 0, 1)), truth))
    return runs


def scores(f: Fit, truth: dict[str, float]) -> list[float]:
    """Return the error of A, whether its interval contains it, and the same of the level at four times the compute."""
    at = 4 * f.last_compute
    band, level, a = f.predict([at]), float(sigmoid(at, **truth)), truth["asymptote"]
    return [f.asymptote.mean - a, f.asymptote.low <= a <= f.asymptote.high,
            band.mean[0] - level, band.low[0] <= level <= band.high[0]]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=40, help="number of worlds of each kind; default 40")
    worlds = parser.parse_args().worlds
    print("| runs | fitted | error of A | its coverage | error at 4x | its coverage |")
    print("| -- | -- | -- | -- | -- | -- |")
    for kind, scatter in SCATTER.items():
        rows: dict[str, list[list[float]]] = {"alone": [], "together": []}
        for seed in range(FIRST_WORLD, FIRST_WORLD + worlds):
            runs = world(np.random.default_rng(seed), scatter)
            together = fit_together([curve for curve, _ in runs]).fits
            for (curve, truth), f in zip(runs, together, strict=True):
                rows["alone"].append(scores(fit(curve), truth))
                rows["together"].append(scores(f, truth))
        for how, of in rows.items():
            a, a_inside, level, inside = np.array(of, dtype=float).T
            print(
                f"| {kind} | {how} | {np.sqrt((a**2).mean()):.3f} | {a_inside.mean():.2f} | "
                f"{np.sqrt((level**2).mean()):.3f} | {inside.mean():.2f} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
