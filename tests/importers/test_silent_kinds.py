"""Logs that were read wrongly without a word, two of each kind, and for each kind one that must be read otherwise.

A case is a file's name and text, the options of `read`, and what must be read: metric, held-out or of training, number
of values, the last one, and its step. A text in its place is part of the error.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scalerl.reading.logs import read
from scalerl.reading.tables.errors import CurveError

TRAINING, HELD_OUT = "training reward", "held-out"


def rows(count: int, **columns: Any) -> list[dict[str, float]]:
    """Return rows of steps from 1; a column is a function of the step, or None to leave it out of a row."""
    return [{"step": n, **{name: f(n) for name, f in columns.items() if f(n) is not None}} for n in range(1, count + 1)]


def jsonl(items: list[dict[str, float]]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def csv(items: list[dict[str, Any]]) -> str:
    names = [*items[0]]
    return "".join(",".join(map(str, line)) + "\n" for line in [names, *([i[n] for n in names] for i in items)])


def rise(n: float) -> float:
    return round(0.2 + 0.02 * n, 4)


def loss(n: float) -> float:
    return round(0.01 * (-1) ** n, 4)


def notebook(*cells: Any) -> str:
    """Return a notebook; a text is printed output, a list of rows an HTML table."""
    outputs = []
    for cell in cells:
        if isinstance(cell, str):
            outputs.append({"output_type": "stream", "name": "stdout", "text": cell})
            continue
        head = "".join(f"<th>{name}</th>" for name in cell[0])
        body = "".join("<tr>" + "".join(f"<td>{value}</td>" for value in row.values()) + "</tr>" for row in cell)
        html = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        outputs.append({"output_type": "display_data", "data": {"text/html": html}})
    document = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {},
        "cells": [{"cell_type": "code", "source": "", "metadata": {}, "outputs": [output]} for output in outputs],
    }
    return json.dumps(document)


def lines(template: str, count: int) -> str:
    """Return the line of each step, with `{n}` and the reward `{r}`."""
    return "".join(template.format(n=n, r=rise(n), l=loss(n)) + "\n" for n in range(1, count + 1))


def cut(text: str, width: int = 47) -> str:
    """Return a line as copied from a terminal of few columns."""
    return "".join(text[place : place + width] + "\n" for place in range(0, len(text), width))


ANSWER = """Prompt: What is 3 + 4? Show your work.
Answer: Step 1: add 3 and 4, total = 7
Step 2: check: 7 - 4 = 3
| name | score |
| a | 1.0 |
"""
TRACE = """Traceback (most recent call last):
  File "train.py", line 10, in step
    reward: float = 0.99
ConnectionError: no reward: 0.01
"""

CASES: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "answers-with-steps": (
        "run.log", "".join(f"Step {n} | reward: {rise(n)} | loss: {loss(n)}\n{ANSWER}" for n in range(3, 13)), {},
        ("reward", TRAINING, 10, 0.44, 12)),
    "tracebacks-between-steps": (
        "run.log", "".join(f"Step {n}: loss={loss(n)}\n{TRACE}reward: {rise(n)}\n" for n in range(1, 10)), {},
        ("reward", TRAINING, 9, 0.38, 9)),
    "a-cell-that-tries-the-reward": (
        "run.ipynb", notebook("answer -> Reward: 1.0\nanswer -> Reward: 0.0\n", lines("Step {n}: reward={r}", 8)), {},
        ("reward", TRAINING, 8, 0.36, 8)),
    "the-value-of-a-cell": (
        "run.ipynb", notebook("x=1\n").replace('"output_type": "stream", "name": "stdout", "text": "x=1\\n"',
                                               '"output_type": "execute_result", "data": ' + json.dumps(
                                                   {"text/plain": str(rows(8, reward=rise))})), {},
        ("reward", TRAINING, 8, 0.36, 8)),
    "accuracy-of-some-steps": (
        "run.jsonl", jsonl(rows(40, reward=loss, accuracy=lambda n: None if n % 5 else rise(n))), {},
        ("accuracy", HELD_OUT, 8, 1.0, 40)),
    "accuracy-in-its-own-rows": (
        "run.jsonl", jsonl([row for n in range(1, 9) for row in (
            {"step": n, "reward": loss(n)}, {"step": n, "accuracy": rise(n)})]), {},
        ("accuracy", HELD_OUT, 8, 0.36, 8)),
    "accuracy-before-training": (
        "run.jsonl", jsonl([{"step": n, "accuracy": rise(n), **({"reward": loss(n)} if n else {})} for n in range(9)]),
        {}, ("accuracy", HELD_OUT, 9, 0.36, 8)),
    "best-of-all": (
        "run.jsonl", jsonl(rows(9, best_reward=lambda n: 1.0, reward=rise)), {}, ("reward", TRAINING, 9, 0.38, 9)),
    "rollouts-of-a-step": (
        "run.log", "".join(f"=== Step {n}/8 ===\n" + "".join(f"Rollout {k}: reward = 0.9\n" for k in range(1, 5))
                           + f"Mean reward: {rise(n)}\n" for n in range(1, 9)), {},
        ("Mean reward", TRAINING, 8, 0.36, 8)),
    "a-row-per-sample": (
        "run.csv", csv([{"step": n, "sample": k, "reward": round(rise(n) + 0.1 * (k - 1), 3)}
                        for n in range(1, 9) for k in range(3)]), {},
        ("reward", TRAINING, 8, 0.36, 8)),
    "a-step-printed-twice": (
        "run.log", "".join(2 * f"{{'loss': {loss(n)}, 'reward': {rise(n) + 0.0012}}}\n" for n in range(1, 9)), {},
        ("reward", TRAINING, 8, 0.3612, 8)),
    "a-resume-repeats-steps": (
        "run.jsonl", jsonl([{"step": n, "reward": rise(n)} for n in (1, 2, 3, 4, 5, 6)]
                           + [{"step": n, "reward": rise(n) + 0.2} for n in (5, 6, 7, 8)]), {},
        ("reward", TRAINING, 8, 0.56, 8)),
    "tiers": (
        "run.csv", csv([{"num_actors": a, "step": n, "reward": rise(n) + 0.01 * a}
                        for a in (1, 2, 4) for n in range(6)]), {}, "3 runs, told apart by the column num_actors"),
    "a-file-twice": (
        "run.jsonl", 2 * jsonl(rows(9, reward=rise)), {}, ("reward", TRAINING, 9, 0.38, 9)),
    "a-count-of-resumes": (
        "run.csv", csv([{"resumes": k, "step": 4 * k + n, "reward": rise(4 * k + n)} for k in range(3)
                        for n in range(6)]), {}, ("reward", TRAINING, 14, 0.46, 13)),
    "steps-of-an-epoch": (
        "run.json", json.dumps([{"epoch": e, "step": n, "reward": rise(10 * e + n)} for e in range(3)
                                for n in range(10)]), {}, ("reward", TRAINING, 30, 0.78, 30)),
    "one-epoch-of-a-console": (
        "run.log", "".join(f"Epoch:[1/1]({n}/1500) reward:{rise(n / 100)} loss:{loss(n)}\n"
                           for n in range(100, 1501, 100)), {}, ("reward", TRAINING, 15, 0.5, 1500)),
    "bars-of-episodes": (
        "run.log", "".join(f"Episode [{e}/3]:  {10 * n}%|##        | {n}/6 [00:10<01:00, 10.00s/it, "
                           f"reward={rise(6 * (e - 1) + n)}, kl=0.01]\n" for e in (1, 2, 3) for n in range(1, 7)), {},
        ("reward", TRAINING, 18, 0.56, 18)),
    "bars-within-bars": (
        "run.log", "".join(f"Episode [1/2]:  {n}%|#     | {n - 1}/9 [00:10<01:00,  1.00it/s]\n" + "".join(
            f"Train epoch [1/1]:  50%|##   | {k}/4 [00:01<00:01, 1.0it/s, pg=0.01, reward={rise(n)}, kl=0.1]\n"
            for k in (1, 2, 3, 4)) for n in range(1, 10)), {}, ("reward", TRAINING, 9, 0.38, 9)),
    "an-epoch-that-counts-on": (
        "run.csv", csv([{"epoch": n // 5, "step": n, "reward": rise(n)} for n in range(20)]), {},
        ("reward", TRAINING, 20, 0.58, 19)),
    "a-fine-tuning": (
        "run.jsonl", jsonl(rows(12, loss=lambda n: 2 / n, eval_f1=rise, learning_rate=loss)), {},
        "supervised training"),
    "an-accuracy-with-a-policy-loss": (
        "run.csv", csv(rows(12, policy_loss=lambda n: 1 / n, val_acc=rise)), {}, ("val_acc", HELD_OUT, 12, 0.44, 12)),
    "a-history-of-phases": (
        "run.json", json.dumps({"config": {"lr": 1e-6}, "history": {"train": rows(12, loss=loss),
                                                                      "eval": rows(6, accuracy=rise)}}), {},
        ("eval/accuracy", HELD_OUT, 6, 0.32, 6)),
    "values-by-step": (
        "rewards.json", json.dumps({str(10 * n): rise(n) for n in range(1, 9)}), {},
        ("rewards", TRAINING, 8, 0.36, 80)),
    "metrics-by-step": (
        "run.json", json.dumps({"eval_accuracy": {str(10 * n): rise(n) for n in range(1, 9)}}), {},
        ("eval_accuracy", HELD_OUT, 8, 0.36, 80)),
    "lists-between-titles": (
        "run.txt", "Training history\n" + json.dumps(rows(9, reward=rise), indent=1) + "\n\nEvaluation\n"
        + json.dumps(rows(3, score=rise)) + "\n", {}, ("reward", TRAINING, 9, 0.38, 9)),
    "a-document-without-rows": (
        "run.json", json.dumps({"config": {"lr": 1e-6}, "final": {"accuracy": 0.4}}, indent=2), {},
        "is a JSON document without rows; it has config, final"),
    "a-dictionary-that-was-cut": (
        "run.log", "".join(cut(f"{{'loss': {loss(n)}, 'grad_norm': 0.1234, 'rewards/accuracy/mean': {rise(n)}, "
                               f"'reward': 0.25, 'kl': 0.0}}") for n in range(1, 9)),
        {"metric": "rewards/accuracy/mean"},
        ("rewards/accuracy/mean", TRAINING, 8, 0.36, 8)),
    "verls-line-that-was-cut": (
        "run.log", "".join(f"step:{n} - actor/entropy:0.1 - critic/sc\nore/mean:{rise(n)} - critic/score/max:1.0\n"
                           for n in range(1, 9)), {}, ("critic/score/mean", TRAINING, 8, 0.36, 8)),
    "commands-are-no-runs": (
        "run.csv", csv([{"command": f"python train.py --n {k} --fast", "step": n, "reward": rise(n) + k}
                        for k in range(3) for n in range(6)]), {}, "3 runs, told apart by restarts"),
    "the-longest-run-first": (
        "run.jsonl", jsonl([{"run_name": name, "step": n, "reward": rise(n)}
                            for name, count in (("aborted", 2), ("whole", 9)) for n in range(count)]), {},
        "has 2 runs, told apart by the column run_name: whole, aborted;"),
    "an-evaluation-without-a-score": (
        "run.jsonl", jsonl(rows(12, eval_loss=loss, reward=rise)), {}, "evaluates (eval_loss) but logs no score"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_log_is_read_as_its_author_would_or_the_user_is_asked(case: str, tmp_path: Path):
    name, text, options, expected = CASES[case]
    (tmp_path / name).write_text(text)
    check(tmp_path / name, options, expected)


def check(path: Path, options: Mapping[str, Any], expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(CurveError) as error:
            read(path, **options)
        assert expected in str(error.value)
        return
    log = read(path, **options)
    last = log.rows[-1]
    value = last.get("pass_rate", last.get("metric"))
    assert (log.metric, log.kind, log.values, last["step"]) == (expected[0], expected[1], expected[2], expected[4])
    assert value == pytest.approx(expected[3], abs=1e-9)
