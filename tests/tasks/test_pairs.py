"""Pairs of answers written before they were tried: which of them are judged wrongly today."""

import json
from pathlib import Path

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards import code, math
from scalerl.training.rewards.code import ProgramJudge

PAIRS = Path(__file__).parent / "pairs"
OPEN = {r"\boxed{4\mathbf{i} - \mathbf{j} + 2\mathbf{k}}", r"\boxed{\sqrt{1/n}}"}
"""Right answers that do not pass: unit vectors as letters, and a root that needs a positive n."""


def pairs(name):
    return [json.loads(line) for line in (PAIRS / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_verifier_of_maths_is_right_on_all_pairs_but_two():
    rows = pairs("math")
    wrong = {
        row["answer"]
        for row in rows
        if row["right"] is not math.verify(Prompt("0", "", (1,), row["reference"], "math"), row["answer"]).passed
    }
    assert len(rows) == 105 and wrong == OPEN


@pytest.mark.slow
def test_the_verifier_of_programs_is_right_on_all_pairs(monkeypatch):
    try:
        judge = ProgramJudge(Sandbox(test_s=5.0))
    except ConfigError as error:
        pytest.skip(f"no sandbox here: {error}")
    monkeypatch.setattr(code, "judge", lambda: judge)
    rows = pairs("code")
    wrong = [
        row["answer"]
        for row in rows
        if row["right"] is not code.verify(Prompt("0", row["prompt"], (1,), "", "code", row), row["answer"]).passed
    ]
    judge.close()
    assert len(rows) == 40 and wrong == []
