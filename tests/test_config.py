import re
import tomllib

import pytest

from scalerl.core.errors import ConfigError
from scalerl.training.config import LAB, PRESETS, RunConfig, merge, parse_config, read_config, to_toml
from scalerl.training.config.base import build, replace
from scalerl.training.config.data import RewardFunction, shares
from scalerl.training.config.overrides import build_from, groups, plain_values
from scalerl.training.config.recipe import GRPO, MINIMAX, Dapo, Gspo, PpoOffPolicy, Recipe, adopt
from scalerl.training.placement.choices import schedule_name
from scalerl.training.placement.sizes import derived_sizes

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
    monkeypatch.setattr("scalerl.training.config.presets.sees_gpu", lambda: True)
    config = read_config(None, ["--model", "some/model", "--data", "p.jsonl", "--task", "math"])
    assert config.model.path == "some/model" and [task.path for task in config.data] == ["p.jsonl"]
    assert config.recipe == PRESETS["small"].recipe and config.evaluation.prompts == "auto"


def test_the_schedule_is_eager_if_engines_do_not_step_together():
    assert schedule_name(read_config(None, [])) == "deterministic"
    assert schedule_name(read_config(None, ["--placement.backend", "ray"])) == "eager"
    servers = ["--placement.engine", "vllm", "--placement.servers", "['http://a:1', 'http://b:1', 'http://c:1']"]
    assert (schedule_name(read_config(None, servers)), read_config(None, servers).placement.engines) == ("eager", 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["--recipe.retire_pass_rate", "none"]),
        ("", ["--model", "m", "--data", "d"]),
        ("", ["--model.experts", "4", "--recipe.off_policy.stale", "mask"]),
        ("", ["--placement.generators", "2", "--rollouts.slots", "8", "--rollouts.weights", "directory"]),
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
        ("--recipe.learning_rate 1", "did you mean --recipe.optimizer.learning_rate"),
        ("--recipe grpoo", "did you mean 'grpo'.*allowed: .*scalerl"),
        ("--recipe.loss.max_ratio", "value is needed"),
        ("--data p.jsonl", "give --model"),
        ("--model.experts 4 --model.active_experts 6", "1 to experts = 4"),
        ("--data.share -1", "data.*share"),
        ("--data.share 0.3", "one task"),
        ("--data.held_out 0", "data.held_out: got 0"),
        ("--placement.generators 4 --rollouts.slots 3", "rollouts.slots: got 3"),
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
        ("[recipe]\nlearning_rate = 1\n", [], "did you mean 'optimizer.learning_rate'"),
        ("recipe = 'grpoo'\n", [], "did you mean 'grpo'"),
        (TWO_TASKS, ["--data.prompts", "3"], "arithmetic, lines"),
        ("data = []\n", [], "no task"),
        ('[[data]]\nkind = "arithmetic"\n' * 2, [], "'arithmetic'"),
    ],
)
def test_an_invalid_file_is_an_error_with_its_name_and_place(tmp_path, text, words, expected):
    with pytest.raises(ConfigError, match=f"^(.*given.toml|command line)?.*{expected}"):
        written(tmp_path, text, *words)


LOOKS = [
    *("2024-01-02", "1e3", "none", "", "[1, 2]", "{a = 1}", "1 # x", "--x", '"a" and "b"'),
]
MINE = ["--model", "m", "--data", "p.jsonl"]


@pytest.mark.parametrize("text", LOOKS)
def test_text_is_what_was_typed_whatever_it_looks_like(text, tmp_path):
    config = read_config(None, [*MINE, "--recipe.name", text, f"--data.system_prompt={text}", "--data.name", text])
    assert (config.recipe.name, config.data[0].system_prompt, config.data[0].name) == (text, text, text)
    assert written(tmp_path, to_toml(config)) == config
    assert written(tmp_path, TWO_TASKS, "--data.lines.name", text).data[1].name == text


def test_other_fields_are_read_by_their_types():
    for field, text, value in (
        ("columns", "{prompt = 2024, answer = 'a'}", {"prompt": "2024", "answer": "a"}),
        ("truncated_reward", "1e-1", 0.1), ("truncated_reward", "none", None),
        ("reward", "2024:f", RewardFunction(function="2024:f")),
    ):  # fmt: skip
        assert getattr(read_config(None, [*MINE, f"--data.{field}", text]).data[0], field) == value
    words = ["--placement.engine", "vllm", "--placement.vllm_arguments", '["--a", 8, 1e3, true, 2024-01-02]']
    assert read_config(None, words).placement.vllm_arguments == ("--a", "8", "1e3", "true", "2024-01-02")
    assert read_config(None, [*MINE, "--suites", "[2024]"]).tasks == ["math", "2024"]
    for text, value in (("7", 7), ("auto", "auto")):
        assert read_config(None, ["--rollouts.slots", text]).rollouts.slots == value
    assert read_config(None, ["--seed", "1e3"]).seed == 1000


@pytest.mark.parametrize(
    ("field", "text"),
    [("seed", "true"), ("stop_when", "[1]"), ("recipe.loss", "2024"), ("recipe.retire_pass_rate", "1 # x")],
)
def test_a_word_of_another_type_is_an_error_that_shows_it_as_typed(field, text):
    shown = text.strip("[]")
    with pytest.raises(ConfigError, match=f"{field}.*got '{re.escape(shown)}'"):
        read_config(None, [f"--{field}", text])


def test_several_tasks_have_a_table_each(tmp_path):
    config = written(tmp_path, TWO_TASKS)
    assert config.tasks == ["arithmetic", "lines"] and shares(config.data) == {"arithmetic": 0.75, "lines": 0.25}
    assert config.data[0].operations == (1, 3) and config.data[1].prompts == 4096
    output = "512 held-out prompts of arithmetic and 100 held-out prompts of lines x 2 samples"
    assert any(output in line for line in derived_sizes(config))
    assert read_config(None, ["--data.kind", "programs"]).tasks == ["programs"]
    changed = written(tmp_path, TWO_TASKS, "--data.lines.prompts", "300", "--data.arithmetic.share", "1")
    assert changed.data[1].prompts == 300 and shares(changed.data) == {"arithmetic": 0.5, "lines": 0.5}


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


def test_a_recipe_by_name_has_the_sizes_of_the_preset_or_file_and_further_options_apply(tmp_path):
    lab = read_config(None, ["--recipe", "grpo"])
    assert lab == replace(LAB, recipe=adopt(GRPO, LAB.recipe)) and lab.recipe.prompts_per_step == 16
    assert read_config(None, {"recipe": "grpo"}) == lab == written(tmp_path, "recipe = 'grpo'\n")
    assert written(tmp_path, "[recipe]\nkind = 'grpo'\n") == lab == build_from(plain_values(LAB), {"recipe": "grpo"})
    for words in (
        ["--recipe", "dapo", "--recipe.loss.clip_high", "0.3"],
        ["--recipe.loss.clip_high=0.3", "--recipe=dapo"],
    ):
        changed = read_config(None, words).recipe
        assert changed.loss == Dapo(clip_high=0.3) and changed.name == "dapo" and changed.prompts_per_step == 27
    saved = written(tmp_path, 'steps = 9\n[recipe]\nprompts_per_step = 4\nloss = "gspo"\n', "--recipe", "grpo")
    assert saved.recipe == adopt(GRPO, replace(LAB.recipe, prompts_per_step=4)) and saved.steps == 9
    assert parse_config(to_toml(saved), "config.toml") == saved
    mine = read_config(None, ["--preset", "scalerl", "--model", "m", "--data", "p.jsonl", "--recipe", "minimax"])
    assert mine.recipe == MINIMAX


def test_a_saved_configuration_and_an_ablation_with_gspo_keep_their_aggregation():
    ablated = replace(LAB, recipe=replace(LAB.recipe, loss=Gspo()))
    assert ablated.recipe.aggregation == "prompt"
    assert parse_config(to_toml(ablated), "config.toml") == ablated
