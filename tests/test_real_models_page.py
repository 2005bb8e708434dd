"""Every command of docs/real-models.md runs, in order, on a tiny model and the rows of the page."""

import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
import runs
from doc_pages import blocks
from json_rows import write_rows

from scalerl import cli

PAGE = "docs/real-models.md"


CHANGES = {
    "steps = 400": "steps = 14", "every = 25": "every = 1", "prompts = 200": "prompts = 16",
    "prompts_per_step = 8": "prompts_per_step = 4", "max_tokens = 96": "max_tokens = 40",
    "expected_tokens = 45": "expected_tokens = 20", "learning_rate = 1e-5": "learning_rate = 1e-2",
}  # fmt: skip
"""For the lab's model: fewer steps, enough evaluations for a fit, and a rate that changes the curve in few steps."""


@pytest.mark.slow
def test_the_commands_of_the_page_lead_from_a_model_to_a_forecast(lab_model, tmp_path, monkeypatch, capsys, handlers):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(lab_model, tmp_path / "my-model")
    sums = [(i, j) for i in range(10) for j in range(8)]
    write_rows(tmp_path / "traces.jsonl", [{"prompt": f"{i}+{j}=", "completion": f"{(i + j) % 10}"} for i, j in sums])
    rows = [{"prompt": f"{i}+{j}=<think>", "answer": f"{(i + j) % 10}"} for i, j in sums]
    write_rows(tmp_path / "prompts.jsonl", rows)
    write_rows(tmp_path / "test.jsonl", rows[:12])
    (table,) = blocks(PAGE, "toml")
    assert tomllib.loads(table)["model"]["path"] == "warm"
    for old, new in CHANGES.items():
        assert old in table
        table = table.replace(old, new)
    (tmp_path / "run.toml").write_text(table)
    (warm_start,) = blocks(PAGE, "python")
    assert "report_to=[]" in warm_start
    warm_start = warm_start.replace("report_to=[]", "report_to=[], use_cpu=True, bf16=False")
    subprocess.run([sys.executable, "-c", warm_start], check=True, timeout=300)
    commands = [shlex.split(line)[1:] for block in blocks(PAGE, "bash") for line in block.splitlines()]
    verbs = ["eval", "train", "train", "resume", "eval", "fit", "forecast", "backtest"]
    assert [words[0] for words in commands] == verbs
    for words in commands:
        if words[0] in ("train", "resume"):
            code, output = runs.call(*words)
            assert code == 0, output
        else:
            assert cli.main([*words, *(["--max-tokens", "40"] if words[0] == "eval" else [])]) == 0, (
                words,
                capsys.readouterr(),
            )
    output = capsys.readouterr().out
    assert "test: 12 prompts" in output
    assert len((tmp_path / "runs/mine/points.jsonl").read_text().splitlines()) == 15
