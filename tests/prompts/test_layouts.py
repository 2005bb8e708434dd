"""Layouts of other trainers and of public data sets."""

import json

import pytest
from json_rows import write_rows

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.config.data import PromptFile
from scalerl.training.prompts.layouts import (
    after_hashes,
    column,
    deepcoder,
    humaneval,
    last_boxed,
    livecodebench,
    mbpp,
    prompt_rows,
)
from scalerl.training.rewards.code_tests import BadTests, Calls, Checks, InputOutput, read_tests

USER = [{"role": "user", "content": "What is 1+2?"}]
VERL = {
    "data_source": "math_dapo",
    "prompt": USER,
    "ability": "MATH",
    "reward_model": {"ground_truth": "3", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b", "level": {"name": "hard"}},
}
OPEN_INSTRUCT = {
    "messages": [*USER, {"role": "assistant", "content": "It is 3."}],
    "ground_truth": ["3"],
    "dataset": ["math"],
}
TRL = {"prompt": USER, "solution": "$3$", "source": "s"}


def read(path, **fields):
    return list(prompt_rows(PromptFile(path=str(path), **fields)))


@pytest.mark.parametrize(
    ("layout", "row", "answer"), [("verl", VERL, "3"), ("open-instruct", OPEN_INSTRUCT, "3"), ("trl", TRL, "$3$")]
)
def test_a_layout_is_recognized_by_its_columns_or_configured(tmp_path, layout, row, answer):
    path = write_rows(tmp_path / "p.jsonl", [row])
    (told,), (named,) = read(path), read(path, layout=layout)
    assert told == named and told.prompt == USER and told.answer == answer and told.columns == row


def test_columns_are_renamed_and_dots_address_nested_columns(tmp_path):
    path = write_rows(tmp_path / "p.jsonl", [VERL])
    (row,) = read(path, columns={"prompt": "prompt", "answer": "extra_info.index", "level": "extra_info.level.name"})
    assert row.answer == "9a9b" and row.columns["level"] == "hard" and row.columns["ability"] == "MATH"
    with pytest.raises(ConfigError, match=r"extra_info\.tests"):
        read(path, columns={"tests": "extra_info.tests"})


def test_a_dotted_name_reads_a_column_of_that_name_first_and_json_in_strings():
    values = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}}, "text": '{"x": {"y": 4}}', "broken": "{x"}
    assert [column(values, name) for name in ("a.b", "a.c.d", "text.x.y", "broken.x", "a.q.r", "z")] == [
        1, 3, 4, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("She makes 9 * 2 = $18.\n#### 18", "18"),
        ("#### 1\n#### 2,125", "2125"),
        ("#### -3.5", "-3.5"),
        ("#### 1,2 or 3", "1,2 or 3"),  # no thousands separator
        ("no mark", None),
    ],
)
def test_an_answer_after_hashes_is_the_last_one_without_thousands_separators(text, answer):
    assert after_hashes(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{1}, so $\boxed{\frac{1}{\sqrt{2}}}$.", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed 2$ is it", "2"),
        (r"\boxed{}", ""),
        (r"\boxed{1", None),
        ("2", None),
    ],
)
def test_a_boxed_answer_is_the_last_one_with_balanced_braces(text, answer):
    assert last_boxed(text) == answer


# ------------------------------------------------------------------------------------------------------ named sets


def config(tmp_path, text, *words):
    file = tmp_path / "config.toml"
    file.write_text('[model]\nkind = "hf"\npath = "m"\n[recipe]\nprompts_per_step = 1\n' + text)
    return read_config(file, list(words))


def test_a_copy_of_a_set_is_read_from_its_file_and_explicit_settings_win(tmp_path):
    row = {"question": "What is 70+2?", "hint": "sum", "answer": "70 + 2 = 72\n#### 72"}
    copy = write_rows(tmp_path / "copy.jsonl", [row])
    (row,) = read(copy, set="gsm8k")
    assert (row.prompt, row.answer) == ("What is 70+2?", "72")
    (own,) = read(copy, set="gsm8k", columns={"prompt": "hint"}, answers="whole")
    assert own.prompt == "sum" and own.answer.startswith("70 + 2")
    task = PromptFile(set="math", split="test", revision="v2", name="mine")
    assert (task.split, task.revision, task.curve, task.answers) == ("test", "v2", "mine", "boxed")


# ----------------------------------------------------------------------------------------------------------- code


def test_humaneval_gives_the_check_and_the_name_of_the_function():
    row = {"task_id": "HumanEval/0", "prompt": "def f(x): ...", "entry_point": "f", "test": "def check(candidate): ..."}
    assert read_tests(humaneval(row)) == Checks("def f(x): ...", "def check(candidate): ...", ("f",), "f")
    with pytest.raises(BadTests, match="'entry_point'"):
        humaneval({"prompt": "p", "test": "t"})


def test_mbpp_prompts_have_the_assertions_and_tests_begin_with_the_setup():
    row = {"text": "Write a function.", "test_list": ["assert f(1) == 2"], "test_setup_code": "import math"}
    rewritten = mbpp(row)
    assert read_tests(rewritten).setup == "import math" and "assert f(1) == 2" in rewritten["prompt"]
    sanitized = mbpp({"prompt": "Write g.", "test_list": ["assert g() == 1"], "test_imports": []})
    assert read_tests(sanitized).tests == "assert g() == 1" and sanitized["prompt"].startswith("Write g. Your code")


def test_deepcoder_tests_are_json_in_a_column():
    tests = [{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}]
    row = {"problem": "Add one.", "tests": json.dumps(tests), "starter_code": "def f(x):"}
    rewritten = deepcoder(row)
    assert read_tests(rewritten) == Calls("f", ([1],), (2,), True) and "def f(x):" in rewritten["prompt"]
    with pytest.raises(BadTests, match="'tests'"):
        deepcoder({**row, "tests": "{"})


def lcb(private, date="2025-03-01T00:00:00"):
    return {
        "question_content": "Add one.",
        "starter_code": "",
        "contest_date": date,
        "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]),
        "private_test_cases": private,
        "metadata": json.dumps({"func_name": "f"}),
    }


def test_livecodebench_unpacks_its_private_tests_and_keeps_the_first_half_of_2025():
    inner = json.dumps([{"input": "3", "output": "4", "testtype": "stdin"}])
    rewritten = livecodebench(lcb(inner))
    assert read_tests(rewritten) == InputOutput(("1", "3"), ("2", "4")) and "private_test_cases" not in rewritten
    dates = ("2024-12-31T00:00:00", "2025-01-01T00:00:00", "2025-06-30T23:00:00", "2025-07-01T00:00:00")
    assert [livecodebench(lcb(inner, date)) is None for date in dates] == [True, False, False, True]
