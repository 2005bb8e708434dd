"""The packed studies: packing keeps the results, and docs/replication.md and tables.txt have their numbers."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from simulated_study import KNOWN, write_study

from scalerl.core.rows import read_rows
from scalerl.reading.pages.study import study_results
from scalerl.training.study.plan import read_plan

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "docs" / "replication.md", ROOT / "benchmarks" / "results" / "replication" / "tables.txt"]
PAGE = re.sub(r"[ ]+|\n(?=[\w[])", " ", "".join(text.read_text() for text in TEXTS))
PACKED = sorted(path.stem for path in (ROOT / "benchmarks" / "results" / "replication").glob("*.json"))


SHOWN = {
    "loo": lambda script, study: [*script.foresight([study], 0.5), *script.hours([study], ["8op", "fp32"])],
    "agents": lambda script, study: script.ends(study),
    "staleness": lambda script, study: script.hours([study], ["pipeline-4", "ppo-8"]),
}
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


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.slow
def test_the_page_has_the_rows_of_the_packed_runs(replication, tmp_path, name):
    packed = replication.read(name)
    study = replication.unpack(packed, tmp_path / name)
    assert study_results(study).headlines() == packed["headlines"]
    rows = replication.sweep(study) if name == "rates" else replication.table(study)
    for row in [*rows, *SHOWN.get(name, lambda *_: [])(replication, study)]:
        if set(row) <= set("|-"):  # under the heading
            continue
        assert re.sub(" +", " ", row) in PAGE, f"docs/replication.md and tables.txt lack {row}"


def test_the_summary_of_the_page_follows_from_its_tables(benchmark):
    script = benchmark("replication_summary")
    page = script.PAGE.read_text()
    assert script.with_summary(page) == page
    changed = script.with_summary(page.replace("| 8op | 0.799 | 0.821 | -0.001 ", "| 8op | 0.799 | 0.821 | -0.066 "))
    assert "| PPO-off-policy-8: A -0.066 " in changed and "all 8 within 0.066" in changed


@pytest.mark.parametrize(
    ("cell", "effect", "verdict"),
    [
        ("+0.008 (-0.017 to +0.034)", 0, "agrees"),
        ("+0.017 (-0.030 to +0.063)", 0, "undecided"),
        ("+0.067 (+0.038 to +0.097)", 0, "disagrees"),
        ("+0.000 (-0.019 to +0.018)", -0.075, "disagrees"),
        ("-0.006 (-0.026 to +0.014)", -0.02, "undecided"),
        ("-0.050 (-0.080 to -0.020)", -0.02, "agrees"),
        ("-0.050 (-0.080 to -0.020)", 0.02, "disagrees"),
    ],
)
def test_a_verdict_compares_the_interval_with_the_effect_that_the_paper_claims(benchmark, cell, effect, verdict):
    assert benchmark("replication_summary").judged(cell, effect) == verdict


def test_the_page_has_the_number_of_seeds_of_every_study(replication):
    seeds = {name: len({key.rpartition("-")[2] for key in replication.read(name)["runs"]}) for name in PACKED}
    three, one = (
        {
            "loo",
            "recipes",
            "experts",
            "choices",
            "long-tail",
            "scale",
            "decides",
            "mixed",
            "ceilings",
            "agents",
            "lab-lag",
        },
        {"rates"},
    )
    assert seeds == {name: 3 if name in three else 1 if name in one else 2 for name in PACKED}
    assert "`ceilings` have three seeds per arm" in PAGE and "the axes, [decides]" in PAGE
    assert "rates have one; all other studies have two" in PAGE


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


@pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
def test_published_plans_name_their_learning_rate(file):
    """Their curves stay reproducible when the lab's rate changes."""
    values = tomllib.loads(file.read_text())
    tables = [values["changes"]] if "learning_rate" in str(values["changes"]) else list(values["arms"].values())
    assert all(table["recipe"]["optimizer"]["learning_rate"] > 0 for table in tables)
    packed = ROOT / "benchmarks" / "results" / "replication" / file.with_suffix(".json").name
    if packed.exists():
        base = tomllib.loads(json.loads(packed.read_text())["plan"])["base"]
        assert read_plan(file).base.recipe.optimizer.learning_rate == base["recipe"]["optimizer"]["learning_rate"]
