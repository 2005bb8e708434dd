"""`data` as a list of tasks: shares, names, held-out sets, and errors."""

import pytest
from json_rows import write_rows

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.loop.warm_start import make_tokenizer
from scalerl.training.prompts.curriculum import make_curriculum
from scalerl.training.prompts.dataset import load_prompts

TWO = """
[recipe]
prompts_per_step = 4

[evaluation]
prompts = 10

[[data]]
kind = "arithmetic"
share = 3.0
operations = [1, 1]
prompts = 60

[[data]]
kind = "programs"
prompts = 30
held_out = 5
"""


def read(tmp_path, text, *words):
    file = tmp_path / "config.toml"
    file.write_text(text)
    return read_config(file, list(words))


def test_a_task_with_share_0_is_evaluated_and_never_drawn(tmp_path):
    config = read(tmp_path, TWO, "--data.programs.share", "0")
    split = load_prompts(config, make_tokenizer())
    visits = make_curriculum(config.data, split.training, 0, 0.9).draw(50)
    assert {visit.prompt.task for visit in visits} == {"arithmetic"}
    assert sum(p.task == "programs" for p in split.held_out) == 5


def test_every_task_has_a_share_or_a_held_out_set(tmp_path):
    read(tmp_path, TWO.replace("share = 3.0", "share = 0.0\nheld_out = 4"))  # programs still has a share
    read(tmp_path, TWO.replace("held_out = 5", "share = 0.0"))
    with pytest.raises(ConfigError, match="held_out: got 0"):
        read(tmp_path, TWO.replace("held_out = 5", "held_out = 0"))


def test_a_held_out_prompt_is_not_trained_by_any_task(tmp_path):
    rows = [{"prompt": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in range(10) for b in range(4)]
    write_rows(tmp_path / "rows.jsonl", rows)
    table = f'[[data]]\nkind = "file"\npath = "{tmp_path}/rows.jsonl"\ntask = "arithmetic"\n'
    text = (
        '[model]\nkind = "hf"\npath = "m"\n[recipe]\nprompts_per_step = 4\n'
        f'{table}name = "a"\nheld_out = 8\n{table}name = "b"\nheld_out = 20\n'
    )
    split = load_prompts(read(tmp_path, text), make_tokenizer())
    held = {p.id for p in split.held_out}
    # both hold out the first by hash: a's 8 are among b's 20, so b's 20 leave both pools of training prompts
    assert len(held) == 20 and held.isdisjoint(p.id for p in split.training)
    assert "left out 12 training prompts that another task holds out" in split.notes
