"""study.json: what readers use instead of the plan, what they say about a damaged one, and that they write nothing."""

import json
import shutil

import pytest
from commands import call
from simulated_study import TWO, Truth, write_study

from scalerl.core.errors import ConfigError
from scalerl.core.run_files import StudyInfo, read_study
from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_files import StudyFiles, read_files
from scalerl.training.config import QUICK
from scalerl.training.config.base import replace
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.info import study_info
from scalerl.training.study.plan import select
from scalerl.training.study.plans import PLANS

TRUTHS = {**TWO, "gone": Truth(last_step=-1)}


@pytest.fixture
def study(tmp_path):
    return write_study(tmp_path / "known", TRUTHS, seeds=2)


def edited(study, change):
    """Change the values of study.json."""
    values = json.loads((study.path / "study.json").read_text())
    change(values)
    (study.path / "study.json").write_text(json.dumps(values))


def test_study_json_is_read_as_it_was_written(study):
    assert read_study(study.path) == study_info(study.plan) == study.info
    assert [str(key) for key in study.info.runs()] == [str(key) for key in study.plan.runs()]


def test_settings_of_a_grid_and_ranges_survive_the_file(tmp_path):
    grid = replace(select(PLANS["frontier"](QUICK), ["*-p8-g16"]), vary=("model.width",), seeds=(0,))
    study = StudyDirectory.create(tmp_path / "grid", grid)
    files = read_files(study.path)
    assert [files.setting(arm.name) for arm in grid.arms] == [grid.setting(arm) for arm in grid.arms]
    assert {name for name, arm in files.info.arms.items() if arm.held_out} == {"w160-p8-g16"}
    fields = {"vary": ("data.operands",), "settings": {"data.operands": [2, 7]}, "arms": study.info.arms}
    ranges = StudyInfo(name="r", reference="a", **fields)
    assert StudyFiles(study.path, ranges).setting("w96-p8-g16") == {"data.operands": 7.0}  # a range by its upper end


@pytest.mark.slow
def test_a_study_is_shown_without_its_plan_and_configurations(study):
    before = study_results(study).to_dict()
    for name in ("study.toml", "*/seed-*/config.toml", "*/seed-*/run.json"):
        for file in study.path.glob(name):
            file.unlink()
    assert study_results(read_files(study.path)).to_dict() | {"axis": ""} == before | {"axis": ""}


def test_an_arm_without_a_run_is_not_measured(study, tmp_path, capsys):
    shutil.rmtree(study.path / "dapo")
    code, out, _ = call(capsys, "study", "show", str(study.path), "--json")
    arms = {arm["name"]: arm for arm in json.loads(out)["arms"]}
    assert code == 0 and [arms[name]["effect"] for name in ("dapo", "gone")] == ["unknown"] * 2
    assert arms["dapo"]["sentence"] == "dapo: not measured yet (not started)."


def test_reading_a_study_changes_nothing_in_it(study, tmp_path, capsys):
    def state():
        return {path: path.lstat().st_mtime_ns for path in [study.path, *study.path.rglob("*")]}

    before = state()
    code, _, error = call(capsys, "study", "show", str(study.path), "-o", str(tmp_path / "page.html"))
    assert code == 0, error
    assert state() == before


def test_unknown_fields_are_ignored(study):
    edited(study, lambda values: values.update(later=[1]) or values["arms"]["dapo"].update(later={"a": 1}))
    assert read_study(study.path) == study.info


def arm(**fields):
    return lambda values: values["arms"]["dapo"].update(fields)


DAMAGED = {
    "half": None,
    "no name": lambda values: values.pop("name"),
    "an arm is a number": lambda values: values["arms"].update(dapo=7),
    "an arm leads out of the study": lambda values: values["arms"].update({"../../other": values["arms"]["dapo"]}),
    "the reference is no arm": lambda values: values.update(reference="other"),
    "seeds are text": arm(seeds=["a"]),
    "settings are a list": arm(settings=[1]),
    "a task has one bound": lambda values: values.update(tasks={"t": [1]}),
    "the axis is null": lambda values: values.update(axis=None),
    "notes are a number": lambda values: values.update(notes=5),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_study_json_is_one_line_with_the_remedy(study, name, capsys):
    if DAMAGED[name] is None:
        text = (study.path / "study.json").read_text()
        (study.path / "study.json").write_text(text[: len(text) // 2])
    else:
        edited(study, DAMAGED[name])
    code, out, error = call(capsys, "study", "show", str(study.path))
    assert code == 2 and not out and error.count("\n") == 1, error
    assert "study.json is damaged" in error and f"scalerl upgrade {study.path}" in error
    assert call(capsys, "upgrade", str(study.path))[0] == 0
    assert read_study(study.path) == study.info


def test_a_newer_study_is_one_line(study, capsys):
    edited(study, lambda values: values.update(schema=2))
    code, _, error = call(capsys, "study", "show", str(study.path))
    assert code == 2 and error.count("\n") == 1 and "install a newer version" in error


@pytest.mark.slow
def test_upgrade_writes_study_json_and_the_missing_run_json_of_older_studies(study, capsys):
    before = study_results(study).to_dict()
    (study.path / "study.json").unlink()
    old, new = (study.path / name / "seed-0" / "run.json" for name in ("scalerl", "dapo"))
    old.unlink()
    changed = json.loads(new.read_text()) | {"devices": 4.0}
    new.write_text(json.dumps(changed))
    code, _, error = call(capsys, "study", "show", str(study.path))
    assert code == 2 and error.count("\n") == 1 and f"`scalerl upgrade {study.path}`" in error
    assert call(capsys, "upgrade", str(study.path))[0] == 0
    assert old.exists() and json.loads(new.read_text()) == changed  # a run.json that can be read is kept
    assert study_results(read_files(study.path)).to_dict() == before


def test_a_directory_without_a_study_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="no study here"):
        read_files(tmp_path)
