"""Scores the printed advice: its regret on real runs against plain rules, and how often each kind of it is right.

    python benchmarks/decisions.py runs.csv                          # regret, as a table
    python benchmarks/decisions.py runs.csv --json decisions.json    # also as JSON
    python benchmarks/decisions.py --simulate 1000 --seed 1          # shares that were right, coverage, simulated runs

The file is that of `real_curves.py`. Every run is cut at several shares of its compute. At a cut, the question is
whether to train to twice the compute for a gain of 0.02 of the metric's range. The gain that happened is the mean of
the points around twice the compute (1.75 to 2.25 times) minus the mean of the points in the last quarter before the
cut, at least three. To continue costs 0.02 less the gain, to stop the gain less 0.02, if positive. This regret is
averaged over the cuts of a repository, then over repositories, with an interval from resampled repositories. "Go back"
ends the run, as "stop" does; "open" and "about" go on if the mean gain is above 0.02.

Simulated runs are those of `scaling_simulation.py`, runs that follow the law to 0.5 to 16 midpoints, and flat ones,
with 12 to 80 points and 1, 2 or 5 times the noise. Their truth is the level without noise.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import real_curves
import scaling_simulation as simulation

from scalerl.reading.curves import BASELINES, Curve, CurveError, Forecast, advise, fit, forecast

MIN_GAIN = 0.02
"""Gain that is worth twice the compute, as a share of the metric's range."""

SHARES = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
"""Shares of the compute at which runs are cut."""

RESAMPLES = 2000


@dataclass(frozen=True)
class Cut:
    """What each rule says at one cut of a run, and the gain that happened, as a share of the metric's range.

    Example: `Cut("qwen-s1", "lab/countdown", 20, 0.03, {"printed advice": True, "always stop": False})`
    """

    run: str
    repo: str
    points: int
    gain: float
    go_on: dict[str, bool]
    """Whether each rule continues."""

    def regret(self, rule: str) -> float:
        """Return what a rule loses at this cut, as a share of the metric's range."""
        over = self.gain - MIN_GAIN
        return max(0.0, -over if self.go_on[rule] else over)


def gain_after(curve: Curve, last: float) -> float | None:
    """Return the gain from a compute to twice as much, as a share of the range; None if too few points are near it."""
    later_N = (curve.compute > 1.75 * last) & (curve.compute <= 2.25 * last)
    if later_N.sum() < 2:
        return None
    before = curve.metric[curve.compute <= last]
    recent = max(3, int(((curve.compute > 0.75 * last) & (curve.compute <= last)).sum()))
    return float((curve.metric[later_N].mean() - before[-recent:].mean()) / np.ptp(curve.bounds))


def mean_gain(ahead: Forecast) -> float:
    """Return the mean gain of a forecast, as a share of the range."""
    return (ahead.at[0].mean - ahead.now.mean) / float(np.ptp(ahead.fit.curve.bounds))


def cuts(run: real_curves.RealRun) -> Iterator[Cut]:
    """Yield the cuts of a run at which a fit is possible."""
    curve, seen = run.curve, 0
    width = float(np.ptp(curve.bounds))
    for share in SHARES:
        count = int((curve.compute <= share * curve.last_compute).sum())
        if count <= seen:
            continue
        seen, shown = count, curve.first(count)
        gain = gain_after(curve, shown.last_compute) if count else None
        if gain is None:
            continue
        try:
            fitted = fit(shown)
        except CurveError:  # too few points
            continue
        advice = advise(fitted)
        ends = np.array([1.0, 2.0]) * shown.last_compute
        line = float(np.diff(BASELINES["linear in log compute"](shown)(ends))[0]) / width
        go_on = {
            "printed advice": advice.action != "go back" and advice.gain.mean > MIN_GAIN * width,
            "forecast's mean gain": mean_gain(forecast(fitted, at=["2x"])) > MIN_GAIN,
            "line in log compute": line > MIN_GAIN,
            "always continue": True,
            "always stop": False,
        }
        yield Cut(run.name, run.repo, count, gain, go_on)


def by_repository(found: list[Cut], rule: str) -> dict[str, float]:
    """Return the mean regret of a rule in each repository."""
    regrets: dict[str, list[float]] = defaultdict(list)
    for cut in found:
        regrets[cut.repo].append(cut.regret(rule))
    return {repo: float(np.mean(values)) for repo, values in regrets.items()}


def regret_table(found: list[Cut]) -> dict[str, Any]:
    """Return the regret of every rule: mean over repositories, its 90% interval, and each repository."""
    rows = {}
    for rule in found[0].go_on:
        repos = by_repository(found, rule)
        values = np.array(list(repos.values()))
        drawn = values[np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
        low, high = np.quantile(drawn, [0.05, 0.95])
        rows[rule] = {"regret": float(values.mean()), "low": float(low), "high": float(high), "repositories": repos}
    return rows


# ------------------------------------------------------------------------------------------------------ simulated runs


def flat(rng: simulation.Random, noise: str) -> simulation.Run:
    """Draw a run that stays where it is."""
    level = float(rng.uniform(0.05, 0.9))
    return simulation.observed(rng, lambda c: np.full(np.shape(c), level), noise, level)


def lawful(rng: simulation.Random, noise: str) -> simulation.Run:
    """Draw a run that follows the law to 0.5 to 16 midpoints."""
    rho, efficiency = simulation.log_uniform(rng, 0.5, 16), simulation.log_uniform(rng, 0.7, 3)
    return simulation.lawful(rng, rho, efficiency, noise)


WORLDS: dict[str, Callable[[simulation.Random, str], simulation.Run]] = {
    **simulation.SCENARIOS, "lawful": lawful, "flat": flat,
}  # fmt: skip


def redrawn(run: simulation.Run, noise: str, rng: simulation.Random) -> simulation.Run:
    """Return a run with another number of points and amount of noise."""
    compute = np.linspace(0.0, 1.0, int(rng.choice([12, 20, 41, 80])))
    level = np.clip(run.truth(compute), 0, 1)
    noisy = level + float(rng.choice([1, 2, 5])) * simulation.NOISE[noise](rng, level)
    return simulation.Run(Curve(compute, np.clip(noisy, 0, 1)), run.truth, run.asymptote)


def simulated(count: int, seed: int) -> dict[str, Any]:
    """Return how often each advice came true and the coverage of the forecast on simulated runs."""
    kinds, inside = defaultdict(list), defaultdict(list)
    names = list(WORLDS)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        noise = str(rng.choice(simulation.NOISES))
        name = names[number % len(names)]
        run = redrawn(WORLDS[name](rng, noise), noise, rng)
        fitted = fit(run.curve)
        advice = advise(fitted)
        now, twice, four = np.clip(run.truth(np.array([1.0, 2.0, 4.0])), 0, 1)
        kinds[advice.action].append(bool(twice - now > MIN_GAIN))
        band = fitted.predict([2.0, 4.0])
        inside[name].append([band.low[0] <= twice <= band.high[0], band.low[1] <= four <= band.high[1]])
    return {
        "runs": count,
        "gained more": {kind: {"of": len(more), "share": float(np.mean(more))} for kind, more in sorted(kinds.items())},
        "coverage at 2x, 4x": {name: np.mean(hits, axis=0).tolist() for name, hits in inside.items()},
        "coverage": np.mean([hit for hits in inside.values() for hit in hits], axis=0).tolist(),
    }  # fmt: skip


def show_regret(found: list[Cut], rows: dict[str, Any]) -> None:
    """Print the regret of every rule in thousandths of the metric's range."""
    repos = len({cut.repo for cut in found})
    print(f"regret in thousandths of the metric's range: {len(found)} cuts of {repos} repositories")
    for rule, row in rows.items():
        worst = max(row["repositories"], key=row["repositories"].get)
        interval = f"({1000 * row['low']:.1f} to {1000 * row['high']:.1f})"
        print(f"  {rule:<22} {1000 * row['regret']:5.1f} {interval:<16} most in {worst}")
    right = [(cut.go_on["printed advice"]) == (cut.gain > MIN_GAIN) for cut in found]
    print(f"the printed advice was right in {np.mean(right):.2f}")


def show_simulated(figures: dict[str, Any]) -> None:
    """Print how often runs with each advice gained more than the limit, and the coverage."""
    print(f"{figures['runs']} simulated runs")
    for kind, row in figures["gained more"].items():
        print(f"  {kind:<9} gained more than {MIN_GAIN:g} in {row['share']:.2f} of {row['of']}")
    print("coverage of the 90% band of the curve at 2x and 4x:", " ".join(f"{c:.2f}" for c in figures["coverage"]))
    for name, (twice, four) in figures["coverage at 2x, 4x"].items():
        print(f"  {name:<13} {twice:.2f} {four:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="CSV with the columns run, compute and value")
    parser.add_argument("--bounds", type=float, nargs=2, default=(0.0, 1.0), help="bounds of the metric; default 0 1")
    parser.add_argument("--simulate", type=int, default=0, metavar="N", help="number of simulated runs")
    parser.add_argument("--seed", type=int, default=1, help="seed of the simulated runs; choices were made with seed 0")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    if not arguments.file and not arguments.simulate:
        parser.error("give a file of runs, --simulate N, or both")
    figures: dict[str, Any] = {}
    if arguments.file:
        found = [cut for run in real_curves.read_runs(arguments.file, tuple(arguments.bounds)) for cut in cuts(run)]
        if not found:
            raise SystemExit(f"{arguments.file}: no run has points up to twice the compute of a part with 5 points")
        rows = regret_table(found)
        show_regret(found, rows)
        figures |= {"cuts": len(found), "regret": rows}
    if arguments.simulate:
        figures["simulated"] = simulated(arguments.simulate, arguments.seed)
        show_simulated(figures["simulated"])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
