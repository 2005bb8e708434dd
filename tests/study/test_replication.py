"""The packed studies: packing keeps the results, and docs/replication.md has their numbers."""

import json
import re
from pathlib import Path

import pytest
from simulated_study import KNOWN, write_study

from scalerl.rows import read_rows
from scalerl.study.analysis import study_results

ROOT = Path(__file__).parents[2]
PAGE = re.sub(" +", " ", (ROOT / "docs" / "replication.md").read_text())
PACKED = sorted(path.stem for path in (ROOT / "benchmarks" / "results" / "replication").glob("*.json"))


@pytest.fixture
def replication(benchmark):
    return benchmark("replication")


def test_a_packed_study_gives_the_same_results_after_unpacking(replication, tmp_path):
    study = write_study(tmp_path / "first", KNOWN)
    packed = json.loads(json.dumps(replication.pack(study)))
    again = replication.unpack(packed, tmp_path / "again")
    one, other = (study_results(s) for s in (study, again))
    assert one.to_dict() == other.to_dict() and packed["headlines"] == one.headlines()
    assert len(read_rows(again.run(again.runs()[0]) / "metrics.jsonl")) == 20  # 160 steps, evaluated every 8


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.slow
def test_the_page_has_the_rows_of_the_packed_runs(replication, tmp_path, name):
    packed = replication.read(name)
    study = replication.unpack(packed, tmp_path / name)
    assert study_results(study).headlines() == packed["headlines"]
    for row in replication.table(study):
        if set(row) <= set("|-"):  # under the heading
            continue
        assert re.sub(" +", " ", row) in PAGE, f"docs/replication.md lacks {row}"


def test_the_arm_with_the_false_alarm_gets_the_note_on_departures_from_the_law(replication, tmp_path):
    study = replication.unpack(replication.read("losses"), tmp_path / "losses")
    assert study_results(study).notes[0].startswith("gspo: 1 of 2 runs depart from the law (second rise)")


def test_every_plan_of_the_replication_is_valid():
    from scalerl.study.plan import read_plan

    plans = sorted((ROOT / "benchmarks" / "replication").glob("*.toml"))
    assert plans
    for file in plans:
        plan = read_plan(file)
        assert plan.name == file.stem and plan.seeds == (0, 1, 2)
        assert f"benchmarks/replication/{file.name}" in PAGE
