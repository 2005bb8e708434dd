"""reasoning-gym: its scorer judges the final answer of a completion."""

import json
import os
import subprocess
import sys

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config import read_config, to_toml
from scalerl.training.loop.warm_start import make_tokenizer
from scalerl.training.prompts.dataset import load_prompts
from scalerl.training.rewards.reasoning_gym import final_answer, verify

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>1</answer></think>So <answer>2</answer>, no: <answer> 3 </answer> Answer: 4", "3"),
        ("thinking</think>It is so.\nAnswer: 12\nAnswer: 13 \nDone", "13"),
        ("**Final answer:** 7", "7"),
        (r"we get \boxed{1} and \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"cut \boxed{1", r"cut \boxed{1"),
        ("</think>\n 42 \n", "42"),
        ("Answer:\n", "Answer:"),
        ("", ""),
    ],
)
def test_the_final_answer_is_tagged_labeled_boxed_or_the_whole_text(completion, answer):
    assert final_answer(completion) == answer


def prompt(**columns):
    return Prompt("0" * 16, "q", (1,), "", "t", columns)


def test_a_completion_is_judged_by_the_entry_in_its_row():
    import reasoning_gym

    parameters = {"min_terms": 2, "max_terms": 3}
    entry = reasoning_gym.create_dataset("chain_sum", size=8, seed=5, **parameters)[7]
    row = prompt(dataset="chain_sum", entry=entry, parameters=parameters)
    right = verify(row, f"so</think><answer>{entry['answer']}</answer>")
    wrong = verify(row, "so</think><answer>no number</answer>")
    assert right.passed and right.score == 1 and right.reason.endswith(f"expected {entry['answer']!r}")
    assert not wrong.passed and wrong.score < 1


def test_a_score_of_at_least_pass_score_passes():
    import reasoning_gym

    entry = reasoning_gym.create_dataset("letter_jumble", size=1, seed=0)[0]
    half = next(
        text
        for text in (" ".join(entry["answer"].split()[:1] + ["x"] * n) for n in range(9))
        if 0 < verify(prompt(dataset="letter_jumble", entry=entry), text).score < 1
    )
    score = verify(prompt(dataset="letter_jumble", entry=entry), half).score
    assert not verify(prompt(dataset="letter_jumble", entry=entry), half).passed
    assert verify(prompt(dataset="letter_jumble", entry=entry, pass_score=score), half).passed


TABLE = """
[model]
kind = "hf"
path = "m"
[recipe]
prompts_per_step = 4
[evaluation]
prompts = 10
"""


def config(tmp_path, *tables):
    file = tmp_path / "c.toml"
    file.write_text(TABLE + "".join(f'[[data]]\nkind = "reasoning-gym"\n{table}\n' for table in tables))
    return read_config(file, [])


@pytest.mark.slow
def test_prompts_are_distinct_and_held_out_prompts_are_not_trained(tmp_path):
    mixed = config(
        tmp_path,
        'dataset = "chain_sum"\nprompts = 40\nparameters = {min_terms = 2, max_terms = 2}',
        'dataset = "chain_sum"\nname = "other"\nprompts = 40\nseed = 3\nparameters = {min_terms = 2, max_terms = 2}',
        'dataset = "gcd"\nprompts = 20\nheld_out = 5\npass_score = 0.5',
    )
    (tmp_path / "again.toml").write_text(to_toml(mixed))
    assert read_config(tmp_path / "again.toml", []) == mixed and mixed.tasks == ["chain_sum", "other", "gcd"]
    split = load_prompts(mixed, make_tokenizer())
    counts = {task: sum(p.task == task for p in split.held_out) for task in mixed.tasks}
    assert counts == {"chain_sum": 10, "other": 10, "gcd": 5}
    held_out = {p.text for p in split.held_out}
    assert len(split.training) > 80 and held_out.isdisjoint(p.text for p in split.training)
    first = split.training[0]
    assert "<answer>" in first.text and first.columns["entry"]["question"] in first.text
    assert verify(first, f"<answer>{first.answer}</answer>").passed
    assert json.dumps(first.columns["parameters"])


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["isomorphic_strings", "list_functions"])
def test_entries_are_the_same_in_every_process(dataset):
    """The first draws from a set, whose order depends on the hashes of texts; the second uses global random numbers."""
    code = (
        "from scalerl.training.rewards.reasoning_gym import make_entries; "
        f"print(make_entries({dataset!r}, 3, {{}}, 12, 4))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(texts) == 1 and texts.pop().count(b"'question'") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('dataset = "chain_summ"', "'chain_summ'.* chain_sum"),
        ('dataset = "chain_sum"\nparameters = {min_term = 2}', "'min_term'"),
        ('dataset = "chain_sum"\nprompts = 5000\nparameters = {max_terms = 2, max_digits = 1}', "at least 5010"),
    ],
)
def test_an_unknown_name_or_parameter_suggests_similar_ones(tmp_path, table, message):
    with pytest.raises(ConfigError, match=message):
        load_prompts(config(tmp_path, table), make_tokenizer())
