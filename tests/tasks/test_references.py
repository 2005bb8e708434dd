"""Checks of tests and references before a run, with file and line."""

import json

import pytest
from json_rows import write_rows
from texts import Tokenizer

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.prompts.dataset import load_prompts
from scalerl.training.rewards.checks import reference_notes
from scalerl.training.rewards.sandbox.detect import offer


def loaded(config):
    split = load_prompts(config, Tokenizer())
    return (*split.training, *split.held_out)


def config_of(file, *words):
    sizes = ["--evaluation.prompts", "1", "--recipe.prompts_per_step", "1", "--scoring.workers", "1"]
    return read_config(None, ["--model", "m", "--data", str(file), *sizes, *words])


def test_references_that_fail_are_reported_with_file_and_line(scored_here, tmp_path):
    answers = ["12", "$\\frac{1}{2}$", "No solution", "\\$6", "$ $"]
    file = write_rows(tmp_path / "p.jsonl", ({"prompt": f"q{i}", "answer": a} for i, a in enumerate(answers)))
    config = config_of(file, "--scoring.failing_references", "0.2")
    (note,) = reference_notes(config.data, config.scoring, loaded(config))
    assert note.startswith("math: 1 of 5 references fail their own verifier") and f"{file} line 5 (" in note


def test_a_run_with_too_many_failing_references_is_refused(tmp_path, scored_here):
    answers = ["$ $", *map(str, range(18))]  # 1 of 19 is 5.3%
    file = write_rows(tmp_path / "p.jsonl", ({"prompt": f"q{i}", "answer": a} for i, a in enumerate(answers)))
    config = config_of(file)
    with pytest.raises(ConfigError, match="1 of 19"):
        reference_notes(config.data, config.scoring, loaded(config))
    write_rows(file, ({"prompt": f"q{i}", "answer": a} for i, a in enumerate([*answers, "18"])))  # 1 of 20 is 5%
    (note,) = reference_notes(config.data, config.scoring, loaded(config))
    assert note.startswith("math: 1 of 20 references fail their own verifier")


@pytest.mark.slow
def test_of_many_references_a_random_sample_is_checked(tmp_path, monkeypatch):
    """Every tenth of 200 fails; the sample of 50 has between 1 and 10 of them, and does not depend on the order."""
    monkeypatch.setattr("scalerl.training.rewards.checks.CHECKED", 50)
    rows = [{"prompt": f"q{i}", "answer": "$ $" if i % 10 == 0 else f"x^{i}"} for i in range(200)]
    file = write_rows(tmp_path / "p.jsonl", rows)
    config = config_of(file, "--scoring.failing_references", "0.2")
    (note,) = reference_notes(config.data, config.scoring, loaded(config))
    count = int(note.removeprefix("math: ").split()[0])
    assert note.startswith(f"math: {count} of 50 references, a sample of 200, fail") and 1 <= count <= 10
    write_rows(file, rows[::-1])
    (backward,) = reference_notes(config.data, config.scoring, loaded(config))
    assert backward.partition(":")[0:2] == note.partition(":")[0:2] and f" {count} of 50 " in backward
    with pytest.raises(ConfigError, match=f"{count} of 50 references, a sample of 200"):
        scoring = config_of(file, "--scoring.failing_references", "0.01").scoring
        reference_notes(config.data, scoring, loaded(config))


def test_a_solution_that_fails_its_tests_is_reported(tmp_path):
    tests = {"inputs": ["3 4"], "outputs": ["7"]}
    solutions = ["print(sum(map(int, input().split())))", "print(8)", None]
    file = write_rows(
        tmp_path / "c.jsonl",
        ({"prompt": f"q{i}", "checks": json.dumps(tests), "solution": s} for i, s in enumerate(solutions)),
    )
    config = config_of(
        file, "--task", "code", "--data.columns", '{tests = "checks"}', "--scoring.failing_references", "1"
    )
    try:
        offer(config.scoring.sandbox)
    except ConfigError as error:
        pytest.skip(f"no sandbox here: {error}")
    prompts = loaded(config)
    assert all(json.loads(prompt.columns["tests"]) == tests and prompt.answer == "" for prompt in prompts)
    (note,) = reference_notes(config.data, config.scoring, prompts)
    assert "code: 1 of 3 references" in note and "c.jsonl line 2 (test 1 of 1: line 1: expected '7', got '8')" in note


def test_a_task_with_a_reward_function_has_no_references(tmp_path):
    file = write_rows(tmp_path / "p.jsonl", ({"prompt": f"q{i}", "answer": "$ $"} for i in range(3)))
    config = config_of(file, "--reward", "my:f")
    assert reference_notes(config.data, config.scoring, loaded(config)) == []
