r"""Packs a study into one small file for the repository, unpacks it into a directory, and prints its tables.

    python benchmarks/replication.py pack studies/loo            # writes benchmarks/results/replication/loo.json
    python benchmarks/replication.py unpack loo studies/loo      # then: scalerl study show studies/loo
    python benchmarks/replication.py table studies/loo           # the rows of docs/replication.md
    python benchmarks/replication.py foresight studies/loo ...   # forecasts from the first parts of its runs
    python benchmarks/replication.py hours studies/loo ...       # device-hours for one level
    python benchmarks/replication.py sweep studies/rates         # how learning rates ended
    python benchmarks/replication.py ends studies/agents         # each run's forecasts of its end

A packed study has the plan, every evaluation of every run, the means of the training metrics between evaluations, and
the verdicts:

    {"plan": "name = \"loo\" ...", "machine": {...}, "seconds": 3631.5, "headlines": ["..."],
     "runs": {"dapo/seed-0": {"journal": [{...}], "points": {"step": [0, 8], "pass_rate": [0.2, 0.21], ...},
                              "metrics": {"step": [8], "entropy": [0.3], ...}}}}
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import work

from scalerl.core.rows import read_rows
from scalerl.core.run_files import RunKey
from scalerl.reading.curves import Curve, Estimate, fit, paper_fit
from scalerl.reading.curves.backtesting import rmse, split_at
from scalerl.reading.pages.study import LAST_POINTS, study_results
from scalerl.reading.pages.study_results import METRICS, ArmResult
from scalerl.training.config.overrides import to_toml
from scalerl.training.loop.run_info import run_info
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.plan import plan_toml

RESULTS = Path(__file__).parent / "results" / "replication"

POINTS = ("step", "device_hours", "flops", "tokens", "task", "pass_rate", "stderr", "prompts", "samples_per_prompt")
"""Columns of points.jsonl that are kept."""

SPENT = ("step", "device_hours", "flops", "tokens")
"""Cumulative columns of metrics.jsonl, of which the last value of each interval is kept."""


def pack(study: StudyDirectory) -> dict[str, Any]:
    """Return a study as JSON values, in the format above."""
    journal = study.journal()
    return {
        "plan": plan_toml(study.plan),
        "machine": work.machine(),
        "seconds": round(sum(row["seconds"] for row in journal), 1),
        "headlines": study_results(study).headlines(),
        "runs": {str(key): _packed(study, key, journal) for key in study.plan.runs()},
    }


def _packed(study: StudyDirectory, key: RunKey, journal: list[dict[str, Any]]) -> dict[str, Any]:
    run, every = study.run(key), study.plan.run_config(key).evaluation.every
    mine = [row for row in journal if RunKey(row["arm"], row["seed"]) == key]
    points = [{name: row[name] for name in POINTS} for row in read_rows(run / "points.jsonl")]
    metrics = [
        _mean(list(interval))
        for _, interval in groupby(read_rows(run / "metrics.jsonl"), key=lambda row: (row["step"] - 1) // every)
    ]
    # remove the path of the machine from the last message of a run
    return {
        "journal": [{**row, "said": "" if row["code"] == 0 else row["said"]} for row in mine],
        "points": _columns(points),
        "metrics": _columns(metrics),
    }


def _mean(interval: list[dict[str, Any]]) -> dict[str, float]:
    known = {name: [row[name] for row in interval if row.get(name) is not None] for name in METRICS}
    means = {name: float(f"{statistics.fmean(values):.4g}") for name, values in known.items() if values}
    return {name: interval[-1][name] for name in SPENT} | means


def _columns(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """Convert rows to columns; a constant column becomes a single value."""
    names = dict.fromkeys(name for row in listed for name in row)
    columns = {name: [row.get(name) for row in listed] for name in names}
    return {name: values[0] if len(set(values)) == 1 else values for name, values in columns.items()}


def unpack(packed: Mapping[str, Any], to: Path) -> StudyDirectory:
    """Write a packed study as a directory that `scalerl study show` and `scalerl frontier` read.

    Raises:
        FileExistsError: The directory exists.
    """
    to.mkdir(parents=True)
    (to / "study.toml").write_text(packed["plan"], encoding="utf-8")
    study = StudyDirectory.open(to)
    study.save_info()
    for key in study.plan.runs():
        held = packed["runs"][str(key)]
        for row in held["journal"]:
            study.note(row)
        if held["points"]:
            study.run(key).mkdir(parents=True)
            config = study.plan.run_config(key)
            (study.run(key) / "config.toml").write_text(to_toml(config), encoding="utf-8")
            (study.run(key) / "run.json").write_text(run_info(config).to_json(), encoding="utf-8")
            _write(study.run(key) / "points.jsonl", held["points"])
            _write(study.run(key) / "metrics.jsonl", held["metrics"])
    return study


def _write(path: Path, columns: Mapping[str, Any]) -> None:
    length = max((len(values) for values in columns.values() if isinstance(values, list)), default=1)
    wide = {name: values if isinstance(values, list) else [values] * length for name, values in columns.items()}
    listed = (dict(zip(wide, row, strict=True)) for row in zip(*wide.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")


def table(study: StudyDirectory, axis: str | None = None, task: str | None = None) -> list[str]:
    """Return the rows of a Markdown table: each arm's ceiling and its effect compared with the reference."""
    found = study_results(study, axis, task)
    head = ["| arm | last | mean A | difference in A | ratio of B | ratio of compute | verdict |"]
    return [*head, "|---|---|---|---|---|---|---|", *(table_row(arm) for arm in found.arms)]


def table_row(arm: ArmResult) -> str:
    """Return an arm's row."""
    against, last = arm.comparison, [run.last for run in arm.runs if run.last is not None]
    cells = [
        arm.name,
        f"{statistics.fmean(last):.3f}" if last else "",
        f"{arm.asymptote.mean:.3f}" if arm.asymptote else "",
        _cell(against and against.asymptote_difference, "+.3f"),
        _cell(against and against.efficiency_ratio, ".2f"),
        _cell(against and against.compute_ratio, ".2f"),
        arm.effect,
    ]
    return f"| {' | '.join(cells)} |"


def _cell(found: Estimate | None, pattern: str) -> str:
    if found is None:
        return ""
    mean, low, high = (f"{v:{pattern}}" if abs(v) < 100 else f"{v:.0e}" for v in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})"


def sweep(study: StudyDirectory) -> list[str]:
    """Return a Markdown table of a sweep of learning rates: the mean of the last evaluations by loss and rate."""
    ends: dict[str, dict[str, float]] = defaultdict(dict)
    for key in study.plan.runs():
        loss, _, rate = key.arm.partition("-")
        rows = read_rows(study.run(key) / "points.jsonl")[-LAST_POINTS:]
        ends[loss][rate] = statistics.fmean(row["pass_rate"] for row in rows)
    rates = sorted({rate for found in ends.values() for rate in found}, key=float)
    lines = [f"| loss | {' | '.join(rates)} |", f"|{'---|' * (len(rates) + 1)}"]
    return lines + [
        f"| {loss} | {' | '.join(f'{found[rate]:.3f}' for rate in rates)} |" for loss, found in ends.items()
    ]


def hours(studies: Iterable[StudyDirectory], arms: Sequence[str] = ()) -> list[str]:
    """Return a Markdown table of the device-hours that arms (default: all) need for one level, over the reference's."""
    rows = ["| study, arm | ratio of device-hours |", "|---|---|"]
    for study in studies:
        for arm in study_results(study, "device_hours").arms:
            if arm.comparison and (not arms or arm.name in arms):
                rows.append(f"| {study.plan.name}, {arm.name} | {_cell(arm.comparison.compute_ratio, '.2f')} |")
    return rows


def foresight(studies: Iterable[StudyDirectory], fraction: float) -> list[str]:
    """Return a Markdown table of the errors of each forecast from a share of every run's compute, and a sentence."""
    errors: dict[str, list[float]] = defaultdict(list)
    inside: dict[str, list[float]] = defaultdict(list)
    ends: list[tuple[float, bool]] = []
    for study in studies:
        for key in study.plan.runs():
            curve = Curve.read(study.run(key), compute=study.axis(), task=study.info.task)
            split = split_at(curve, fraction)
            errors[OURS].append(split.forecast.rmse)
            inside[OURS].append(split.forecast.coverage)
            later = curve.compute > fraction * curve.last_compute
            by_paper = paper_fit(curve.between(most=fraction * curve.last_compute))
            miss = by_paper.level(curve.compute[later]) - curve.metric[later]
            errors["sigmoid (the paper's procedure)"].append(rmse(miss))  # it has no band
            for name, score in split.baselines.items():
                errors[name].append(score.rmse)
                inside[name].append(score.coverage)
            ends.append(_end(curve, fraction))
    rows = ["| predicted by | median error | 90% within | worse than the sigmoid | points in the 90% band |"]
    rows.append("|---|---|---|---|---|")
    for name, found in errors.items():
        worse = sum(its > mine for its, mine in zip(found, errors[OURS], strict=True))
        rows.append(
            f"| {name} | {statistics.median(found):.4f} | {_nine_in_ten(found):.4f} | "
            f"{'' if name == OURS else f'{worse} of {len(found)}'} | "
            f"{f'{statistics.fmean(inside[name]):.0%}' if inside[name] else ''} |"
        )
    off, held = [abs(miss) for miss, _ in ends], sum(has for _, has in ends)
    mean, most = statistics.fmean(miss for miss, _ in ends), _nine_in_ten(off)
    rows.append(
        f"The levels at the end, from the first {fraction:.0%} and from the whole run, differ by "
        f"{statistics.median(off):.3f} in the median, by at most {most:.3f} in 90% of the runs, and by {mean:+.3f} on "
        f"average; they agree within the 90% interval in {held} of {len(ends)} runs."
    )
    return rows


def ends(study: StudyDirectory, fractions: Sequence[float] = (0.25, 0.5)) -> list[str]:
    """Return a Markdown table of each run's level at shares of its compute, the forecast of its end there, and the end.

    Levels are single evaluations; forecasts have their 90% interval.
    """
    shares = [f"{fraction:.0%}: level, forecast of the end" for fraction in fractions]
    rows = [f"| run | {' | '.join(shares)} | end |", f"|{'---|' * (len(shares) + 2)}"]
    for key in sorted(study.plan.runs(), key=lambda one: [arm.name for arm in study.plan.arms].index(one.arm)):
        curve = Curve.read(study.run(key), compute=study.axis(), task=study.info.task)
        cells = []
        for fraction in fractions:
            part = curve.between(most=fraction * curve.last_compute)
            end = fit(part).predict(np.array([curve.last_compute]))
            cells.append(f"{part.metric[-1]:.2f}, {end.mean[0]:.2f} ({end.low[0]:.2f} to {end.high[0]:.2f})")
        rows.append(f"| {key.arm}, seed {key.seed} | {' | '.join(cells)} | {curve.metric[-1]:.2f} |")
    return rows


def _end(curve: Curve, fraction: float) -> tuple[float, bool]:
    """Return the error of a forecast of the last level from a part of the run, and whether its interval contains it."""
    at = np.array([curve.last_compute])
    early = fit(curve.between(most=fraction * curve.last_compute)).predict(at)
    level = fit(curve).predict(at).mean[0]
    return float(early.mean[0] - level), bool(early.low[0] <= level <= early.high[0])


def _nine_in_ten(values: Sequence[float]) -> float:
    """Return the smallest value that 90% of the values do not exceed."""
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


OURS = "sigmoid (posterior)"
"""The forecast with which the others are compared."""


def read(name: str) -> dict[str, Any]:
    """Return a packed study of the repository by its name."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def save(name: str, packed: Mapping[str, Any]) -> Path:
    """Write a packed study with one line per run, so that diffs are small."""
    head = {key: value for key, value in packed.items() if key != "runs"}
    runs = (f"{json.dumps(key)}: {json.dumps(run, separators=(',', ':'))}" for key, run in packed["runs"].items())
    lines = [*(f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()), '"runs": {']
    file = RESULTS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + "\n".join(lines) + "\n" + ",\n".join(runs) + "\n}}\n", encoding="utf-8")
    return file


def main(words: Iterable[str] | None = None) -> None:
    """Pack, unpack or tabulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "unpack", "table", "sweep", "foresight", "hours", "ends"))
    parser.add_argument("study", nargs="+", help="directories of studies; unpack: packed name, new directory")
    parser.add_argument("--fraction", type=float, default=0.5, help="foresight: share of the compute that is fitted")
    parser.add_argument("--compute", help="table: compute axis, as in scalerl study show")
    parser.add_argument("--task", help="table: whose curve")
    given = parser.parse_args(None if words is None else list(words))
    if given.what == "unpack":
        name, to = given.study
        print(unpack(read(name), Path(to)).path)
        return
    studies = [StudyDirectory.open(Path(path)) for path in given.study]
    lines = {
        "pack": lambda: [str(save(study.path.name, pack(study))) for study in studies],
        "table": lambda: [line for study in studies for line in table(study, given.compute, given.task)],
        "foresight": lambda: foresight(studies, given.fraction),
        "hours": lambda: hours(studies),
        "ends": lambda: [line for study in studies for line in ends(study)],
        "sweep": lambda: [line for study in studies for line in sweep(study)],
    }
    print("\n".join(lines[given.what]()))


if __name__ == "__main__":
    main()
