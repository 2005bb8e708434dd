"""Every command of docs/real-models.md runs, in order, on a tiny model and the rows of the page."""

import shlex
import shutil
import subprocess
import sys

import pytest
import runs
from doc_pages import blocks
from transformers import AutoModelForCausalLM

from scalerl import cli

PAGE = "docs/real-models.md"


ROWS = {
    "range(2, 42)": "range(10)", "range(5, 20)": "range(8)", "What is {a} * {b}?": "{a}+{b}=<think>",
    "str(a * b)": "str((a + b) % 10)", "Answer: ": "", "100": "12", "200": "30",
}  # fmt: skip
"""For the lab's model, which knows digits only: other sums, and fewer of them."""
OPTIONS = [
    "--steps", "14", "--evaluation.every", "1", "--evaluation.prompts", "8", "--recipe.prompts_per_step", "4",
    "--recipe.length.kind", "none", "--recipe.length.max_tokens", "40", "--rollouts.expected_tokens", "20",
    "--recipe.optimizer.learning_rate", "1e-2",
]  # fmt: skip
"""Few steps, enough evaluations for a fit, and a rate that changes the curve in few steps."""


@pytest.mark.slow
def test_the_commands_of_the_page_lead_from_a_model_to_a_forecast(lab_model, tmp_path, monkeypatch, capsys, handlers):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(lab_model, tmp_path / "my-model")
    data, warm_start = blocks(PAGE, "python")
    for old, new in ROWS.items():
        assert old in data
        data = data.replace(old, new)
    exec(data, {})
    assert "report_to=[]" in warm_start
    warm_start = warm_start.replace("report_to=[]", "report_to=[], use_cpu=True, bf16=False")
    subprocess.run([sys.executable, "-c", warm_start], check=True, timeout=300)
    commands = [shlex.split(line)[1:] for block in blocks(PAGE, "bash") for line in block.splitlines()]
    verbs = ["eval", "train", "train", "resume", "eval", "fit", "forecast", "backtest"]
    assert [words[0] for words in commands] == verbs
    for words in commands:
        if words[0] in ("train", "resume"):
            code, output = runs.call(*words, *(OPTIONS if words[0] == "train" else []))
            assert code == 0, output
        else:
            assert cli.main([*words, *(["--max-tokens", "40"] if words[0] == "eval" else [])]) == 0, (
                words,
                capsys.readouterr(),
            )
    output = capsys.readouterr().out
    assert "test: 12 prompts" in output
    assert len((tmp_path / "runs/mine/points.jsonl").read_text().splitlines()) == 15
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "runs/mine/model")
    assert model.config.vocab_size == AutoModelForCausalLM.from_pretrained("my-model").config.vocab_size
