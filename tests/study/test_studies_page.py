"""docs/studies.md: its example prints the output on the page, and its tables have the measured numbers."""

import contextlib
import io
import json
import re
from pathlib import Path

from doc_pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "studies.md").read_text()
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "allocation.json").read_text())


def verdicts(text):
    return re.findall(r"^  (\w+): (continue|stop)", text, flags=re.MULTILINE)


def test_the_example_prints_what_the_page_shows():
    (example,) = blocks("docs/studies.md", "python")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(example, {})
    assert out.getvalue() in PAGE
    assert verdicts(out.getvalue()) == [("low", "stop"), ("good", "continue"), ("slow", "continue")]


def test_the_table_is_the_one_that_was_measured():
    for setting, rows in MEASURED["settings"].items():
        table = PAGE[PAGE.index(f"| {setting} |") :]
        for policy, row in rows.items():
            compute, p90, _, within = re.search(
                rf"^\| {policy} \| (\S+), (\S+) \| (\S+) \| (\S+) ", table, re.MULTILINE
            ).groups()
            assert (
                abs(float(compute) - row["compute_mean"]) <= 0.0051 and abs(float(p90) - row["compute_p90"]) <= 0.0051
            )
            assert abs(float(within) - row["found_within_0.01"]) <= 0.00051
