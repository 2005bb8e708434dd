"""An error that the user can correct leaves no run directory behind, however late it is found."""

import json
import shutil
from types import SimpleNamespace

import pytest
import runs

import scalerl
from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.core.processes import ProcessDied
from scalerl.training.config import read_config
from scalerl.training.loop import complete, launch
from scalerl.training.models.loading import ExportFailed


def config_of(model, *words):
    return read_config(None, ["--preset", "lab", "--model", str(model), *runs.SMALL, *words])


DISPLAY = SimpleNamespace(
    belongs_to=lambda path: None, configured=lambda config: None, note=lambda text: None, point=lambda points: None
)


def started(model, path, *words):
    return launch.start(config_of(model, *words), path, DISPLAY, lambda: False)


LATE = [
    "check_functions", "model_path_of", "load_prompts", "resolve", "check_rewards", "generator_spec", "_learner",
    "make_curriculum", "RunCompute", "CheckpointStore", "Run", "Followers",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LATE)), ids=LATE)
def test_a_late_error_leaves_the_directory_free(lab_model, tmp_path, monkeypatch, number):
    """Errors and signals in turn, in a new directory and in an empty one."""
    error = (ConfigError("late"), KeyboardInterrupt())[number % 2]

    def fails(*words, **named):
        raise error

    monkeypatch.setattr(launch, LATE[number], fails)
    (tmp_path / "empty").mkdir()
    with pytest.raises(type(error)):
        started(lab_model, tmp_path / ("a/run" if number % 4 < 2 else "empty"))
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_model_with_a_wrong_end_token_leaves_the_directory_free(lab_model, tmp_path):
    shutil.copytree(lab_model, tmp_path / "m")
    (tmp_path / "m/generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5000]}))
    with pytest.raises(ConfigError, match="5000"):
        started(tmp_path / "m", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("error", [ConfigError, PluginError])
def test_an_error_before_the_first_evaluation_leaves_the_directory_free(lab_model, tmp_path, monkeypatch, error):
    """The generator reports its errors when it is first asked for something, after the run has begun."""

    def fails(self):
        raise error("the engine cannot be made")

    monkeypatch.setattr("scalerl.training.engines.pipeline.Pipeline.wait_ready", fails)
    with pytest.raises((ConfigError, complete.RunFailed), match="cannot be made"):
        scalerl.train(config_of(lab_model), run_dir=tmp_path / "run", progress=False)
    assert (tmp_path / "run").exists() is (error is PluginError)


def test_a_run_in_which_a_process_died_keeps_its_log(lab_model, tmp_path, monkeypatch):
    def dies(*words):
        (tmp_path / "run/errors.log").write_text("a traceback")
        raise ProcessDied("it ended")

    monkeypatch.setattr(launch, "_learner", dies)
    with pytest.raises(ProcessDied):
        started(lab_model, tmp_path / "run")
    assert {"errors.log", "config.toml"} <= {file.name for file in (tmp_path / "run").iterdir()}


@pytest.mark.slow
def test_a_resume_that_fails_late_keeps_the_run(lab_model, tmp_path, monkeypatch):
    session = started(lab_model, tmp_path / "run")
    session.close()
    before = sorted(file.name for file in (tmp_path / "run").iterdir())

    def fails(*words):
        raise ConfigError("late")

    monkeypatch.setattr(launch, "stop_tokens", fails)
    with pytest.raises(ConfigError, match="late"):
        launch.resume(tmp_path / "run", None, DISPLAY, lambda: False)
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == before


@pytest.mark.slow
def test_a_run_whose_export_is_wrong_fails_and_keeps_its_checkpoint(lab_model, tmp_path, monkeypatch):
    def fails(model, directory):
        raise ExportFailed("the exported model differs")

    monkeypatch.setattr("scalerl.training.models.policy.save_model", fails)
    with pytest.raises(complete.RunFailed, match="differs\nAll saved results are kept; continue with: scalerl resume"):
        scalerl.train(config_of(lab_model, "--steps", "1"), run_dir=tmp_path / "run", progress=False)
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "failed"
    assert (tmp_path / "run/checkpoints/step_000001").exists() and not (tmp_path / "run/model").exists()
