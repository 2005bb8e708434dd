import tomllib

import pytest

from scalerl.config import LAB, PRESETS, RunConfig, merge, parse_config, read_config, to_toml
from scalerl.config.base import build, replace
from scalerl.config.data import shares
from scalerl.config.overrides import groups
from scalerl.config.recipe import Gspo, PpoOffPolicy, Recipe
from scalerl.core.errors import ConfigError

TWO_TASKS = """
[[data]]
kind = "arithmetic"
operations = [1, 3]
share = 3

[[data]]
kind = "programs"
name = "lines"
held_out = 100
"""


TWO_FILES = """
[[data]]
kind = "file"
path = "easy.jsonl"

[[data]]
kind = "file"
path = "hard.jsonl"
name = "hard"
"""


def test_the_lab_is_the_default():
    assert read_config(None, []) == LAB


def test_options_override_the_file_and_the_file_overrides_the_preset(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text('steps = 7\nseed = 1\n[recipe]\nloss = "gspo"\n[recipe.optimizer]\nlearning_rate = 1e-3\n')
    config = read_config(file, ["--seed", "2", "--recipe.loss.clip_high=5e-3"])
    assert (config.steps, config.seed) == (7, 2)
    assert config.recipe.loss == Gspo(clip_low=3e-3, clip_high=5e-3)
    assert config.recipe.optimizer.learning_rate == 1e-3 and config.recipe.optimizer.warmup_steps == 20


def test_a_change_of_kind_drops_the_fields_of_the_other_kind():
    config = read_config(None, ["--recipe.off_policy", "ppo-off-policy", "--recipe.off_policy.batches", "4"])
    assert config.recipe.off_policy == PpoOffPolicy(batches=4)
    assert merge({"a": {"kind": "x", "n": 1}}, {"a": {"kind": "y"}}) == {"a": {"kind": "y"}}
    assert merge({"a": {"kind": "x", "n": 1}}, {"a": {"m": 2}}) == {"a": {"kind": "x", "n": 1, "m": 2}}


def test_a_user_model_and_data_start_from_sizes_for_one_machine(monkeypatch):
    monkeypatch.setattr("scalerl.config.presets.sees_gpu", lambda: True)
    config = read_config(None, ["--model", "some/model", "--data", "p.jsonl", "--task", "math"])
    assert config.model.path == "some/model" and [task.path for task in config.data] == ["p.jsonl"]
    assert config.recipe == PRESETS["small"].recipe and config.evaluation.prompts == "auto"


def test_the_schedule_is_eager_if_engines_do_not_step_together():
    assert read_config(None, []).schedule == "deterministic"
    assert read_config(None, ["--placement.backend", "ray"]).schedule == "eager"
    servers = ["--placement.engine", "vllm", "--placement.servers", "['http://a:1', 'http://b:1', 'http://c:1']"]
    assert (read_config(None, servers).schedule, read_config(None, servers).placement.engines) == ("eager", 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["--recipe.retire_pass_rate", "none"]),
        ("", ["--model", "m", "--data", "d"]),
        ("", ["--model.experts", "4", "--recipe.off_policy.stale", "mask", "--rollouts.lag_ticks", "follow"]),
        ("", ["--placement.generators", "2", "--rollouts.lag_ticks", "0", "--rollouts.weights", "directory"]),
        (TWO_TASKS, ["--model.experts", "4"]),
        (TWO_FILES, ["--model", "m"]),
    ],
)
def test_a_saved_configuration_reads_back_equal(text, words, tmp_path):
    config = written(tmp_path, 'preset = "lab"\n' + text, *words)
    assert build(RunConfig, tomllib.loads(to_toml(config)), "x") == config
    assert written(tmp_path, to_toml(config)) == config


def written(directory, text, *words):
    (directory / "given.toml").write_text(text)
    return read_config(directory / "given.toml", words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--loss.max_ratio 4", "--recipe.loss.max_ratio"),
        ("--recipe.lss x", "recipe.loss"),
        ("--recipe.loss.max_ratio", "value is needed"),
        ("--preset labb", "'lab'"),
        ("--data p.jsonl", "give --model"),
        ("--model.experts 4 --model.active_experts 6", "1 to experts = 4"),
        ("--data.share -1", "data.*share"),
        ("--data.share 0.3", "one task"),
        ("--data.held_out 0", "data.held_out: got 0"),
        ("--placement.generators 4 --rollouts.slots 3", "rollouts.slots: got 3"),
        ("--placement.backend ray --rollouts.schedule deterministic", "rollouts.schedule"),
        ("--placement.servers ['http://a:1']", "engine = 'vllm'"),
        ("--placement.engine vllm --placement.servers ['a:1']", "got 'a:1'"),
        (
            "--placement.engine vllm --hardware.device cpu --recipe.top_p 0.9",
            "recipe.top_p: got 0.9 with a vLLM server",
        ),
        (
            "--placement.engine vllm --placement.backend ray --device cpu --recipe.routing_replay on",
            "recipe.routing_replay: got 'on' .*allowed: 'off', a GPU, or placement.engine = 'torch'",
        ),
        ("stray", "got 'stray'"),
    ],
)
def test_a_mistyped_option_is_an_error_with_the_nearest_name(words, expected):
    with pytest.raises(ConfigError, match=expected):
        read_config(None, words.split())


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("stepps = 3\n", [], "'steps'"),
        ("[recipe.loss]\nmax_ratio = 0\n", [], "recipe.loss.max_ratio: got 0"),
        (TWO_TASKS, ["--data.points", "3"], "arithmetic, lines"),
        ("data = []\n", [], "no task"),
        ('[[data]]\nkind = "arithmetic"\n' * 2, [], "'arithmetic'"),
    ],
)
def test_an_invalid_file_is_an_error_with_its_name_and_place(tmp_path, text, words, expected):
    with pytest.raises(ConfigError, match=f"^(.*given.toml|command line)?.*{expected}"):
        written(tmp_path, text, *words)


def test_several_tasks_have_a_table_each(tmp_path):
    config = written(tmp_path, TWO_TASKS)
    assert config.tasks == ["arithmetic", "lines"] and shares(config.data) == {"arithmetic": 0.75, "lines": 0.25}
    assert config.data[0].operations == (1, 3) and config.data[1].points == 4
    output = "512 held-out prompts of arithmetic and 100 held-out prompts of lines x 4 samples"
    assert output in config.derived_sizes()[-1]
    assert read_config(None, ["--data.kind", "programs"]).tasks == ["programs"]
    changed = written(tmp_path, TWO_TASKS, "--data.lines.points", "3", "--data.arithmetic.share", "1")
    assert changed.data[1].points == 3 and shares(changed.data) == {"arithmetic": 0.5, "lines": 0.5}


def test_several_user_files_start_from_sizes_for_one_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("scalerl.config.presets.sees_gpu", lambda: True)
    config = written(tmp_path, TWO_FILES, "--model", "m")
    assert config.tasks == ["math", "hard"] and config.recipe == PRESETS["small"].recipe


def test_every_field_is_documented():
    fields = [field for _, record in groups() for name, field in record.model_fields.items() if name != "kind"]
    assert len(fields) > 200 and all(field.description for field in fields)


def test_gspo_sets_its_default_aggregation(tmp_path):
    file, named = tmp_path / "my.toml", tmp_path / "named.toml"
    file.write_text('[recipe]\nloss = "gspo"\n')
    named.write_text('[recipe]\nloss = "gspo"\naggregation = "prompt"\n')
    clip = ["--recipe.loss.clip_high", "5e-3"]
    for given, words, aggregation in (
        (file, [], "sample"), (file, clip, "sample"), (None, ["--recipe.loss", "gspo"], "sample"),
        (named, [], "prompt"), (named, clip, "prompt"),  # as chosen
        (file, ["--recipe.aggregation", "token"], "token"), (file, ["--recipe.loss", "dapo"], "prompt"),
    ):  # fmt: skip
        assert read_config(given, words).recipe.aggregation == aggregation, (given, words)
    assert Recipe(loss=Gspo()).aggregation == "sample" and Recipe().aggregation == "prompt"


def test_a_saved_configuration_and_an_ablation_with_gspo_keep_their_aggregation():
    ablated = replace(LAB, recipe=replace(LAB.recipe, loss=Gspo()))
    assert ablated.recipe.aggregation == "prompt"
    assert parse_config(to_toml(ablated), "config.toml") == ablated
