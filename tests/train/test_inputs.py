"""A resume notices other rows, prompts, end tokens, tokenizers and models than those with which the run began."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
import runs
from safetensors.torch import load_file, save_file
from texts import Tokenizer

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.config.trust import code_of
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.loop.inputs import (
    check_model,
    check_prompts,
    code_inputs,
    code_notes,
    model_inputs,
    prompt_inputs,
)
from scalerl.training.models.loading import load_tokenizer
from scalerl.training.models.policy import load_policy
from scalerl.training.placement.choices import policy_spec
from scalerl.training.prompts.dataset import PromptSplit, load_prompts

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "level": {"a": a}} for a in range(4) for b in range(5)]


def split_of(path, tokenizer, *words):
    sizes = ["--recipe.prompts_per_step", "4", "--evaluation.prompts", "5", *words]
    return load_prompts(read_config(None, ["--model", "m", "--data", str(path), *sizes]), tokenizer)


def write(path, rows, **options):
    text = "".join(json.dumps(row, **options) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def saved(inputs, path):
    """Return inputs as a resume gets them from a checkpoint."""
    save_state(path, "trainer", {"inputs": inputs})
    return load_state(path, "trainer")["inputs"]


def changed(**values):
    return [*ROWS[:3], {**ROWS[3], **values}, *ROWS[4:]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            changed(prompt="0+33="),
            r"p\.jsonl line 4: this row is not .* \(1 of 20 rows are new or changed, and 1 of the",
        ),
        (changed(answer="5"), r"p\.jsonl line 4: .*1 of 20 rows are new"),
        (changed(level={"a": 0.0}), r"p\.jsonl line 4: "),
        ([*ROWS, {"prompt": "9+9=", "answer": "18"}], r"p\.jsonl line 21: .*1 of 21 rows .* 0 of the 20 before"),
        (ROWS[:18], r"p\.jsonl line: row 19 of those with which the run began is missing \(0 of 18 .* 2 of the 20"),
        (changed(prompt="1+4=", answer="5", level={"a": 1}), r"p\.jsonl line: row 4 of those"),
    ],
    ids=["prompt", "answer", "type", "appended", "removed", "duplicate of another"],
)
def test_other_rows_are_an_error_with_the_first_that_differs(tmp_path, rows, message):
    before = saved(prompt_inputs(split_of(write(tmp_path / "p.jsonl", ROWS), Tokenizer())), tmp_path / "saved")
    now = split_of(write(tmp_path / "p.jsonl", rows), Tokenizer())
    with pytest.raises(ConfigError, match=message) as caught:
        check_prompts(before, prompt_inputs(now), now, Path("runs/mine"))
    assert "scalerl train runs/mine/config.toml --run-dir ANOTHER" in str(caught.value)


def test_the_same_rows_in_another_order_or_form_are_no_change(tmp_path):
    before = saved(prompt_inputs(split_of(write(tmp_path / "p.jsonl", ROWS), Tokenizer())), tmp_path / "saved")
    forms = {
        "reversed.jsonl": (ROWS[::-1], {}),
        "spaced.jsonl": (ROWS, {"separators": (" , ", " : ")}),
        "packed.jsonl.gz": (ROWS, {}),
        "sorted.jsonl": (ROWS, {"sort_keys": True}),
        "twice.jsonl": (ROWS + ROWS[:4], {}),
    }
    for name, (rows, options) in forms.items():
        now = split_of(write(tmp_path / name, rows, **options), Tokenizer())
        check_prompts(before, prompt_inputs(now), now, Path("run"))


class Shifted(Tokenizer):
    """Gives another token to the character 4."""

    def __call__(self, text, **options):
        rows = super().__call__([text] if isinstance(text, str) else text)["input_ids"]
        rows = [[byte + (byte == ord("4")) for byte in row] for row in rows]
        return {"input_ids": rows[0] if isinstance(text, str) else rows}


def test_other_tokens_of_the_same_rows_are_an_error_with_the_first_prompt(tmp_path):
    path = write(tmp_path / "p.jsonl", ROWS)
    before = saved(prompt_inputs(split_of(path, Tokenizer())), tmp_path / "saved")
    now = split_of(write(path, ROWS[::-1]), Shifted())
    with pytest.raises(ConfigError, match=r"line 1: the prompt has other tokens .* as have 3 other .* now '3\+4='"):
        check_prompts(before, prompt_inputs(now), now, Path("run"))  # 3+4, 2+4, 1+4 and 0+4


def test_a_row_that_contains_itself_is_an_error_with_its_place(tmp_path):
    (prompt, *_) = split_of(write(tmp_path / "p.jsonl", ROWS), Tokenizer()).all_prompts
    prompt.columns["level"]["b"] = prompt.columns
    with pytest.raises(ConfigError, match=r"p\.jsonl line 1: the row is nested too deeply"):
        prompt_inputs(PromptSplit((), (), (prompt,)))


# --------------------------------------------------------------------------------------------------------- the model


def edit(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def scale_norms(model):
    weights = load_file(model / "model.safetensors")
    weights |= {name: 1.5 * weight for name, weight in weights.items() if "norm" in name}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def nudge_one_weight(model):
    weights = load_file(model / "model.safetensors")
    next(iter(weights.values()))[-1, -1] += 1e-3
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def mark_as_special(model):
    values = json.loads((model / "tokenizer.json").read_text())
    values["added_tokens"].append({**values["added_tokens"][0], "id": 5, "content": "4", "special": True})
    (model / "tokenizer.json").write_text(json.dumps(values))


CHANGES = {
    "base": (lambda model: edit(model / "config.json", rope_parameters={"rope_theta": 5e5, "rope_type": "default"}),
             r"config\.json has changed: rope_parameters\.rope_theta was 10000\.0 and is 500000\.0"),
    "end": (lambda model: edit(model / "generation_config.json", eos_token_id=[1, 2, 3]),
            r"the tokens that end a completion were \[.*\] and are \[.*\] \(eos_token_id in"),
    "special": (mark_as_special, r"the tokenizer has changed: the text of its tokens"),
    "norms": (scale_norms, r"the weights of the model have changed, on which .* adapters .*: model\.safetensors"),
    "one weight": (nudge_one_weight, r"the weights of the model have changed"),
}  # fmt: skip
FROZEN = {"norms": ("--model.lora.rank", "2"), "one weight": ("--recipe.kl_coefficient", "0.01")}
"""Options with which a run reads the weights of the start model again."""


def inputs_of(model, *words):
    config = read_config(None, ["--model", str(model), "--preset", "lab", *words])
    policy, tokenizer = load_policy(str(model)), load_tokenizer(str(model))
    spec, prompts = policy_spec(config, str(model)), load_prompts(config, tokenizer)
    return model_inputs(spec, policy, tokenizer, prompts, reference=config.recipe.kl_coefficient > 0)


@pytest.mark.parametrize("change", CHANGES)
def test_another_model_is_an_error_with_what_changed(lab_model, tmp_path, change):
    model, (apply, message) = Path(shutil.copytree(lab_model, tmp_path / "m")), CHANGES[change]
    words = FROZEN.get(change, ())
    before = saved(inputs_of(model, *words), tmp_path / "saved")
    check_model(before, inputs_of(model, *words), str(model), tmp_path)
    apply(model)
    with pytest.raises(ConfigError, match=message) as caught:
        check_model(before, inputs_of(model, *words), str(model), tmp_path)
    assert str(caught.value).startswith(f"model.path: {model}: ") and "start a new run" in str(caught.value)


def test_what_a_run_does_not_use_may_change(lab_model, tmp_path):
    model = Path(shutil.copytree(lab_model, tmp_path / "m"))
    before = saved(inputs_of(model), tmp_path / "saved")
    scale_norms(model)  # all weights are trained, so they are in the checkpoint
    edit(model / "config.json", transformers_version="4.0.0", dtype="bfloat16")
    edit(model / "tokenizer_config.json", chat_template="{{ messages[0].content }}", model_max_length=7)
    check_model(before, inputs_of(model), str(model), tmp_path)


def test_changed_code_of_a_reward_function_is_a_note(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "rewards_of_a_resume.py"
    file.write_text("def right(prompts, completions, **columns): return [0.0 for _ in completions]\n")
    data = str(write(tmp_path / "p.jsonl", ROWS))
    words = ["--model", "some/model", "--data", data, "--reward", "rewards_of_a_resume:right"]
    before = code_inputs(code_of(read_config(None, words)))
    assert list(before) == ["data.reward = rewards_of_a_resume:right"]
    assert code_notes(before, code_inputs(code_of(read_config(None, words)))) == []
    file.write_text(file.read_text().replace("0.0", "1.0"))
    (note,) = code_notes(before, code_inputs(code_of(read_config(None, words))))
    assert note.startswith("data.reward = rewards_of_a_resume:right has changed since the checkpoint")


@pytest.mark.slow
def test_a_resume_with_other_rows_changes_nothing_and_with_the_same_rows_continues(lab_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{a}+{b}=<think>", "answer": str(a + b)} for a in range(10) for b in range(6)]
    data, words = write(tmp_path / "rows.jsonl", rows), ["--preset", "lab", *runs.RECIPE, "--evaluation.every", "4"]
    words = ["--model", str(lab_model), "--data", "rows.jsonl", "--task", "arithmetic", *words]
    for name, steps in (("whole", "8"), ("stopped", "4")):
        runs.finish("train", "--run-dir", name, *words, "--steps", steps)
    files = {path: path.read_bytes() for path in Path("stopped").rglob("*") if path.is_file()}
    write(data, [*rows, {"prompt": "7+7=<think>", "answer": "4"}])
    code, text = runs.call("resume", "stopped", "--steps", "8")
    assert code == 2 and "rows.jsonl line 61" in text and "Traceback" not in text, text
    assert {path: path.read_bytes() for path in Path("stopped").rglob("*") if path.is_file()} == files
    write(data, rows[::-1])
    runs.finish("resume", "stopped", "--steps", "8")
    assert runs.outcome(tmp_path / "stopped") == runs.outcome(tmp_path / "whole")
