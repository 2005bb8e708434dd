"""Scores the forecasts of `scalerl.reading.curves` on the curves of real runs, and compares them with naive forecasts.

    python benchmarks/real_curves.py runs.csv                                # the tables
    python benchmarks/real_curves.py runs.csv --json out.json --plot out.png # also as JSON, with a calibration plot

The file has a header and one row per evaluation: run, compute, value, and optionally repo (the source of a run; errors
are averaged within a source first, because its runs are similar), kind (rising, flat, ..., assigned by the author of
the file) and metric. Each run has three splits: the first 0.3, 0.5 or 0.7 of the points, at least 5, are shown, and the
rest is predicted if it has at least 3 points. The error is the root mean square over the rest. A run has fallen if the
mean of its last three shown points is more than 0.1 below its best mean of three neighboring points.

The condition "gain at 2x below 0.01" is judged at every evaluation, until it holds or the advice is to go back. The
gain of the run with the rest of its compute is the level at the end minus the level at the stop, as means of a tenth of
the points (raw), and of a fifth of them around the stop (smoothed).
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.reading.curves import BASELINES, Curve, CurveError, advise, fit
from scalerl.reading.curves.health import rolling_mean
from scalerl.reading.curves.stop import judge, stop_rule

FRACTIONS = (0.3, 0.5, 0.7)
FALLEN = 0.1
"""Distance below its best, as a share of the metric's range, from which a run has fallen."""

GAIN = 0.01
"""Smallest gain that is worth further training, for `advise`."""

LEVELS = np.linspace(0.1, 0.9, 9)
"""Nominal probabilities of the calibration plot."""


@dataclass(frozen=True)
class RealRun:
    """One run of the file.

    Example: `RealRun("qwen-s1", "lab/countdown", "rising", Curve([0, 10, 20], [0.1, 0.3, 0.4]))`
    """

    name: str
    repo: str
    kind: str
    curve: Curve


@dataclass(frozen=True)
class Split:
    """The forecast of one run from one part of it.

    Example: ``Split("qwen-s1", "lab/countdown", "rising", 0.5, 20, False, {"forecast": 0.03, "last tenth": 0.05}, 0.9,
    0, False, [0.4, 0.5])``
    """

    run: str
    repo: str
    kind: str
    fraction: float
    shown: int
    fallen: bool
    error: dict[str, float]
    """Root mean square error of the forecast and of each naive forecast."""
    coverage: float
    """Share of the remaining points inside the 90% band for single evaluations."""
    outside: int
    """1 if the band leaves the metric's bounds."""
    identified: bool
    rank: list[float]
    """Quantile of each held-out evaluation in the predictive distribution, in [0, 1]."""


@dataclass(frozen=True)
class Stop:
    """The rest of a run after the condition on its gain held, or after the first advice to go back.

    Example: `Stop("qwen-s1", "lab/countdown", "rising", "stop", 0.6, 0.004, 0.003, 0.003, -0.01)`
    """

    run: str
    repo: str
    kind: str
    action: str
    """"stop" or "go back"."""
    at: float
    """Share of the run's compute at the advice."""
    gain: float
    """Level at the end minus level at the stop: means of a tenth of the points, at least three."""
    smooth_gain: float
    """The gain of a smoother curve: means of a fifth of the points; at the stop, half of them lie before it."""
    noise: float
    """Standard error of `gain` from the scatter of neighboring points."""
    over_best: float
    """Level at the end minus the best mean of three points up to the stop."""


def last_tenth(curve: Curve) -> Callable[[np.ndarray], np.ndarray]:
    """Return the mean of the last tenth of the points."""
    level = curve.metric[-max(1, len(curve) // 10) :].mean()
    return lambda compute_M: np.full(len(compute_M), level)


NAIVE = {"last tenth": last_tenth, **BASELINES}


def read_runs(path: Path, bounds: tuple[float, float]) -> list[RealRun]:
    """Return the runs of a file, in order; a run without a repository is a separate source."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = {"run", "compute", "value"} - set(rows[0] if rows else {})
    if missing:
        raise SystemExit(f"{path} lacks the columns {', '.join(sorted(missing))}; it needs run, compute and value")
    by_run: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_run[row["run"]].append(row)
    return [
        RealRun(
            name=name,
            repo=own[0].get("repo") or name,
            kind=own[0].get("kind") or "not named",
            curve=Curve([float(r["compute"]) for r in own], [float(r["value"]) for r in own], bounds, label=name),
        )
        for name, own in by_run.items()
    ]


def has_fallen(curve: Curve) -> bool:
    """Return whether the end of a curve is far below its best."""
    smooth = rolling_mean(curve.metric)
    return bool(smooth.max() - smooth[-1] > FALLEN * np.ptp(curve.bounds))


def rmse(error_M: np.ndarray) -> float:
    return float(np.sqrt((error_M**2).mean()))


def split(run: RealRun, fraction: float) -> Split | str | None:
    """Return the score of one split, or the error if it cannot be fitted; None if too few points remain."""
    count = max(5, round(fraction * len(run.curve)))
    if len(run.curve) - count < 3:
        return None
    shown = run.curve.first(count)
    compute_M, metric_M = run.curve.compute[count:], run.curve.metric[count:]
    try:
        fitted = fit(shown)
    except CurveError as error:
        return f"{run.name}, first {count} points: {error}"
    band = fitted.predict(compute_M, noise=True)
    low, high = run.curve.bounds
    draws_MD = fitted.posterior.wide_sample.evaluations(compute_M)
    # ties (a clipped draw, a metric of 0) count half
    rank_M = (draws_MD < metric_M[:, None]).mean(axis=1) + 0.5 * (draws_MD == metric_M[:, None]).mean(axis=1)
    error = {name: rmse(make(shown)(compute_M) - metric_M) for name, make in NAIVE.items()}
    return Split(
        run=run.name, repo=run.repo, kind=run.kind, fraction=fraction, shown=count, fallen=has_fallen(shown),
        error={"forecast": rmse(band.mean - metric_M), **error},
        coverage=float(((band.low <= metric_M) & (metric_M <= band.high)).mean()),
        outside=int(bool((band.low < low - 1e-9).any() or (band.high > high + 1e-9).any())),
        identified=fitted.identified, rank=rank_M.tolist(),
    )  # fmt: skip


def first_stop(run: RealRun) -> Stop | None:
    """Return where a run would have ended, before its last three evaluations; None if nowhere."""
    curve, metric, points = run.curve, run.curve.metric, len(run.curve)
    few, many = max(3, points // 10), max(3, points // 5)
    for count in range(5, points - 2):
        shown = curve.first(count)
        fitted = fit(shown)
        fell = advise(fitted).action == "go back"
        if fell or judge(stop_rule(f"gain at 2x below {GAIN * float(np.ptp(curve.bounds))}"), [fitted]).holds:
            action = "go back" if fell else "stop"
            end, around = metric[-many:].mean(), metric[max(0, count - many // 2) : count + (many + 1) // 2].mean()
            return Stop(
                run.name, run.repo, run.kind, action,
                at=shown.last_compute / curve.last_compute,
                gain=float(metric[-few:].mean() - metric[max(0, count - few) : count].mean()),
                smooth_gain=float(end - around),
                noise=float(np.sqrt(np.mean(np.diff(metric) ** 2) / few)),
                over_best=float(metric[-few:].mean() - rolling_mean(metric[:count]).max()),
            )  # fmt: skip
    return None


def balanced(splits: Sequence[Split], name: str) -> float:
    """Return the mean over repositories of the mean error over their splits."""
    by_repo: dict[str, list[float]] = defaultdict(list)
    for s in splits:
        by_repo[s.repo].append(s.error[name])
    return float(np.mean([np.mean(errors) for errors in by_repo.values()]))


def groups(splits: Sequence[Split]) -> dict[str, list[Split]]:
    """Return the splits by group: all, fallen, not fallen, and each kind."""
    found = {"all": list(splits), "fallen": [s for s in splits if s.fallen]}
    found["not fallen"] = [s for s in splits if not s.fallen]
    for kind in sorted({s.kind for s in splits}):
        found[kind] = [s for s in splits if s.kind == kind]
    return {name: chosen for name, chosen in found.items() if chosen}


def table(splits: Sequence[Split]) -> dict[str, Any]:
    """Return the errors and the coverage of every group."""
    rows = {}
    for name, chosen in groups(splits).items():
        rows[name] = {
            "splits": len(chosen),
            "error": {method: float(np.mean([s.error[method] for s in chosen])) for method in chosen[0].error},
            "median": {method: float(np.median([s.error[method] for s in chosen])) for method in chosen[0].error},
            "coverage": float(np.mean([s.coverage for s in chosen])),
            "outside": sum(s.outside for s in chosen),
            "identified": sum(s.identified for s in chosen),
        }
    return rows


def share(stops: Sequence[Stop], gains: Sequence[float]) -> float | None:
    """Return the share of the compute after stops that gained less than `GAIN`; None without a stop."""
    after = np.array([1 - stop.at for stop in stops])
    return float(after @ (np.array(gains) < GAIN) / after.sum()) if stops else None


def advice(runs: Sequence[RealRun]) -> dict[str, Any]:
    """Compute after the advice to end a run, as a share of each run's compute, and its gain."""
    found = [stop for run in runs if (stop := first_stop(run)) is not None]
    stops, back = ([stop for stop in found if stop.action == action] for action in ("stop", "go back"))
    saved = {name: float(sum(1 - s.at for s in chosen)) for name, chosen in (("stop", stops), ("go back", back))}
    return {
        "runs": len(runs),
        "advised to stop": len(stops),
        "compute saved by it, share of all": saved["stop"] / len(runs),
        "share of it that gained less than 0.01": share(stops, [s.gain for s in stops]),
        "the same, of the smoothed curve": share(stops, [s.smooth_gain for s in stops]),
        "the same, counting only gains beyond noise": share(stops, [s.gain - 1.645 * s.noise for s in stops]),
        "mean gain missed": float(np.mean([s.gain for s in stops])) if stops else None,
        "advised to go back": len(back),
        "compute saved by that, share of all": saved["go back"] / len(runs),
        "share of it that ended less than 0.01 above the best": share(back, [s.over_best for s in back]),
        "stops": [asdict(stop) for stop in found],
    }


def calibration(splits: Sequence[Split]) -> list[float]:
    """Return the share of held-out evaluations inside each nominal central interval; splits weigh equally."""
    inside = [[np.mean(np.abs(np.array(s.rank) - 0.5) <= level / 2) for level in LEVELS] for s in splits]
    return [float(share) for share in np.mean(inside, axis=0)]


def plot(splits: Sequence[Split], path: Path) -> None:
    """Plot observed over nominal coverage, for all splits and by group."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 4.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for name, chosen in groups(splits).items():
        bold = 2.5 if name == "all" else 1.0
        axes.plot(LEVELS, calibration(chosen), marker=".", linewidth=bold, label=f"{name} ({len(chosen)})")
    axes.set(xlabel="nominal probability", ylabel="share of held-out evaluations inside", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def show(splits: Sequence[Split], refused: Sequence[str], said: dict[str, Any]) -> None:
    """Print the tables."""
    methods = list(splits[0].error)
    print("mean error of the rest / coverage of the 90% band / bands outside the bounds / ceilings identified")
    print(f"{'':<12} splits " + " ".join(f"{name:>21}" for name in methods))
    for name, row in table(splits).items():
        errors = " ".join(f"{row['error'][method]:>21.4f}" for method in methods)
        rest = f"{row['coverage']:.3f} {row['outside']:>3} {row['identified']:>3}"
        print(f"{name:<12} {row['splits']:>6} {errors}   {rest}")
    errors = {method: balanced(splits, method) for method in methods}
    best = min(value for method, value in errors.items() if method != "forecast")
    print(f"{'balanced':<12} {'':>6} " + " ".join(f"{errors[method]:>21.4f}" for method in methods))
    print(f"balanced error over the best naive one's: {errors['forecast'] / best:.3f}")
    print("calibration: " + ", ".join(f"{a:.1f} -> {b:.2f}" for a, b in zip(LEVELS, calibration(splits), strict=True)))
    print(f"refused: {len(refused)}", *refused, sep="\n  ")
    print("advise:", *(f"{name}: {value}" for name, value in said.items() if name != "stops"), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="CSV with the columns run, compute and value")
    parser.add_argument("--bounds", type=float, nargs=2, default=(0.0, 1.0), help="bounds of the metric; default 0 1")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--plot", type=Path, help="file for the calibration plot")
    parser.add_argument("--no-advice", action="store_true", help="leave out the section on advise")
    arguments = parser.parse_args()
    began = time.perf_counter()
    runs = read_runs(arguments.file, tuple(arguments.bounds))
    found = [split(run, fraction) for run in runs for fraction in FRACTIONS]
    splits, refused = [s for s in found if isinstance(s, Split)], [s for s in found if isinstance(s, str)]
    if not splits:
        raise SystemExit("no run has the 8 points that a split needs" + "".join(f"\n  {why}" for why in refused))
    said = {} if arguments.no_advice else advice(runs)
    show(splits, refused, said)
    print(f"({time.perf_counter() - began:.0f} s)")
    if arguments.json:
        figures = {
            "table": table(splits), "balanced": {m: balanced(splits, m) for m in splits[0].error}, "refused": refused,
            "calibration": dict(zip(LEVELS.round(1).tolist(), calibration(splits), strict=True)), "advice": said,
            "splits": [asdict(s) for s in splits],
        }  # fmt: skip
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.plot:
        plot(splits, arguments.plot)


if __name__ == "__main__":
    main()
