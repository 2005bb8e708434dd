"""Measures what allocation by forecast saves and loses, on simulated studies with known truth.

    python benchmarks/allocation.py                   # 200 studies of each setting (about 15 minutes)
    python benchmarks/allocation.py --studies 20      # fewer

Writes benchmarks/results/allocation.json. The best arm counts as found strictly if the chosen arm has the highest true
ceiling, and within 0.01 if its true ceiling is at most 0.01 below the highest. This is less than the scatter of single
seeds (0.012), so three seeds per arm distinguish such arms little better than chance.

Axes in names: A arms, S seeds, P policies, R studies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from allocation_simulation import POINTS, SETTINGS, Study, study

from scalerl.reading.curves import Fit, fit
from scalerl.training.study.allocate import allocate
from scalerl.training.study.execute import ALLOCATIONS

SLICES = 8
"""Number of equal parts of a whole run, in which compute is counted."""

RUNGS = (1, 2, 4, 8)
"""Numbers of slices after which successive halving drops the lower half of the arms."""

WITHIN = 0.01
"""Largest distance of an arm from the best at which it counts as found."""

RESULTS = Path(__file__).parent / "results" / "allocation.json"


class Shown:
    """The part of a study that a policy may see: the beginnings of its runs, each fitted once."""

    def __init__(self, whole: Study) -> None:
        self.curves_AS = whole.curves_AS
        self.arms = len(whole.curves_AS)
        self._fits: dict[tuple[int, int], list[Fit]] = {}

    def points(self, done: int) -> int:
        """Return the number of evaluations after a number of slices."""
        return 1 + (POINTS - 1) * done // SLICES

    def fits(self, arm: int, done: int) -> list[Fit]:
        """Return the fits of all seeds of an arm after a number of slices."""
        if (arm, done) not in self._fits:
            self._fits[arm, done] = [fit(curve.first(self.points(done))) for curve in self.curves_AS[arm]]
        return self._fits[arm, done]

    def score(self, arm: int, done: int) -> float:
        """Return the present score: the mean of the last three evaluations of all seeds."""
        last = self.points(done)
        return float(np.mean([curve.metric[last - 3 : last] for curve in self.curves_AS[arm]]))

    def ceiling(self, arm: int, done: int) -> float:
        """Return the mean of the forecast ceilings."""
        return float(np.mean([f.asymptote.mean for f in self.fits(arm, done)]))


Outcome = tuple[int, np.ndarray]
"""The chosen arm, and the slices spent on each arm, shape (A,)."""


def by_forecast(shown: Shown, shares: Iterable[float]) -> Outcome:
    """Train the arms that continue to each share, as a study does; choose the arm that the last decision chooses."""
    done_A, arms = np.zeros(shown.arms, dtype=int), list(range(shown.arms))
    best = 0
    for share in shares:
        done_A[arms] = round(share * SLICES)
        decision = allocate({str(a): shown.fits(a, int(done_A[a])) for a in range(shown.arms)})
        best, arms = int(decision.best or 0), [int(v.arm) for v in decision.verdicts.values() if v.go_on]
        if not arms:
            break
    return best, done_A


def halving(shown: Shown, rank: Callable[[Shown, int, int], float]) -> Outcome:
    """Apply successive halving: drop the lower half of the arms at each rung."""
    alive, done_A = list(range(shown.arms)), np.zeros(shown.arms, dtype=int)
    for rung in RUNGS:
        done_A[alive] = rung
        ranked = sorted(alive, key=lambda a: -rank(shown, a, rung))
        alive = ranked[: 1 if rung == SLICES else (len(ranked) + 1) // 2]
    return alive[0], done_A


POLICIES: dict[str, Callable[[Shown], Outcome]] = {
    "equal allocation": partial(by_forecast, shares=ALLOCATIONS["equal"]),
    "forecast": partial(by_forecast, shares=ALLOCATIONS["forecast"]),
    "halving on the present score": partial(halving, rank=Shown.score),
    "halving on the forecast ceiling": partial(halving, rank=Shown.ceiling),
}


def scored(whole: Study) -> list[tuple[float, float]]:
    """Compute as a share of equal allocation, and regret, for each policy on one study."""
    shown, scores = Shown(whole), []
    for policy in POLICIES.values():
        chosen, done_A = policy(shown)
        scores.append((done_A.mean() / SLICES, float(whole.asymptote_A.max() - whole.asymptote_A[chosen])))
    return scores


def summary(compute_R: np.ndarray, regret_R: np.ndarray) -> dict[str, float]:
    return {
        "compute_mean": float(compute_R.mean()),
        "compute_p90": float(np.quantile(compute_R, 0.9)),
        "found": float((regret_R == 0).mean()),
        "found_within_0.01": float((regret_R <= WITHIN).mean()),
        "regret_mean": float(regret_R.mean()),
        "regret_p90": float(np.quantile(regret_R, 0.9)),
    }


def measure(name: str, studies: int, seed: int) -> dict[str, dict[str, float]]:
    """Measure all policies on the same studies of one setting."""
    # one random stream per study, so that a smaller number of studies is a prefix of a larger one
    key = list(SETTINGS).index(name)
    scores_RP2 = np.array(
        [scored(study(np.random.default_rng([seed, key, i]), SETTINGS[name])) for i in range(studies)]
    )
    return {policy: summary(*scores_RP2[:, p].T) for p, policy in enumerate(POLICIES)}


def table(name: str, rows: dict[str, dict[str, float]]) -> None:
    print(
        f"\n## {name}",
        "compute: mean, 90th percentile | found: strictly, within 0.01 | regret in A: mean, 90th",
        sep="\n",
    )
    for policy, r in rows.items():
        print(
            f"{policy:<32} {r['compute_mean']:.2f} {r['compute_p90']:.2f} | {r['found']:.2f} "
            f"{r['found_within_0.01']:.3f} | {r['regret_mean']:.4f} {r['regret_p90']:.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=200, help="number of studies of each setting")
    parser.add_argument(
        "--seed", type=int, default=2026, help="random seed; the defaults of the policy were chosen with another"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for the results")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"studies": arguments.studies, "seed": arguments.seed, "settings": {}}
    for name in SETTINGS:
        start = time.perf_counter()
        results["settings"][name] = measure(name, arguments.studies, arguments.seed)
        table(name, results["settings"][name])
        print(f"({time.perf_counter() - start:.0f} s)")
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
