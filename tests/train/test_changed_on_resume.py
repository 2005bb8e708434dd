from pathlib import Path

import pytest
import runs

from scalerl.core.errors import ConfigError
from scalerl.training.config import LAB, parse_config, read_config, to_toml
from scalerl.training.config.base import replace
from scalerl.training.config.data import ProgramsTask
from scalerl.training.config.recipe import LaterRate
from scalerl.training.loop.run_info import data_notes
from scalerl.training.loop.saved import Saved, config_changes, continued_config


@pytest.fixture
def run(tmp_path):
    """A run directory."""
    (tmp_path / "config.toml").write_text(to_toml(LAB))
    return tmp_path


SAVED = Saved(Path("step_000008"), {"progress": {"step": 8}, "config": to_toml(LAB)})


def test_the_rate_of_a_resume_is_recorded_with_the_step_of_its_checkpoint(run):
    words = ["--recipe.optimizer.learning_rate", "1e-4"]
    changed = continued_config(run, LAB, words, None, SAVED)
    optimizer = changed.recipe.optimizer
    assert optimizer.learning_rate == LAB.recipe.optimizer.learning_rate
    assert optimizer.later_rates == (LaterRate(after_step=8, learning_rate=1e-4),)
    assert parse_config(to_toml(changed), "text") == changed
    assert "learning rate was set to 0.0001 after step 8" in data_notes(changed)[-1]
    (run / "config.toml").write_text(to_toml(changed))
    again = continued_config(run, changed, {"recipe.optimizer.learning_rate": 5e-5}, 50, SAVED)
    assert again.recipe.optimizer.later_rates == (LaterRate(after_step=8, learning_rate=5e-5),) and again.steps == 50


def test_options_that_do_not_affect_completed_steps_are_accepted(run):
    words = ["--checkpoint.every", "3", "--stop_when", "[]"]
    changed = continued_config(run, LAB, words, 7, None)
    assert changed == replace(LAB, steps=7, checkpoint=replace(LAB.checkpoint, every=3), stop_when=())


@pytest.mark.parametrize("words", [["--recipe.loss", "gspo"], ["--recipe.optimizer.eps", "1e-8"]])
def test_an_option_that_would_make_a_different_run_is_refused(run, words):
    with pytest.raises(ConfigError, match="allowed: --steps"):
        continued_config(run, LAB, words, None, None)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--recipe.length.thinking_tokens", "[40, 60]"], "recipe.length.thinking_tokens = [40, 60] (was [50, 60])"),
        (
            ["--seed", "3", "--data.share", "1", "--data.label_noise", "0.2"],
            "seed = 3 (was 0), data.label_noise = 0.2 (was",
        ),
        (["--recipe.loss", "gspo"], "recipe.loss.kind = 'gspo' (was 'cispo')"),
        (["--recipe.retire_pass_rate", "none"], "recipe.retire_pass_rate = None (was 0.9)"),
    ],
)
def test_a_change_that_is_not_allowed_is_explained_with_its_fields(run, words, changed):
    with pytest.raises(ConfigError) as error:
        continued_config(run, LAB, words, None, SAVED)
    assert changed in str(error.value) and str(error.value).count("(was") <= 5 and "''" not in str(error.value)


def test_a_change_of_one_of_several_tasks_has_the_name_of_the_task(run):
    two = replace(LAB, data=(LAB.data[0], ProgramsTask(name="lines")))
    three = replace(two, data=(*two.data, ProgramsTask(name="more")))
    assert config_changes(two, replace(two, data=(LAB.data[0], ProgramsTask(name="lines", prompts=30)))) == [
        "data.lines.prompts = 30 (was 4096)"
    ]
    assert config_changes(two, three)[0] == "data = 'arithmetic, lines, more' (was 'arithmetic, lines')"
    assert config_changes(LAB, LAB) == []


@pytest.mark.slow
def test_a_run_with_a_bad_gradient_resumes_with_a_lower_rate(lab_model, tmp_path):
    path, words = tmp_path / "run", ["--recipe.optimizer.learning_rate", "1e30", "--recipe.optimizer.warmup_steps", "0"]
    code, text = runs.call(
        "train", "--model", str(lab_model), "--run-dir", str(path), *runs.SMALL, *words, "--steps", "6"
    )
    assert code == 1 and f"scalerl resume {path} --recipe.optimizer.learning_rate 5e+29" in text, text
    assert "Traceback" not in text
    text = runs.finish("resume", str(path), "--recipe.optimizer.learning_rate", "1e-4")
    rates = [row["learning_rate"] for row in runs.rows(path, "metrics.jsonl")]
    assert rates == [1e-4] * 6  # the first update had ruined the weights, and no checkpoint was older
    (later,) = read_config(path / "config.toml", []).recipe.optimizer.later_rates
    assert later.learning_rate == 1e-4 and later.after_step == 0
    assert "the learning rate was set to 0.0001 after step 0" in text
