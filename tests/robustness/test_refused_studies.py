"""Studies with rows that no study writes: `study show` reads the others, or says what is wrong with a run."""

import pytest
from simulated_study import TWO, write_study

from robustness.campaign import Case, check_here

ROWS = (
    "[" * 100_000, '{"step": NaN}', '{"step": %s}' % ("9" * 400), "7", "x", "{}", '{"arm": 1}', '{"step": 160}',
    '{"arm": "dapo", "seed": 0, "code": "x", "target": 1, "seconds": 1, "step": 1, "said": "x"}',
    '{"arm": [], "seed": 0, "code": 1, "target": 1, "seconds": 1, "step": 1, "said": "x"}',
    '{"step": 5, "task": "arithmetic", "pass_rate": "x", "device_hours": {}, "flops": [], "entropy": "x"}',
    '{"step": 5, "device_hours": 1e308, "flops": 1e308, "tokens": 1e308, "entropy": 1e308}',
)  # fmt: skip
FILES = ("journal.jsonl", "dapo/seed-0/points.jsonl", "dapo/seed-0/metrics.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_broken_rows_of_a_study_are_left_out_or_reported_with_their_run(name, tmp_path, monkeypatch):
    def arrange(here):
        write_study(here / "study", TWO, seeds=1)
        with (here / "study" / name).open("a") as file:
            file.write("\n".join([*ROWS, ""]))

    words = ("study", "show", "study", "-o", "page.html")
    check_here(Case(f"study: {name}", words, arrange, "scalerl", (0,)), tmp_path, monkeypatch)
