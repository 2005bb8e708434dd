"""What a run finds before it starts: prompts of files, and the default for a user's model without a GPU."""

import json

import pytest
from commands import call

from scalerl.training.config import PRESETS, read_config
from scalerl.training.loop.planned import DEMONSTRATIONS, demonstration, laptop_seconds, pool_of
from scalerl.training.models.sizes import sizes_of
from scalerl.training.placement.sizes import PromptCounts, derived_sizes

SMALL_MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 512,
               "max_position_embeddings": 4096, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}  # fmt: skip
LARGE = {"hidden_size": 768, "num_hidden_layers": 24, "num_attention_heads": 12, "num_key_value_heads": 4,
         "intermediate_size": 2560, "vocab_size": 65536}  # fmt: skip
"""Sizes of a model with some 200M parameters."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a small model, a larger one, and 60 prompts of 30 characters each, without a GPU."""
    for name, values in (("small-model", SMALL_MODEL), ("large-model", {**SMALL_MODEL, **LARGE})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(values))
    rows = [
        {"prompt": f"What is the square of {n:02}, done?"[:30].ljust(30, "."), "answer": str(n * n)} for n in range(60)
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scalerl.training.config.presets.sees_gpu", lambda: False)
    return tmp_path


def words(model, *more):
    return ["--model", f"./{model}", "--data", "p.jsonl", "--task", "math", *more]


@pytest.mark.usefixtures("place")
def test_the_default_without_a_gpu_is_the_largest_that_a_laptop_trains_in_ten_minutes():
    small, said = demonstration(None, words("small-model"))
    assert (small.steps, small.recipe) == (PRESETS["laptop"].steps, PRESETS["laptop"].recipe)
    assert said[0].startswith("demonstration: ") and "100 updates of 8 prompts x 8 completions" in said[0]
    large, said = demonstration(None, words("large-model"))
    model = sizes_of(large.model)
    taken = [one for one in DEMONSTRATIONS if one.steps == large.steps and one.prompts == large.recipe.prompts_per_step]
    assert len(taken) == 1 and large.evaluation.prompts == min(taken[0].held_out, 60 // 5)
    assert laptop_seconds(large, model, pool_of(large)) <= 600
    before = DEMONSTRATIONS[DEMONSTRATIONS.index(taken[0]) - 1]
    larger = read_config(None, words("large-model"), before.fields(60))
    assert laptop_seconds(larger, model, pool_of(larger)) > 600
    command = "scalerl train --model ./large-model --data p.jsonl --task math --preset small"
    assert said[-1] == f"the real run, on a GPU: {command}"


@pytest.mark.usefixtures("place")
def test_fields_that_a_user_sets_stay_in_a_demonstration():
    config, said = demonstration(None, words("large-model", "--recipe.generations_per_prompt", "6", "--seed", "3"))
    assert said and config.recipe.generations_per_prompt == 6 and config.seed == 3 and config.steps < 100


@pytest.mark.usefixtures("place")
def test_draws_of_each_prompt_are_said_with_a_caution_above_twenty():
    lines = [
        line for steps in ("120", "121") for line in derived_sizes(
            read_config(None, words("small-model", "--steps", steps)), PromptCounts({"math": 48}, {"math": 12})
        )
    ]  # fmt: skip
    few, many = [line for line in lines if line.startswith("prompts: ")]
    assert few == "prompts: each of 48 training prompts is drawn 20.0 times"  # 120 steps of 8
    assert "is drawn 20.2 times. Caution: more than 20 times" in many
    assert "evaluation every 20 steps: 12 held-out prompts x 1 samples" in lines


FEW = """class Few:
    def rows(self, count):
        return [{"prompt": f"{n} + {n} =", "n": n} for n in range(30)]

    def score(self, row, completion):
        return completion == str(2 * row["n"])
"""
TASK = """[model]
kind = "hf"
path = "{model}"
[data]
kind = "custom"
function = "few_rows:Few"
prompts = 24
[recipe]
prompts_per_step = 4
"""


def test_a_dry_run_counts_prompts_as_the_run_does(place, lab_model, capsys, monkeypatch):
    """48 of 60 prompts are left, and a step needs 49; a task of 30 rows cannot give 24 and 8 held-out ones."""
    given = ["--recipe.prompts_per_step", "49", "--evaluation.prompts", "12", "--steps", "5", "--dry-run"]
    code, _, error = call(capsys, "train", *words("small-model"), *given)  # has no tokenizer
    assert code == 2 and "got 12 of 60 prompts, which leaves 48 for training; allowed: at most 11" in error
    code, _, error = call(capsys, "train", "--data.prompts", "15", "--dry-run")
    assert code == 2 and "data.prompts: got 15; allowed: at least the 16 of a step" in error

    (place / "few_rows.py").write_text(FEW)
    (place / "task.toml").write_text(TASK.format(model=lab_model))
    monkeypatch.syspath_prepend(place)
    dry = ["train", "task.toml", "--dry-run", "--evaluation.prompts"]
    code, out, _ = call(capsys, *dry, "8")
    assert code == 0 and "few_rows:Few must make 32 distinct ones" in out
    code, _, error = call(capsys, *dry, "8", "--trust")
    assert code == 2 and "made 30 distinct prompts; allowed: at least 32" in error
    code, out, _ = call(capsys, *dry, "6", "--trust")
    assert code == 0 and "each of 24 training prompts is drawn" in out
