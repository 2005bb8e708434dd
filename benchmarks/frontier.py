"""Evidence for `scalerl frontier`: simulated worlds, ScaleRL's Table 1, and public runs of one family of models.

    python benchmarks/frontier.py worlds [law] [--seeds 3] [--repeats 40] [--first 2000]
    python benchmarks/frontier.py table
    python benchmarks/frontier.py sizes public_runs.csv      (columns run, compute, value)
    python benchmarks/frontier.py speed

A world has 5 sizes x 3 batches; 8 of the 12 settings of the 4 smaller sizes are run, to a quarter of the budget. The
largest size is never run. Only "law", "noisy" and "flat" follow the law; none is drawn from its prior. In "inside" the
ceiling is highest at a size within those that are run; in "flat" no setting changes anything.
"""

import argparse
import csv
import json
import time
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np

from scalerl.reading.curves import Curve, fit, frontier, sigmoid
from scalerl.reading.curves.pool import levels, pooled, smoothed

SIZES, BATCHES, BUDGET, POINTS = (1, 2, 4, 8, 16), (1, 2, 4), 4.0, 31
ALL = [{"size": float(s), "batch": float(b)} for s, b in product(SIZES, BATCHES)]
TAU = np.array([0.06, 0.12, 0.08, 0.01])
"""Scatter of single runs in (logit A, ln C_mid, ln B, R0)."""


def law(slopes, s, b):
    """Linear in the logs of size and batch."""
    return slopes[0] + slopes[1] * s + slopes[2] * b


def curved(slopes, s, b):
    """The same, and quadratic in the log of size: the ceiling bends down, the midpoint up."""
    return law(slopes, s, b) + np.array([-0.08, 0.12, 0.0, 0.0]) * (s - 1) ** 2


def saturating(slopes, s, b):
    """The ceiling as a power of size, and a steepness that depends on size times batch."""
    theta = law(slopes, s, b)
    share = 0.8 - 0.3 * np.exp(-0.6 * s)
    return np.array([np.log(share / (1 - share)) + 0.1 * b, theta[1], theta[2] - 0.1 * s * b, theta[3]])


def inside(slopes, s, b):
    """The ceiling highest at a size of 1.5 to 5.5 (of 1 to 8 that are run), and 0.1 to 0.3 lower in its logit per ln^2.

    The place is uniform in the log; it and the height follow from slopes that `law` would use otherwise.
    """
    theta = law(slopes, s, b)
    place, height = 0.4 + 1.3 * (slopes[1][0] - 0.1) / 0.3, 0.1 + 0.25 * slopes[2][1]
    return np.array([slopes[0][0] + 0.4 - height * (s - place) ** 2 + slopes[2][0] * b, *theta[1:]])


def flat(slopes, s, b):
    """No effect of any setting."""
    return slopes[0]


WORLDS = {
    "law": (law, "white"), "noisy": (law, "AR"), "curved": (curved, "AR"), "saturating": (saturating, "AR"),
    "inside": (inside, "AR"), "flat": (flat, "AR"),
}  # fmt: skip
WRONG = 0.02
"""Regret above which a decision was wrong: the margin within which `frontier` counts settings as the same."""


def drawn_slopes(rng):
    """Draw the center, the slopes in size and those in batch; uniform, unlike the prior."""
    center = [rng.uniform(-0.2, 0.6), rng.uniform(-2.5, -1.0), rng.uniform(0.2, 0.7), rng.uniform(0.1, 0.25)]
    size = [rng.uniform(0.1, 0.4), rng.uniform(0.2, 0.9), rng.uniform(-0.1, 0.1), rng.uniform(0.0, 0.04)]
    batch = [rng.uniform(0.0, 0.2), rng.uniform(0.0, 0.8), rng.uniform(-0.1, 0.05), 0.0]
    return np.array([center, size, batch])


def level(theta, compute):
    return sigmoid(compute, 1 / (1 + np.exp(-theta[0])), np.exp(theta[2]), np.exp(theta[1]), max(theta[3], 0.0))


def noise(rng, kind):
    """White noise of 0.005, or AR(1) with phi 0.7 and 0.008."""
    if kind == "white":
        return 0.005 * rng.standard_normal(POINTS)
    made = [rng.standard_normal()]
    for _ in range(POINTS - 1):
        made.append(0.7 * made[-1] + np.sqrt(1 - 0.49) * rng.standard_normal())
    return 0.008 * np.array(made)


def one_world(name, seed, seeds):
    """Return coverages, errors and regrets of one world with this many runs per setting."""
    rng = np.random.default_rng(seed)
    truth, kind = WORLDS[name]
    slopes = drawn_slopes(rng)
    theta = {tuple(x.values()): truth(slopes, np.log(x["size"]), np.log(x["batch"])) for x in ALL}
    typical = {x: level(t, BUDGET) for x, t in theta.items()}
    run = {x: t + TAU * rng.standard_normal(4) for x, t in theta.items()}
    while True:
        small = [x for x in ALL if x["size"] < SIZES[-1]]
        seen = [small[i] for i in sorted(rng.choice(len(small), 8, replace=False))]
        if len({x["size"] for x in seen}) == 4 and len({x["batch"] for x in seen}) == 3:
            break
    compute = np.linspace(0, BUDGET / 4, POINTS)
    of_runs = [run[tuple(x.values())] for x in seen]
    of_runs += [theta[tuple(x.values())] + TAU * rng.standard_normal(4) for x in seen * (seeds - 1)]
    curves = [Curve(compute, np.clip(level(t, compute) + noise(rng, kind), 0, 1)) for t in of_runs]
    fits = [fit(curve) for curve in curves]
    answer = frontier(fits, seen * seeds, BUDGET, also=[x for x in ALL if x not in small])
    row = defaultdict(list, fallback=[answer.uses != "law"], decided=[answer.decided])
    own_SN = np.array([f.mean(BUDGET)[0] for f in fits]).reshape(seeds, len(seen))
    own = {tuple(x.values()): float(each) for x, each in zip(seen, own_SN.mean(axis=0), strict=True)}
    line = np.array([[1, np.log(s), np.log(b)] for s, b in own])
    straight, *_ = np.linalg.lstsq(line, np.array(list(own.values())), rcond=None)
    for option in answer.options:
        x = tuple(option.setting.values())
        if x in own:
            continue
        where = "largest size" if x[0] == SIZES[-1] else "between"
        true = level(run[x], BUDGET)  # a run that was not used
        near = min(own, key=lambda o: (abs(np.log(o[0] / x[0])) + abs(np.log(o[1] / x[1])), o))
        row[f"covered, {where}"].append(option.level.low <= true <= option.level.high)
        row[f"width, {where}"].append(option.level.high - option.level.low)
        row[f"error of the law, {where}"].append(option.level.mean - true)
        row[f"error of the nearest run, {where}"].append(own[near] - true)
        row[f"error of a line, {where}"].append(straight @ [1, *np.log(x)] - true)
    best = max(typical.values())
    largest = max(own, key=lambda x: x)
    picks = {"frontier": tuple(answer.best.setting.values()), "per-run fits": max(own, key=own.get)}
    last = int(np.argmax([c.metric[-3:].mean() for c in curves])) % len(seen)
    picks |= {"largest run": largest, "highest last value": tuple(seen[last].values())}
    picks["line in the logs"] = max(typical, key=lambda x: straight @ [1, *np.log(x)])
    for method, x in picks.items():
        row[f"regret of {method}"].append(best - typical[x])
    wrong = best - typical[picks["frontier"]] > WRONG
    row["decided wrongly, of all"] = [answer.decided and wrong]
    if answer.decided:
        row["regret of frontier when decided"].append(best - typical[picks["frontier"]])
        row["decided wrongly, of decided"].append(wrong)
    return row


def worlds(repeats, names, seeds, first):
    """Return the table of these worlds, made with the random seeds from the first on."""
    table = {}
    for name in names:
        columns = defaultdict(list)
        for seed in range(repeats):
            for key, values in one_world(name, first + seed, seeds).items():
                columns[key] += values
        table[name] = {
            key: float(np.sqrt(np.mean(np.square(v))) if key.startswith("error") else np.mean(v))
            for key, v in sorted(columns.items())
        }
        print(f"\n{name}")
        for key, value in table[name].items():
            print(f"  {key:44} {value:.4f}   n {len(columns[key])}")
    return table


BASE = {"completions": 768.0, "length": 14.0, "generations": 16.0}
ROWS = [
    (BASE, 2542, 1.92, 0.610), ({**BASE, "length": 32.0}, 11272, 1.89, 0.645),
    ({**BASE, "completions": 512.0}, 2818, 1.77, 0.605), ({**BASE, "completions": 2048.0}, 10909, 1.70, 0.645),
    ({**BASE, "generations": 8.0}, 2542, 2.44, 0.585), ({**BASE, "generations": 24.0}, 3054, 2.22, 0.590),
    ({**BASE, "generations": 32.0}, 2936, 2.07, 0.595),
]  # fmt: skip
"""ScaleRL (arXiv 2510.13786) Table 1: settings, C_mid in GPU-hours, B, A."""


def table_1():
    """Leave each row but the base out and predict its ceiling against the base row's, without published exponents."""
    rng = np.random.default_rng(0)

    def cloud(midpoint, efficiency, asymptote):
        a = np.clip(asymptote + 0.02 / 1.645 * rng.standard_normal(400), 0.01, 0.99)
        c, b, r = rng.standard_normal((3, 400)) * [[0.1], [0.1], [0.03]]
        draws = [np.log(a / (1 - a)), np.log(midpoint) + c, np.log(efficiency) + b, 0.375 + r]
        return smoothed(np.stack(draws, axis=1)[:100])

    out = []
    for setting, *numbers in ROWS[1:]:
        kept = [row for row in ROWS if row[0] != setting]
        found = pooled([cloud(*row[1:]) for row in kept], [row[0] for row in kept], published=False)
        theta_DSK = found.at([setting, BASE])
        ceiling_SD = levels(theta_DSK, 1e30, (0, 1)).T
        at_100k_SD = levels(found.new_run(theta_DSK), 100_000.0, (0, 1)).T
        truth = levels(np.array([np.log(numbers[2] / (1 - numbers[2])), np.log(numbers[0]), np.log(numbers[1]), 0.375]),
                       100_000.0, (0, 1))  # fmt: skip
        higher, (low, high) = (ceiling_SD[0] > ceiling_SD[1]).mean(), np.quantile(at_100k_SD[0], (0.05, 0.95))
        changed = {k: v for k, v in setting.items() if v != BASE[k]}
        out.append({"row": changed, "A": numbers[2], "predicted": float(ceiling_SD[0].mean()), "above": float(higher),
                    "low": float(low), "high": float(high), "level": float(truth)})  # fmt: skip
        print(f"{changed!s:26} A {numbers[2]:.3f} (base .610), predicted {ceiling_SD[0].mean():.3f}, above base with "
              f"{higher:.2f}; at 100,000 h {truth:.3f} in ({low:.3f} to {high:.3f})")  # fmt: skip
    return out


def sizes(path):
    """Predict the largest Qwen3 of a public study from the smaller ones."""
    rows = defaultdict(list)
    for row in csv.DictReader(Path(path).read_text().splitlines()):
        if row["run"].startswith("qwen3-") and row["run"].endswith("-grpo-gsm8k"):
            rows[float(row["run"].split("-")[1].rstrip("b"))].append((float(row["compute"]), float(row["value"])))
    fits = {n: fit(Curve(*zip(*points, strict=True), axis="step")) for n, points in sorted(rows.items())}
    out = []
    for target in list(fits)[3:]:
        smaller = [n for n in fits if n < target]
        truth = dict(rows[target])
        for step in (12.0, 28.0, 52.0):
            answer = frontier([fits[n] for n in smaller], [{"billions": n} for n in smaller], step,
                              also=[{"billions": target}])  # fmt: skip
            at = {n: float(fits[n].mean(step)[0]) for n in smaller}
            slope, start = np.polyfit(np.log(smaller), list(at.values()), 1)
            line = min(start + slope * np.log(target), 1.0)
            option = next((o for o in answer.options if o.setting["billions"] == target), None)
            said = f"{option.level:.3f}" if option else "none (per-run fits)"
            out.append({"size": target, "step": step, "true": truth[step], "law": said, "uses": answer.uses,
                        "nearest": at[smaller[-1]], "line": float(line)})  # fmt: skip
            print(f"{target:g}B at step {step:g}: true {truth[step]:.3f}, law {said}, nearest {at[smaller[-1]]:.3f}, "
                  f"line {line:.3f}; uses {answer.uses}; {answer.check}")  # fmt: skip
    return out


def speed():
    """Return the CPU seconds of 50 runs: the fits, and everything after them."""
    rng = np.random.default_rng(0)
    settings = [ALL[i % len(ALL)] for i in range(50)]
    compute, slopes = np.linspace(0, 1, POINTS), drawn_slopes(rng)
    theta = [law(slopes, *np.log(list(x.values()))) for x in settings]
    curves = [Curve(compute, np.clip(level(t, compute) + noise(rng, "white"), 0, 1)) for t in theta]
    times = []
    for _ in range(3):
        start = time.process_time()
        fits = [fit(curve) for curve in curves]
        middle = time.process_time()
        frontier(fits, settings, 4.0)
        times.append((middle - start, time.process_time() - middle))
    print("50 runs, median CPU s: fits {:.2f}, law and decision {:.2f}".format(*np.median(times, axis=0)))
    return np.median(times, axis=0).tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["worlds", "table", "sizes", "speed"])
    parser.add_argument("path", nargs="?")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1, help="worlds: runs per setting")
    parser.add_argument("--first", type=int, default=2000, help="worlds: first random seed")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    made = {
        "worlds": lambda: worlds(args.repeats, [args.path] if args.path else WORLDS, args.seeds, args.first),
        "table": table_1,
        "sizes": lambda: sizes(args.path),
        "speed": speed,
    }
    result = made[args.part]()
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
