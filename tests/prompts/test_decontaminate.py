"""Training prompts that overlap with a suite, with results computed by hand."""

import json

import pytest
from json_rows import write_rows

from scalerl.config import read_config
from scalerl.core.errors import ConfigError
from scalerl.prompts.dataset import load_prompts
from scalerl.prompts.decontaminate import overlapping, words_of
from scalerl.training.warm_start import make_tokenizer

PREAMBLE = "solve the problem step by step and put the final answer after the word answer"


def text(number, count=20):
    return " ".join(f"w{number}x{i}" for i in range(count))


def test_words_have_no_case_and_no_punctuation():
    assert words_of("What's  $1+x_2$?\nÜber") == ("what", "s", "1", "x", "2", "über")


def test_n_shared_consecutive_words_overlap_and_fewer_do_not():
    suite = [text(1)]
    twelve, thirteen = " ".join(text(1).split()[3:15]), " ".join(text(1).split()[3:16])
    training = [f"{text(2)} {twelve} {text(3)}", f"{text(2)} {thirteen.upper()}! {text(3)}", text(4)]
    assert overlapping(training, suite, 13) == [False, True, False]
    assert overlapping(training, suite, 12) == [True, True, False]


def test_short_prompts_are_compared_as_a_whole():
    assert overlapping(["What is 1+1?", "what is 1 + 1", "What is 1+1+1?"], ["What is 1+1?"], 13) == [True, True, False]


def test_a_preamble_of_many_prompts_does_not_count_as_overlap():
    suite = [f"{PREAMBLE} {text(i)}" for i in range(11)]
    assert overlapping([f"{PREAMBLE} {text(99)}", f"{PREAMBLE} {text(3)}"], suite, 13) == [False, True]
    # in three prompts of a suite it is not yet a template, in more than ten training prompts it is
    training = [f"{PREAMBLE} {text(i)}" for i in range(50, 61)]
    assert not any(overlapping(training, suite[:3], 13))
    assert all(overlapping(training[:10], suite[:3], 13))


def twelve_prompts(place):
    """Write twelve prompts; return a configuration that trains them without those of suite.jsonl."""
    rows = [{"prompt": text(i), "answer": "1"} for i in range(12)]
    write_rows(place / "p.jsonl", rows)
    words = ["--model", "m", "--data", str(place / "p.jsonl"), "--recipe.prompts_per_step", "1"]
    suites = json.dumps([str(place / "suite.jsonl")])
    return read_config(None, [*words, "--evaluation.prompts", "3", "--data.decontaminate", suites])


def test_overlapping_prompts_are_left_out_with_a_note(tmp_path):
    chat = [{"role": "system", "content": text(0)}, {"role": "user", "content": f"Now: {text(5)}"}]
    (tmp_path / "suite.jsonl").write_text(json.dumps({"prompt": chat}) + "\n")
    split = load_prompts(twelve_prompts(tmp_path), make_tokenizer())
    assert len(split.training) + len(split.held_out) == 11
    assert text(5) not in {prompt.text for prompt in (*split.training, *split.held_out)}
    assert "left out 1 prompts" in split.notes[0] and split.notes[0].endswith(f"{tmp_path}/p.jsonl line 6")


def test_a_suite_file_without_a_known_prompt_column_is_refused(tmp_path):
    config = twelve_prompts(tmp_path)
    for column in ("problem", "question", "text"):
        (tmp_path / "suite.jsonl").write_text(json.dumps({"id": 1, column: text(7)}) + "\n")
        assert len(load_prompts(config, make_tokenizer()).training) == 8
    (tmp_path / "suite.jsonl").write_text(json.dumps({"id": 1, "body": text(7)}) + "\n")
    with pytest.raises(ConfigError, match="line 1 has no prompt"):
        load_prompts(config, make_tokenizer())
