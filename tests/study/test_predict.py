"""Studies over settings: the ladder, the held-out arms, and what was predicted before they were run."""

import json

import numpy as np
import pytest
from doc_pages import json_keys
from grid_study import level_of, train
from test_execute import Quiet, ScriptedWorkers

from scalerl.core.errors import ConfigError
from scalerl.core.run_files import RunKey
from scalerl.reading.curves import CurveError
from scalerl.reading.pages.figure import Line
from scalerl.reading.pages.page import page
from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_figures import STUDY_FIGURES
from scalerl.reading.pages.study_law import full_compute
from scalerl.training.config import QUICK
from scalerl.training.config.base import replace
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.display import describe_plan
from scalerl.training.study.execute import Execution, execute
from scalerl.training.study.plan import checked_plan, select
from scalerl.training.study.plans import PLANS
from scalerl.training.study.predict import by_forecast, predict

GRID = replace(PLANS["frontier"](QUICK), seeds=(0,))
SMALL = replace(select(GRID, ["*-g16"]), vary=("model.width", "recipe.prompts_per_step"))
"""Five widths and three numbers of prompts; width 160 and 32 prompts are held out."""


@pytest.fixture
def study(tmp_path):
    return StudyDirectory.create(tmp_path / "s", SMALL)


def keys(study, held_out):
    return [key for key in study.plan.runs() if study.plan.is_held_out(key.arm) == held_out]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished study whose runs follow the law of `grid_study`."""
    study = StudyDirectory.create(tmp_path_factory.mktemp("grid") / "s", SMALL)
    train(study, keys(study, held_out=False))
    predict(study)
    train(study, keys(study, held_out=True))
    return study, study_results(study)


def test_the_grid_has_each_combination_once_and_holds_out_the_largest_width_and_batch():
    assert len(GRID.arms) == 45 and GRID.reference == "w96-p16-g16"
    held_out = [arm.name for arm in GRID.arms if GRID.is_held_out(arm.name)]
    assert len(held_out) == 9 + 4 * 3 and all("w160" in name or "p32" in name for name in held_out)
    arm = GRID.arm("w128-p8-g32")
    assert GRID.setting(arm) == {
        "model.width": 128.0, "recipe.prompts_per_step": 8.0, "recipe.generations_per_prompt": 32.0,
    }  # fmt: skip
    # 240 steps of 16 x 16 completions everywhere
    sampled = {c.steps * c.recipe.completions_per_step for c in (GRID.config(arm, 0) for arm in GRID.arms)}
    assert sampled == {61_440}
    assert sum(line.endswith(", held out") for line in describe_plan(GRID)) == 21


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": ()}, r"held_out: vary = \[\"FIELD\"\] is missing"),
        ({"held_out": ("w256-*",)}, "'w256-\\*' matches no arm"),
        ({"vary": ("model.with",)}, "has no setting 'model.with'.*'model.width'"),
        ({"held_out": ("w160-*", "w128-*", "w96-*", "w80-*")}, "width does not vary: it is 64"),
    ],
)
def test_a_plan_that_determines_no_law_is_an_error_before_it_runs(changes, message):
    with pytest.raises((ConfigError, CurveError), match=message):
        checked_plan(replace(SMALL, **changes))


def test_held_out_arms_start_after_they_are_predicted(study, monkeypatch):
    workers, started = ScriptedWorkers(), []
    monkeypatch.setattr("scalerl.training.study.execute.PROCESSES_POLL_S", 0.0)
    monkeypatch.setattr("scalerl.training.study.execute.by_forecast", lambda study: (["w128-p16-g16"], "it leads"))
    monkeypatch.setattr("scalerl.training.study.execute.predict", lambda study: started.extend(workers.started))
    execute(Execution(study, workers, Quiet(), lambda: False), (0.5, 1.0))
    assert len(started) == 8 + 1 and started[-1] == ("w128-p16-g16/seed-0", "resume", 240)
    assert not any(study.plan.is_held_out(name.split("/")[0]) for name, _, _ in started)
    later = workers.started[len(started) :]
    assert len(later) == 7 and ("w160-p32-g16/seed-0", "train", 120) in later


def test_held_out_arms_that_cannot_be_predicted_are_not_run(study, monkeypatch):
    def fail(study):
        raise CurveError("all runs are flat")

    workers, quiet = ScriptedWorkers(), Quiet()
    monkeypatch.setattr("scalerl.training.study.execute.PROCESSES_POLL_S", 0.0)
    monkeypatch.setattr("scalerl.training.study.execute.predict", fail)
    execute(Execution(study, workers, quiet, lambda: False), (1.0,))
    assert len(workers.started) == 8
    assert quiet.notes == ["held-out arms are not run, because they cannot be predicted: all runs are flat"]


def test_the_compute_of_a_whole_run_is_in_proportion_to_steps_and_a_power_of_the_settings(study):
    """1e9 x width x 61,440 completions; width 160 was not run."""
    train(study, keys(study, held_out=False), share=0.25)
    ends = full_compute(study, study.trained())
    assert ends["w96-p8-g16"] == pytest.approx(96e9 * 61_440) and len(ends) == 15
    assert ends["w160-p32-g16"] == pytest.approx(160e9 * 61_440, rel=1e-6)


def test_after_the_first_slice_the_arms_continue_whose_whole_runs_may_be_the_best(study):
    """At equal completions, 128 x 16 ends highest, then 128 x 8; 64 x 8 and 64 x 16 end lowest."""
    train(study, keys(study, held_out=False), share=0.25)
    true = {key.arm: level_of(study, key, full_compute(study, study.trained())[key.arm]) for key in keys(study, False)}
    ordered = sorted(true, key=true.get)
    assert ordered[:2] == ["w64-p8-g16", "w64-p16-g16"] and ordered[-2:] == ["w128-p8-g16", "w128-p16-g16"]
    arms, reason = by_forecast(study)
    assert set(ordered[-2:]) <= set(arms) and not set(ordered[:2]) & set(arms) and len(arms) < 4
    assert "w64-p8-g16: stop" in reason and "Continue w128-p" in reason
    (row,) = [json.loads(line) for line in (study.path / "allocation.jsonl").read_text().splitlines()]
    assert [name for name, verdict in row["verdicts"].items() if verdict["go_on"]] == arms


def test_held_out_runs_end_where_the_law_predicted(finished):
    study, results = finished
    written = json.loads((study.path / "predicted.json").read_text())
    assert written["uses"] == "law" and len(written["runs"]) == 8 and len(written["arms"]) == 7
    assert len(results.predicted) == 7 and all(row["inside"] for row in results.predicted)
    for row in results.predicted:
        truth = level_of(study, RunKey(row["run"].split("/")[0], 0), row["compute"])
        assert row["observed"] == pytest.approx(truth, abs=0.005) and row["law"] == pytest.approx(truth, abs=0.02)
    errors = [[row[name] - row["observed"] for name in ("law", "nearest")] for row in results.predicted]
    by_law, by_nearest = np.sqrt(np.mean(np.square(errors), axis=0))
    assert by_law < 0.5 * by_nearest
    assert f"7 of 7 held-out runs ended in the 90% interval; error {by_law:.3f} by the law" in results.headlines()[1]
    keys = json_keys()
    assert all(set(row) == keys["Predicted"] for row in results.to_dict()["predicted"])


def test_a_prediction_is_never_changed(finished):
    study, _ = finished
    before = (study.path / "predicted.json").read_bytes()
    predict(study)
    assert (study.path / "predicted.json").read_bytes() == before
    assert not any(name.startswith(("w160", "w128-p32")) for name in json.loads(before)["runs"])


def test_the_figure_names_the_setting_that_is_best_in_each_stretch(finished):
    """The true curves of 64 x 8 and 160 x 32 end at 0.508 and 0.598, and have midpoints of 2.6e14 and 1.1e15 FLOPs."""
    pytest.importorskip("plotly")
    _, results = finished
    figure = STUDY_FIGURES["frontier"](results)
    thick = {one.name: one for one in figure.series if isinstance(one, Line) and one.width == 4}
    best = {name: one.x[np.isfinite(one.y)] for name, one in thick.items()}
    assert max(best["width 64, prompts_per_step 8"]) < 2e15
    last = thick["width 160, prompts_per_step 32"].y[-1]
    assert min(best["width 160, prompts_per_step 32"]) > 2e15 and last == pytest.approx(0.605, abs=0.015)
    blocks = page(results)["blocks"]
    (predicted,) = [block for block in blocks if block.get("title") == "Predicted against observed"]
    assert "w160-p32-g16/seed-0" in [row[0]["text"] for row in predicted["rows"]]
