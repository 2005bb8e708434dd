"""`scalerl new` and docs/cluster.md: what it prints is a configuration that fits, with the planner's split."""

import json
import re
import tomllib

import pytest
from commands import call
from doc_pages import ROOT, blocks

from scalerl.cli.new import changed_values, checkpoint_interval
from scalerl.core.machine import Memory
from scalerl.reading.curves import Evaluations
from scalerl.reading.curves.designs import usual_prospect
from scalerl.training.config import read_config

PAGE = (ROOT / "docs/cluster.md").read_text()


def test_the_plan_of_the_page_is_the_one_that_new_prints(capsys):
    words = next(line for block in blocks("docs/cluster.md", "bash") for line in block.splitlines()).split()
    code, out, _ = call(capsys, *words[1 : words.index(">")])
    assert code == 0 and "trainer_ranks = 3\ngenerators = 5\n" in out
    (plan,) = re.findall(r"^```\n(placement: .*?)```", PAGE, re.S | re.M)
    assert all(f"# {line}\n" in out for line in plan.splitlines())


@pytest.mark.slow
@pytest.mark.usefixtures("prompt_file")
@pytest.mark.parametrize("gpus", [0, 1, 2, 16])
def test_a_printed_configuration_reads_back_to_equal_values_and_passes_a_dry_run(gpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scalerl.training.machines.sizing.host_memory", lambda: Memory(128e9, 120e9, "this machine"))
    words = ["--model", "Qwen/Qwen3-1.7B", "--data", "p.jsonl", "--reward", "m:f", "--recipe.loss", "gspo"]
    code, out, error = call(capsys, "new", *words, "--gpus", gpus)
    assert code == 0, error
    (tmp_path / "run.toml").write_text(out)
    table = tomllib.loads(out)
    assert {"preset": table["preset"], **changed_values(read_config(tmp_path / "run.toml", []))} == table
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


@pytest.mark.slow
def test_the_interval_of_checkpoints_is_half_an_hour_at_the_planned_speed(capsys):
    """At 8.7 updates an hour, evaluations included, 20 updates take 2.3 hours: minutes in between."""
    minutes = {
        9.1: (100, 30),
        0.5: (100, 30),
        120.0: (100, 30),
        198.0: (100, 30),
        199.0: (100, None),
        450.0: (200, None),
    }
    assert {rate: checkpoint_interval(rate, 100) for rate in minutes} == minutes
    words = ["new", "--model", "Qwen/Qwen3-8B", "--data", "prompts.jsonl", "--gpus", "8"]
    out = call(capsys, *words)[1]
    assert tomllib.loads(out)["checkpoint"] == {"every": 20, "every_minutes": 30.0}
    assert "and a checkpoint every 20 steps or 30 minutes (49 s each)" in out
    chosen = call(capsys, *words, "--checkpoint.every", "20")[1]
    assert tomllib.loads(chosen)["checkpoint"] == {"every": 20}
    assert "and a checkpoint every 20 steps (49 s each)" in chosen


def test_a_plan_and_a_dry_run_say_what_the_curve_will_tell(capsys):
    code, out, _ = call(capsys, "train", "--dry-run")
    lab = usual_prospect(Evaluations(31, 512, 2))  # 240 steps, evaluated every 8
    assert code == 0 and "# curve: 31 evaluations of 512 prompts x 2 identify" in out
    assert f"probability {lab.identified:.2f} and" in out and "for 52% of the completions" in out
    code, out, _ = call(capsys, "train", "--dry-run", "--steps", "16")
    assert code == 0 and "# curve: 3 evaluations are too few for a forecast, which needs 5; lower evalu" in out
    speeds = ["--generator-tokens-per-s", "5000", "--trainer-tokens-per-s", "9000"]
    code, out, _ = call(capsys, "plan", *speeds)
    assert code == 0 and "\ncurve: 31 evaluations of 512 prompts x 2 identify" in out
    found = json.loads(call(capsys, "plan", *speeds, "--json")[1])["curve"]
    assert found["identified"] == lab.identified and found["share"] == pytest.approx(31 * 1024 / (240 * 256))
    assert json.loads(call(capsys, "plan", *speeds, "--steps", "16", "--json")[1])["curve"] is None


def test_the_prompts_of_a_file_that_is_here_decide_how_often_is_evaluated(capsys, tmp_path):
    """A fifth of 180 is held out: 36 prompts, of which 101 evaluations tell what 51 of 200 prompts do."""
    file = tmp_path / "p.jsonl"
    file.write_text("".join(f'{{"prompt": "{n} + 1 =", "answer": "{n + 1}"}}\n' for n in range(180)))
    words = ["new", "--model", "Qwen/Qwen3-8B", "--gpus", "8", "--data"]
    here, elsewhere = (call(capsys, *words, path)[1] for path in (file, "/elsewhere/p.jsonl"))
    assert "# curve: 101 evaluations of 36 prompts" in here and "# curve: 51 evaluations of 200 prompts" in elsewhere
    assert tomllib.loads(here)["evaluation"]["every"] == 10 and tomllib.loads(elsewhere)["evaluation"]["every"] == 20
    assert "each of 144 training prompts is drawn 333.3 times. Caution" in here
