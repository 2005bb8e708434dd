import tomllib

import pytest

from scalerl.config import LAB, PRESETS, RunConfig, field_lines, merge, parse_config, read_config, to_toml
from scalerl.config.base import build, replace
from scalerl.config.data import shares
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


def test_a_user_model_and_data_start_from_the_papers_sizes():
    config = read_config(None, ["--model", "some/model", "--data", "p.jsonl", "--task", "math"])
    assert config.model.path == "some/model" and [task.path for task in config.data] == ["p.jsonl"]
    assert config.recipe == PRESETS["scalerl"].recipe and config.evaluation.prompts == 1000


def test_the_schedule_is_eager_if_engines_do_not_step_together():
    assert read_config(None, []).schedule == "deterministic"
    assert read_config(None, ["--placement.backend", "ray"]).schedule == "eager"
    servers = ["--placement.engine", "vllm", "--placement.servers", "['http://a:1', 'http://b:1', 'http://c:1']"]
    assert (read_config(None, servers).schedule, read_config(None, servers).placement.engines) == ("eager", 3)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--recipe.loss", "dapo"],
        ["--recipe.retire_pass_rate", "none"],
        ["--model", "m", "--data", "d"],
        ["--model.experts", "4", "--recipe.off_policy.stale", "mask", "--rollouts.lag_ticks", "measure"],
        ["--placement.generators", "2", "--rollouts.lag_ticks", "0", "--rollouts.weights", "directory"],
    ],
)
def test_a_saved_configuration_reads_back_equal(words, tmp_path):
    assert_reads_back(read_config(None, words), tmp_path)


@pytest.mark.parametrize(
    ("tables", "words"), [("TWO_TASKS", ["--model.experts", "4"]), ("TWO_FILES", ["--model", "m"])]
)
def test_a_saved_configuration_of_several_tasks_reads_back_equal(tables, words, tmp_path):
    config = written(tmp_path, globals()[tables], *words)
    assert len(config.data) == 2
    assert_reads_back(config, tmp_path)


def written(directory, text, *words):
    (directory / "given.toml").write_text(text)
    return read_config(directory / "given.toml", words)


def assert_reads_back(config, tmp_path):
    assert build(RunConfig, tomllib.loads(to_toml(config)), "x") == config
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert read_config(tmp_path / "config.toml", []) == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss.max_ratio", "4"], r"unknown option --loss.max_ratio \(did you mean --recipe.loss.max_ratio\?\)"),
        (["--recipe.lss", "x"], r"unknown option --recipe.lss \(did you mean recipe.loss\?\)"),
        (["--recipe.loss.max_ratio"], "--recipe.loss.max_ratio: a value is needed"),
        (["--steps", "soon"], "command line: steps: got 'soon'; input should be a valid integer"),
        (["--preset", "labb"], r"preset: got 'labb' \(did you mean 'lab'\?\); allowed: lab, quick, long-tail, scalerl"),
        (
            ["--data", "p.jsonl"],
            "data.kind: got 'file' with model.kind 'tiny', which has the lab's vocabulary; give --model",
        ),
        (
            ["--model.experts", "4", "--model.active_experts", "6"],
            "model: active_experts: got 6; allowed: 1 to experts = 4",
        ),
        (
            ["--model.experts", "4", "--model.active_experts", "3"],
            "active_experts: got 3; allowed: a divisor of 4 x width = 256",
        ),
        (["--data.kind", "program"], r"data.kind: got 'program' \(did you mean 'programs'\?\)"),
        (["--data.share", "-1"], "data.*share: got -1; input should be greater than or equal to 0"),
        (["--data.share", "0.3"], "data.share: got 0.3 with one task"),
        (["--data.share", "0"], "data.share: got 0; allowed: shares that sum to more than 0"),
        (["--data.held_out", "0"], "data.held_out: got 0 for the task 'arithmetic'; allowed: at least 1"),
        (
            ["--rollouts.lag_ticks", "-2"],
            "rollouts.lag_ticks: got -2; allowed: auto, follow, measure, or a number of decode steps of at least 0",
        ),
        (
            ["--rollouts.lag_ticks", "soon"],
            "rollouts.lag_ticks: got 'soon'; allowed: auto, follow, measure, or a number",
        ),
        (
            ["--placement.generators", "4", "--rollouts.slots", "3"],
            "rollouts.slots: got 3 for 4 generators; allowed: at least one slot for each generator",
        ),
        (
            ["--placement.backend", "ray", "--rollouts.schedule", "deterministic"],
            "rollouts.schedule: got 'deterministic' with engines on Ray or of vLLM.*allowed: auto, eager",
        ),
        (
            ["--placement.servers", "['http://a:1']"],
            "placement.*servers: got 1 addresses with engine 'torch'; allowed: engine = 'vllm'",
        ),
        (
            ["--placement.engine", "vllm", "--placement.servers", "['a:1']"],
            "placement.*servers: got 'a:1'; allowed: addresses such as http://10.0.0.5:8000",
        ),
        (
            ["--placement.tensor_parallel", "2"],
            "placement.*tensor_parallel: got 2 with engine 'torch', which uses one GPU; allowed: 1, or engine = 'vllm'",
        ),
        (["stray"], "got 'stray'; allowed: one TOML file, then options"),
        (
            ["--recipe.length.thinking_tokens", "60", "80"],
            r"got '80'; .* \(a list is one value: --recipe.length.thinking_tokens '\[60, 80\]'\)",
        ),
        (
            ["--hardware.device", "tpu"],
            r"hardware.device: got 'tpu' \(did you mean 'cpu'\?\); allowed: auto, cpu, cuda",
        ),
    ],
)
def test_a_mistyped_option_is_an_error_with_the_nearest_name(words, message):
    with pytest.raises(ConfigError, match=message):
        read_config(None, words)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"steps = \n", "my.toml: not valid TOML: "),
        (b"\xff\xfe", "my.toml: not valid TOML: "),
        (b"stepps = 3\n", r"my.toml: unknown key 'stepps' \(did you mean 'steps'\?\)"),
        (b"[recipe.loss]\nmax_ratio = 0\n", "my.toml: recipe.loss.max_ratio: got 0"),
        (b"[recipe]\nloss = 3\n", "my.toml: recipe.loss: got 3"),
    ],
)
def test_a_bad_file_is_an_error_with_its_name_and_place(tmp_path, content, message):
    (tmp_path / "my.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / "my.toml", [])


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"missing.toml: no such file"):
        read_config(tmp_path / "missing.toml", [])


def test_several_tasks_have_a_table_each(tmp_path):
    config = written(tmp_path, TWO_TASKS)
    assert config.tasks == ["arithmetic", "lines"] and shares(config.data) == {"arithmetic": 0.75, "lines": 0.25}
    assert config.data[0].operations == (1, 3) and config.data[1].points == 4
    output = "512 held-out prompts of arithmetic and 100 held-out prompts of lines x 4 samples"
    assert output in config.derived_sizes()[-1]
    assert read_config(None, ["--data.kind", "programs"]).tasks == ["programs"]
    changed = written(tmp_path, TWO_TASKS, "--data.lines.points", "3", "--data.arithmetic.share", "1")
    assert changed.data[1].points == 3 and shares(changed.data) == {"arithmetic": 0.5, "lines": 0.5}


def test_several_user_files_start_from_the_papers_sizes(tmp_path):
    config = written(tmp_path, TWO_FILES, "--model", "m")
    assert config.tasks == ["math", "hard"] and config.recipe == PRESETS["scalerl"].recipe


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (TWO_TASKS, ["--data.points", "3"], "has the tasks arithmetic, lines; got the option data.points; allowed: "),
        ("data = []\n", [], "data: got no task; allowed: "),
        ("data = 3\n", [], "given.toml: data"),
        ("[[data]]\n[[data]]\n", [], "data"),
        (
            '[[data]]\nkind = "arithmetic"\n[[data]]\nkind = "arithmetic"\noperations = [1, 2]\n',
            [],
            "data: got two tasks with the name 'arithmetic'; give each task a different `name`",
        ),
    ],
)
def test_invalid_lists_of_tables_are_refused(tmp_path, text, words, message):
    with pytest.raises(ConfigError, match=message):
        written(tmp_path, text, *words)


def test_every_field_is_documented():
    lines = field_lines()
    assert len(lines) > 60 and all(text for _, _, text in lines)


def test_derived_sizes_are_described():
    text = "\n".join(LAB.derived_sizes())
    assert "16 prompts x 16 generations = 256 completions" in text and "at most 8 updates old" in text


def test_gspo_sets_its_default_aggregation(tmp_path):
    file, named = tmp_path / "my.toml", tmp_path / "named.toml"
    file.write_text('[recipe]\nloss = "gspo"\n')
    named.write_text('[recipe]\nloss = "gspo"\naggregation = "prompt"\n')
    found = {
        "file": read_config(file, []),
        "file, and a field of the loss": read_config(file, ["--recipe.loss.clip_high", "5e-3"]),
        "words": read_config(None, ["--recipe.loss", "gspo"]),
        "file chooses": read_config(named, []),
        "file chooses, words change the clip": read_config(named, ["--recipe.loss.clip_high", "5e-3"]),
        "words choose": read_config(file, ["--recipe.aggregation", "token"]),
        "words choose another loss": read_config(file, ["--recipe.loss", "dapo"]),
    }
    assert {name: config.recipe.aggregation for name, config in found.items()} == {
        "file": "sample",
        "file, and a field of the loss": "sample",
        "words": "sample",
        "file chooses": "prompt",
        "file chooses, words change the clip": "prompt",
        "words choose": "token",
        "words choose another loss": "prompt",
    }
    assert Recipe(loss=Gspo()).aggregation == "sample" and Recipe().aggregation == "prompt"


def test_a_saved_configuration_and_an_ablation_with_gspo_keep_their_aggregation():
    ablated = replace(LAB, recipe=replace(LAB.recipe, loss=Gspo()))
    assert ablated.recipe.aggregation == "prompt"
    assert parse_config(to_toml(ablated), "config.toml") == ablated
