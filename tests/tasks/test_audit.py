"""Audits of verifiers: the confusion table, errors by kind, and the built-in cases."""

import json

import pytest
from json_rows import write_rows

from scalerl.cli import main
from scalerl.training.rewards import math
from scalerl.training.rewards.audit import CASES, audit_verifier
from scalerl.training.rewards.base import verdict


def test_the_verifier_of_math_has_no_error_on_the_built_in_cases():
    audit = audit_verifier(math.verify)
    assert audit.errors == {} and sum(audit.counts.values()) == len(CASES) > 30


def test_a_verifier_of_your_own_is_audited():
    """One that passes everything accepts all wrong answers; one that passes nothing refuses all right ones."""
    everything = audit_verifier(lambda prompt, completion: verdict(True, ""))
    nothing = audit_verifier(lambda prompt, completion: verdict(False, ""))
    assert (everything.refused, everything.accepted, nothing.refused, nothing.accepted) == (0, 1, 1, 0)
    right = sum(case.expected for case in CASES)
    assert everything.counts[True, True] == nothing.counts[True, False] == right


ROWS = [
    {"completion": "\\boxed{4}", "answer": "4", "expected": True, "kind": "a"},
    {"completion": "\\boxed{5}", "answer": "4", "expected": False, "kind": "a"},
    {"completion": "\\boxed{6}", "answer": "4", "expected": True, "kind": "b"},
    {"completion": "it is 4", "answer": "4", "expected": True, "kind": "b"},
    {"completion": "\\boxed{4}", "answer": "4", "expected": False, "kind": "c"},
]


@pytest.mark.slow
def test_a_file_is_audited_with_examples_by_kind_and_the_effect_on_the_ceiling(tmp_path, capsys):
    file = str(write_rows(tmp_path / "r.jsonl", ROWS))
    assert main(["score", "--audit", file, "--task", "math", "--workers", "1"]) == 0
    text = capsys.readouterr().out
    assert "right answers       2        1" in text and "wrong answers       1        1" in text
    assert "33% of the right answers are refused: a ceiling A is measured as about 0.667 A" in text
    assert "1 errors: b" in text and "refused: " in text and "line 3" in text and "1 errors: c" in text
    assert main(["score", file, "--audit", "--task", "math", "--workers", "1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["right passed"] == 2 and row["errors"] == {"b": 1, "c": 1} and row["no form"] == 1


def test_two_verifiers_are_compared(tmp_path, capsys):
    file = str(write_rows(tmp_path / "r.jsonl", ROWS[:3]))
    assert main(["score", file, "--task", "math", "--against", "math", "--workers", "1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["right passed"], row["wrong refused"], row["errors"]) == (1, 2, {})


@pytest.mark.parametrize(
    ("words", "error"),
    [(["--audit"], "'expected' is None; allowed: true or false"), (["--against", "x"], "--against: got 'x'; allowed")],
)
def test_an_audit_without_expected_verdicts_is_an_error(tmp_path, capsys, words, error):
    file = str(write_rows(tmp_path / "r.jsonl", [{"completion": "4", "answer": "4"}]))
    assert main(["score", file, "--task", "math", *words]) == 2
    assert error in capsys.readouterr().err
