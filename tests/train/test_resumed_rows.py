"""Rows after a resume: the same values of the same types, whatever they are, and never in a checkpoint."""

import datetime
import decimal
import json

import pytest
import runs

from scalerl.core.serialization import from_plain, to_plain
from scalerl.core.types import Group, Prompt, Visit
from scalerl.training.learner.checkpoint import load_plain, load_state, references, save_state

ODD = {
    "integer keys": {3: "a", (1, 2): "b"},
    "tuples": ((1, 2), [3]),
    "set": {"x", 7},
    "date": datetime.date(2025, 1, 2),
    "timestamp": datetime.datetime(2025, 1, 2, tzinfo=datetime.UTC),
    "duration": datetime.timedelta(seconds=3),
    "decimal": decimal.Decimal("1.10"),
    "bytes": b"\xff",
    "not a number": float("nan"),
}

ODD_TASK = """
import datetime, decimal

class Odd:
    def rows(self, count):
        for n in range(count):
            a, b = n % 10, n // 10 % 10
            yield {
                "prompt": f"{a}+{b}=<think>", "right": {(a + b) % 10: ("right", 1.0)}, "digits": {a, b},
                "day": datetime.date(2025, 1, 1 + n % 28), "price": decimal.Decimal(n) / 100, "raw": bytes([n]),
            }
    def {method}(self, row, {words}):
        text = {words} if isinstance({words}, str) else {words}[-1]["content"]
        kinds = [type(row[name]).__name__ for name in ("right", "digits", "day", "price", "raw")]
        assert kinds == ["dict", "set", "date", "Decimal", "bytes"], kinds
        (digit, verdict), = row["right"].items()
        assert verdict == ("right", 1.0) and isinstance(digit, int), row["right"]
        return 1.0 if text[-1:] == str(digit) else 0.0
"""
KEYED = """
def keyed(prompts, completions, day, price, raw, seen, far, words, **columns):
    import datetime, decimal
    right = (datetime.date, decimal.Decimal, bytes, datetime.datetime, list)
    rows = zip(day, price, raw, seen, words, strict=True)
    assert all(tuple(map(type, row)) == right and type(row[-1][0]) is tuple for row in rows)
    assert set(far) == {None}
    return [len(text) % 3 / 2 for text in completions]
"""


def test_a_checkpoint_refers_to_prompts_and_returns_them_unchanged(tmp_path):
    prompts = [Prompt(str(n), "q", (1,), "a", task, dict(ODD)) for n in range(2) for task in ("a", "b")]
    groups = [Group(Visit(prompt, 3, n), (), 4) for n, prompt in enumerate(prompts)]
    save_state(tmp_path, "generator", {"groups": {"7": [to_plain(group) for group in groups]}, "step": 4})
    plain = load_plain(tmp_path, "generator")
    assert sorted(references(plain)) == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    assert "integer keys" not in json.dumps(plain)
    state = load_state(tmp_path, "generator", {prompt.reference: prompt for prompt in prompts})
    restored = [from_plain(Group, group) for group in state["groups"]["7"]]
    assert restored == groups and all(one.visit.prompt is p for one, p in zip(restored, prompts, strict=True))
    assert from_plain(Visit, to_plain(groups[1].visit)) == groups[1].visit


@pytest.fixture
def resumes(lab_model, tmp_path, monkeypatch):
    """Return a function that stops and resumes a run of a task that fails if a row has another type than it gave."""
    monkeypatch.chdir(tmp_path)

    def check(*words):
        common = ["--model", str(lab_model), "--preset", "lab", *runs.RECIPE, "--evaluation.every", "4", *words]
        runs.finish("train", "--run-dir", "stopped", *common, "--steps", "4")
        runs.finish("resume", "stopped", "--steps", "8", "--trust")
        metrics = runs.rows(tmp_path / "stopped", "metrics.jsonl")
        assert len(metrics) == 8 and all(row["reward_failures"] == 0 for row in metrics)

    return check


@pytest.mark.slow
@pytest.mark.parametrize(("method", "words"), [("score", "completion"), ("reply", "messages")])
def test_the_rows_of_a_task_have_their_types_after_a_resume(resumes, tmp_path, method, words):
    (tmp_path / "odd.py").write_text(ODD_TASK.replace("{method}", method).replace("{words}", words))
    task = ["--data.kind", "custom", "--data.function", "odd:Odd", "--data.prompts", "60"]
    resumes(*task, *(["--data.turns", "2", "--data.reply_tokens", "6"] if method == "reply" else []))


@pytest.mark.slow
def test_columns_that_json_cannot_hold_are_kept_through_a_resume(resumes, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "keyed.py").write_text(KEYED)
    questions = [(a, b) for a in range(10) for b in range(8)]
    far = pyarrow.array([10**7] * 80, pyarrow.date32())  # in the year 29349
    table = {
        "prompt": [f"{a}+{b}=<think>" for a, b in questions], "answer": [str(a + b) for a, b in questions],
        "day": [datetime.date(2025, 1, 1)] * 80, "price": [decimal.Decimal("1.10")] * 80, "raw": [b"\xff"] * 80,
        "seen": [datetime.datetime(2025, 1, 2, tzinfo=datetime.UTC)] * 80, "far": far,
        "words": pyarrow.array([[(1, "a")]] * 80, pyarrow.map_(pyarrow.int64(), pyarrow.string())),
    }  # fmt: skip
    parquet.write_table(pyarrow.table(table), tmp_path / "rows.parquet")
    resumes("--data", "rows.parquet", "--reward", "keyed:keyed")
