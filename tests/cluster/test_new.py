"""`scalerl new` and docs/eight-gpus.md: what it prints is a configuration that fits, with the planner's split."""

import re
import tomllib

import pytest
from commands import call
from doc_pages import ROOT, blocks

from scalerl.cli.main import COMMANDS
from scalerl.cli.new import checkpoint_interval, written
from scalerl.config import read_config
from scalerl.core.machine import Memory

PAGE = (ROOT / "docs/eight-gpus.md").read_text()


def test_the_configuration_and_the_plan_of_the_page_are_those_that_new_prints(capsys):
    words = next(line for block in blocks("docs/eight-gpus.md", "bash") for line in block.splitlines()).split()
    code, out, _ = call(capsys, *words[1 : words.index(">")])
    (block,) = blocks("docs/eight-gpus.md", "toml")
    assert code == 0 and out.startswith(block)
    (plan,) = re.findall(r"^```\n(placement: .*?)```", PAGE, re.S | re.M)
    assert all(f"# {line}\n" in out for line in plan.splitlines())


@pytest.mark.usefixtures("prompt_file")
@pytest.mark.parametrize("gpus", [0, 1, 2, 16])
def test_a_printed_configuration_reads_back_to_equal_values_and_passes_a_dry_run(gpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scalerl.cluster.sizing.host_memory", lambda: Memory(128e9, 120e9, "this machine"))
    words = ["--model", "Qwen/Qwen3-1.7B", "--data", "p.jsonl", "--reward", "m:f", "--recipe.loss", "gspo"]
    code, out, error = call(capsys, "new", *words, "--gpus", gpus)
    assert code == 0, error
    (tmp_path / "run.toml").write_text(out)
    table = tomllib.loads(out)
    assert {"preset": table["preset"], **written(read_config(tmp_path / "run.toml", []))} == table
    assert table["recipe"]["loss"] == {"kind": "gspo"} and table["data"]["reward"]["function"] == "m:f"
    place = table.get("placement", {})
    assert place.get("trainer_ranks", 1) + place.get("generators", 1) == max(2, gpus) and place.get("gpus", 0) == gpus
    assert call(capsys, "train", tmp_path / "run.toml", "--dry-run")[0] == 0


def test_a_model_that_fits_on_no_gpu_is_an_error_that_proposes_adapters(capsys):
    words = ["new", "--model", "Qwen/Qwen3-8B", "--data", "p.jsonl", "--gpus", "1"]
    code, _, error = call(capsys, *words)
    assert code == 2 and "--model.lora.rank 32" in error
    code, out, _ = call(capsys, *words, "--model.lora.rank", "32")
    assert code == 0 and tomllib.loads(out)["model"]["lora"] == {"rank": 32}
    assert "# adapters need the package peft: pip install 'scalerl[lora]'\n" in out
    assert "peft" not in call(capsys, "new", "--model", "Qwen/Qwen3-0.6B", "--data", "p.jsonl", "--gpus", "1")[1]
    assert "got no model" in call(capsys, "new", "--gpus", "8")[2]


def test_the_interval_of_checkpoints_is_half_an_hour_at_the_planned_speed(capsys):
    """At 9.1 updates an hour, evaluations included, 50 updates would be 5.4 hours; 5 are 33 minutes."""
    rates = (9.1, 0.5, 120.0, 199.0, 450.0)
    assert [checkpoint_interval(rate, 100) for rate in rates] == [5, 1, 50, 100, 200]  # divisors of 100, or multiples
    words = ["new", "--model", "Qwen/Qwen3-8B", "--data", "prompts.jsonl", "--gpus", "8"]
    out = call(capsys, *words)[1]
    assert tomllib.loads(out)["checkpoint"] == {"every": 5}
    assert "# a checkpoint every 5 updates, about 34 minutes at this speed" in out
    chosen = call(capsys, *words, "--checkpoint.every", "20")[1]
    assert tomllib.loads(chosen)["checkpoint"] == {"every": 20} and "at this speed" not in chosen


def test_every_command_of_the_page_exists():
    lines = [line.split() for block in blocks("docs/eight-gpus.md", "bash") for line in block.splitlines()]
    verbs = {words[1] for words in lines if words[0] == "scalerl"}
    assert verbs == {"new", "doctor", "plan", "train"} and verbs <= set(COMMANDS)
    assert (ROOT / "examples/slurm.sh").exists() and [words[0] for words in lines if words[0] != "scalerl"] == [
        "sbatch"
    ]
