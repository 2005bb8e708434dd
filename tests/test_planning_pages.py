"""Every command of docs/planning.md and docs/monitoring.md runs, in order, on a tiny model."""

import json
import shlex
import shutil

import pytest
import runs
from doc_pages import blocks

from scalerl import cli

OPTIONS = [
    "--steps", "16", "--evaluation.every", "2", "--evaluation.prompts", "8", "--recipe.prompts_per_step", "4",
    "--recipe.generations_per_prompt", "4", "--recipe.length.kind", "none", "--recipe.length.max_tokens", "40",
    "--rollouts.expected_tokens", "20", "--checkpoint.every", "4", "--checkpoint.keep", "8",
]  # fmt: skip
"""A run of seconds whose checkpoints include step 8."""


@pytest.mark.slow
def test_the_commands_of_the_pages_plan_train_judge_and_rescue_a_run(
    lab_model, tmp_path, monkeypatch, capsys, handlers
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(lab_model, tmp_path / "my-model")
    rows = [{"prompt": f"{i}+{j}=<think>", "answer": f"{(i + j) % 10}"} for i in range(10) for j in range(8)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pages = [block for page in ("planning", "monitoring") for block in blocks(f"docs/{page}.md", "bash")]
    commands = [line for block in pages for line in block.splitlines()]
    verbs = [shlex.split(command)[1] for command in commands]
    assert verbs == ["new", "train", "plan", "train", "fit", "resume", "design", "design", "ls", "fit", "resume"]
    for command in commands:
        command, _, target = command.partition(" > ")
        _, verb, *words = shlex.split(command)
        if verb in ("train", "resume"):
            code, output = runs.call(verb, *words, *(OPTIONS if verb == "train" else []))
        else:
            code, output = cli.main([verb, *words]), capsys.readouterr().out
        assert code == 0, (command, output)
        if target:
            (tmp_path / target).write_text(output)
    assert json.loads((tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines()[-1])["step"] == 30
