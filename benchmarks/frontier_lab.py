"""The lab's grid for docs/frontier-evidence.md: predicts settings that were not run, and compares after they were run.

    python benchmarks/frontier_lab.py predict studies/grid    # writes results/frontier_lab.json, before the rest runs
    python benchmarks/frontier_lab.py compare studies/grid    # after the rest has run
    python benchmarks/frontier_lab.py predict studies/grid-1 --seed 1    # results/frontier_lab_1.json

The grid has 5 widths x 3 numbers of prompts per step x 3 numbers of generations. Arms of the largest width and of the
most prompts are held out. A run's last level is that of its own fit at its last evaluation.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from scalerl.reading.curves import Curve, fit, frontier
from scalerl.reading.curves.pool import EDGE, levels, likelihood, logit, pooled
from scalerl.training.study.directory import StudyDirectory

RESULTS = Path(__file__).parent / "results"
NAMES = ("model.width", "recipe.prompts_per_step", "recipe.generations_per_prompt")
WIDTHS, PROMPTS, GENERATIONS = (64, 80, 96, 128, 160), (8, 16, 32), (8, 16, 32)
BOUNDS = (0.0, 1.0)
BUDGETS = (4e11, 8e11, 1.6e12)
"""FLOPs at which a setting is chosen."""


def setting(width, prompts, generations):
    return dict(zip(NAMES, map(float, (width, prompts, generations)), strict=True))


ARMS = {f"w{w}-p{p}-g{g}": setting(w, p, g) for w in WIDTHS for p in PROMPTS for g in GENERATIONS}
HELD = [name for name, x in ARMS.items() if x[NAMES[0]] == WIDTHS[-1] or x[NAMES[1]] == PROMPTS[-1]]


def arms_of(study, names):
    """Return the arms of these that the study has."""
    return [name for name in names if name in {arm.name for arm in study.plan.arms}]


def fits_of(study, names, seed):
    """Return the fits of one seed of these arms."""
    return {name: fit(Curve.read(study.path / name / f"seed-{seed}", compute="flops")) for name in names}


def parameters(f):
    """Return the posterior means of (logit A, ln C_mid, ln B, R0) of one run."""
    a = np.clip(f.draws.asymptote, EDGE, 1 - EDGE)
    draws = (logit(a), np.log(f.draws.midpoint), np.log(f.draws.efficiency), f.draws.initial)
    return np.array([draw.mean() for draw in draws])


def columns(settings):
    return np.array([[1.0, *np.log([x[name] for name in NAMES])] for x in settings])


def predict(study, seed):
    """Predict the held-out arms from the others, with three methods."""
    held_out = arms_of(study, HELD)
    fits = fits_of(study, [name for name in arms_of(study, ARMS) if name not in HELD], seed)
    seen, held = [ARMS[name] for name in fits], [ARMS[name] for name in held_out]
    last = [f.last_compute for f in fits.values()]
    grid = np.geomspace(min(last) / 3, max(last) * 6, 61)
    law = pooled([likelihood(f) for f in fits.values()], seen, published=True)
    plain = pooled([likelihood(f) for f in fits.values()], seen, published=False)
    line_PK = np.linalg.lstsq(columns(seen), np.array([parameters(f) for f in fits.values()]), rcond=None)[0]
    apart = np.abs(columns(held)[:, None] - columns(seen)).sum(axis=-1)
    run_DSK, plain_DSK = (one.new_run(one.at(held)) for one in (law, plain))
    arms = {}
    for s, name in enumerate(held_out):
        level_MD, plain_MD = (np.stack([levels(t[:, s], c, BOUNDS) for c in grid]) for t in (run_DSK, plain_DSK))
        near = [f for f, d in zip(fits.values(), apart[s], strict=True) if d <= apart[s].min() + 1e-9]
        arms[name] = {
            "law": level_MD.mean(axis=1), "low": np.quantile(level_MD, 0.05, axis=1),
            "high": np.quantile(level_MD, 0.95, axis=1), "law without published": plain_MD.mean(axis=1),
            "per-run fits": np.array([levels(columns(held)[s] @ line_PK, c, BOUNDS) for c in grid]),
            "nearest run": np.mean([f.mean(grid) for f in near], axis=0),
        }  # fmt: skip
    choices = {}
    for budget in BUDGETS:
        answer = frontier(list(fits.values()), seen, budget, also=held)
        own = {name: float(f.mean(budget)[0]) for name, f in fits.items()}
        named = {tuple(x.values()): name for name, x in ARMS.items()}
        choices[f"{budget:g}"] = {
            "frontier": named[tuple(answer.best.setting.values())], "decided": answer.decided, "uses": answer.uses,
            "per-run fits": max(own, key=own.get), "largest run": max(fits, key=lambda n: fits[n].last_compute),
            "text": str(answer),
        }  # fmt: skip
        print(answer)
    rounded = {name: {key: np.round(v, 4).tolist() for key, v in one.items()} for name, one in arms.items()}
    return {"compute": [float(f"{c:.4g}") for c in grid], "arms": rounded, "choices": choices}


def compare(study, seed, said):
    """Return the observed last levels next to the predictions, and print the tables."""
    fits, held_out = fits_of(study, arms_of(study, ARMS), seed), arms_of(study, HELD)
    methods = ("law", "law without published", "per-run fits", "nearest run")
    rows, grid = {}, np.log(said["compute"])
    for name in held_out:
        at = fits[name].last_compute
        row = {key: float(np.interp(np.log(at), grid, values)) for key, values in said["arms"][name].items()}
        rows[name] = {"compute": at, "observed": float(fits[name].mean(at)[0]), **row}
    groups = {
        "all": held_out,
        "width 160, up to 16 prompts": [n for n in held_out if n.startswith("w160") and "-p32-" not in n],
        "32 prompts, width up to 128": [n for n in held_out if "-p32-" in n and not n.startswith("w160")],
        "both": [n for n in held_out if "-p32-" in n and n.startswith("w160")],
    }
    for name, row in rows.items():
        print(f"{name:14} {row['observed']:.3f}  law {row['law']:.3f} ({row['low']:.3f} to {row['high']:.3f})  "
              + "  ".join(f"{key} {row[key]:.3f}" for key in methods[1:]))  # fmt: skip
    table = {}
    for group, names in groups.items():
        if not names:
            continue
        inside = np.mean([rows[n]["low"] <= rows[n]["observed"] <= rows[n]["high"] for n in names])
        error = {m: float(np.sqrt(np.mean([(rows[n][m] - rows[n]["observed"]) ** 2 for n in names]))) for m in methods}
        table[group] = {"n": len(names), "inside": float(inside), "error": error}
        print(f"{group}: {len(names)} cells, {inside:.0%} inside", {k: round(v, 3) for k, v in error.items()})
    regrets = {}
    for budget, choice in said["choices"].items():
        reached = {n: float(f.mean(float(budget))[0]) for n, f in fits.items()}
        best = max(reached, key=reached.get)
        regrets[budget] = {"best": best, "level": reached[best]} | {
            m: [choice[m], round(reached[best] - reached[choice[m]], 4)]
            for m in ("frontier", "per-run fits", "largest run")
        }
        print(budget, regrets[budget])
    return {**said, "observed": rows, "table": table, "regrets": regrets}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["predict", "compare"])
    parser.add_argument("study", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    study = StudyDirectory.open(args.study)
    result = RESULTS / (f"frontier_lab_{args.seed}.json" if args.seed else "frontier_lab.json")
    if args.part == "predict":
        made = predict(study, args.seed)
    else:
        made = compare(study, args.seed, json.loads(result.read_text()))
    result.write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
