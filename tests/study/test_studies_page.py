"""The allocation of a study: its example stops the right arm, and docs/benchmarks.md has the measured numbers."""

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "allocation.json").read_text())


def verdicts(text):
    return re.findall(r"^  (\w+): (continue|stop)", text, flags=re.MULTILINE)


def test_the_example_stops_the_low_arm_and_continues_the_slow_one(capsys):
    runpy.run_path(str(ROOT / "examples/allocate_budget.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert verdicts(out) == [("low", "stop"), ("good", "continue"), ("slow", "continue")]


def test_the_table_is_the_one_that_was_measured():
    for setting, rows in MEASURED["settings"].items():
        table = BENCHMARKS[BENCHMARKS.index(f"| {setting} |") :]
        for policy, row in rows.items():
            compute, p90, _, within = re.search(
                rf"^\| {policy} \| (\S+), (\S+) \| (\S+) \| (\S+) ", table, re.MULTILINE
            ).groups()
            assert (
                abs(float(compute) - row["compute_mean"]) <= 0.0051 and abs(float(p90) - row["compute_p90"]) <= 0.0051
            )
            assert abs(float(within) - row["found_within_0.01"]) <= 0.00051
