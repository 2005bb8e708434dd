"""The packed studies: packing keeps the results, and docs/replication.md and tables.txt have their numbers."""

import json
from pathlib import Path

import pytest
from simulated_study import KNOWN, write_study

from scalerl.core.rows import read_rows
from scalerl.reading.pages.study import study_results
from scalerl.training.study.plan import read_plan

ROOT = Path(__file__).parents[2]


"""Further rows that the page shows of a study."""


@pytest.fixture
def replication(benchmark):
    return benchmark("replication")


@pytest.mark.slow
def test_a_packed_study_gives_the_same_results_after_unpacking(replication, tmp_path):
    study = write_study(tmp_path / "first", KNOWN)
    packed = json.loads(json.dumps(replication.pack(study)))
    again = replication.unpack(packed, tmp_path / "again")
    one, other = (study_results(s) for s in (study, again))
    assert one.to_dict() == other.to_dict() and packed["headlines"] == one.headlines()
    assert len(read_rows(again.run(again.plan.runs()[0]) / "metrics.jsonl")) == 20  # 160 steps, evaluated every 8


def test_the_arm_with_the_false_alarm_gets_the_note_on_departures_from_the_law(replication, tmp_path):
    study = replication.unpack(replication.read("losses"), tmp_path / "losses")
    assert study_results(study).notes[0].startswith("gspo: 1 of 2 runs depart from the law (second rise)")


PLANS = sorted((ROOT / "benchmarks" / "replication").glob("*.toml"))


def test_every_plan_of_the_replication_is_valid():
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert PLANS
    for file in PLANS:
        plan = read_plan(file)
        assert plan.name == file.stem and plan.seeds == (0, 1, 2)
        assert f"benchmarks/replication/{file.name}" in pages
