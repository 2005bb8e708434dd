"""A run with an evaluation suite next to its held-out prompts, and its rollouts as readable text."""

import dataclasses
import json
import math

import numpy as np
import pytest
import runs
from json_rows import write_rows
from texts import rollout

from scalerl.core.types import Group, Prompt, Score, ScoredGroup, Visit
from scalerl.reading.pages.outlook import read_sources
from scalerl.training.loop.rollout_rows import (
    evaluated_rows,
    telling_group,
)
from scalerl.training.loop.suites import SuiteResult
from scalerl.training.models.text import TokenText


@pytest.fixture(scope="module")
def run(lab_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("suites")
    sums = [{"prompt": f"{a}+{b}=<think>", "answer": str((a + b) % 10)} for a in range(10) for b in range(4)]
    write_rows(root / "sums.jsonl", sums)
    write_rows(root / "products.jsonl", [{"prompt": f"{a}*3=<think>", "answer": str(3 * a % 10)} for a in range(9)])
    (root / "run.toml").write_text(
        f'preset = "lab"\nsuites = [{{path = "{root}/products.jsonl", task = "arithmetic", samples = 3}}]\n'
        f'[model]\nkind = "hf"\npath = "{lab_model}"\n[data]\nkind = "file"\npath = "{root}/sums.jsonl"\n'
        'task = "arithmetic"\nname = "sums"\n'
    )
    words = ["--evaluation.every", "3", "--checkpoint.every", "3", "--steps", "6", "--evaluation.saved", "5"]
    text = runs.finish("train", str(root / "run.toml"), "--run-dir", str(root / "run"), *runs.RECIPE, *words)
    return root / "run", text


@pytest.mark.slow
def test_a_suite_has_points_with_all_its_prompts_and_its_number_of_samples(run):
    path, _ = run
    points = {task: [p for p in runs.rows(path, "points.jsonl") if p["task"] == task] for task in ("sums", "products")}
    assert [p["step"] for p in points["products"]] == [p["step"] for p in points["sums"]] == [0, 3, 6]
    assert {(p["prompts"], p["samples_per_prompt"]) for p in points["products"]} == {(9, 3)}
    assert {(p["prompts"], p["samples_per_prompt"]) for p in points["sums"]} == {(16, 2)}


@pytest.mark.slow
def test_a_suite_is_in_the_summary_and_not_in_the_forecast(run):
    path, printed = run
    last = [p for p in runs.rows(path, "points.jsonl") if p["task"] == "products"][-1]
    line = f"suite     products: mean@3 {last['pass_rate']:.3f} ± {last['stderr']:.3f} at step 6 (9 prompts)"
    assert line in printed and "task      products" not in printed
    if (path / "summary.json").exists():  # a run this short may have no forecast
        summary = json.loads((path / "summary.json").read_text())
        assert "tasks" not in summary and summary["suites"]["products"]["pass_rate"] == last["pass_rate"]
    (source,) = read_sources([path])
    assert source.curve.label == "sums" and len(source.curve) == 3


@pytest.mark.slow
def test_every_evaluation_leaves_readable_rollouts_of_each_task(run):
    path, _ = run
    rows = runs.rows(path, "rollouts.jsonl")
    for step in (0, 3, 6):
        for task, prompts in (("sums", 16), ("products", 9)):
            own = [row for row in rows if (row["step"], row["task"]) == (step, task)]
            assert len(own) == 5 <= prompts and len({row["prompt_id"] for row in own}) == 5
    for row in rows:
        assert row["staleness"] == 0 and row["versions"] == [row["step"], row["step"]]
        assert row["passed"] == (row["reward"] == 1.0) and (row["passed"] or row["reason"])
        assert ("⟦" in row["completion"]) == row["interrupted"]
    replayed = [row for row in rows if row["log_ratio_max"] is not None]
    assert len(replayed) >= 3 * 2
    assert all(abs(row["log_ratio_min"]) < 1e-4 and row["log_ratio_min"] <= row["log_ratio_max"] for row in replayed)
    training = runs.rows(path, "rollouts/samples.jsonl")
    assert training and all(0 <= row["staleness"] <= 5 for row in training)
    for step in (3, 6):  # the rollouts of one group, side by side; its first four token by token
        group = [row for row in training if row["step"] == step]
        assert len({row["prompt_id"] for row in group}) == 1 and [row["sample"] for row in group] == list(range(4))
        for row in group:
            detail, ratios = row["token_detail"], [r for r in row["token_detail"]["log_ratio"] if r is not None]
            assert len(detail["text"]) == len(detail["staleness"]) == len(detail["log_ratio"]) == row["tokens"]
            assert "".join(detail["text"]) == row["completion"].replace("⟦", "").replace("⟧", "")
            assert max(age for age in detail["staleness"] if age is not None) == row["staleness"]
            assert [min(ratios), max(ratios)] == pytest.approx([row["log_ratio_min"], row["log_ratio_max"]], abs=1e-4)
            assert detail["staleness"].count(None) == detail["log_ratio"].count(None)  # injected tokens have neither


class Letters:
    """A fake tokenizer that only decodes; token 1 is "b"."""

    pad_token_id = bos_token_id = None

    def decode(self, tokens, **options):
        return "".join(chr(97 + token) for token in tokens)


def scored(identity, task, samples, interrupted=False):
    made = rollout([0, 1, 2], [True, not interrupted, True], versions=[3, 4, 5])
    visit = Visit(Prompt(identity, "q", (1,), "a", task, {}), 0, 0)
    return ScoredGroup(Group(visit, (made,) * samples, 3), (Score(-1.0, False, "no"),) * samples)


def test_saved_samples_include_replayed_groups_and_further_samples_of_few_prompts():
    groups = [scored(f"{i}", "many" if i < 20 else "few", 2) for i in range(22)]
    rows = evaluated_rows(TokenText(Letters()), 9, groups, {7: np.array([-0.5, 0.25, 0.0])}, 4)
    many, few = [row for row in rows if row["task"] == "many"], [row for row in rows if row["task"] == "few"]
    assert len(many) == len(few) == 4 and [row["prompt_id"] for row in few] == ["20", "21", "20", "21"]
    with_ratio = [(row["prompt_id"], row["log_ratio_min"]) for row in rows if row["log_ratio_min"] is not None]
    assert with_ratio == [("7", -0.5)] and many[0]["versions"] == [3, 5] and many[0]["staleness"] == 6
    assert evaluated_rows(TokenText(Letters()), 9, groups, {7: np.array([-0.5, 0.25, 0.0])}, 0) == []


def test_the_saved_group_has_different_rewards():
    alike, telling = scored("1", "t", 2), scored("2", "t", 2)
    telling = dataclasses.replace(telling, scores=(Score(1.0, True, ""), Score(-1.0, False, "no")))
    assert telling_group([alike, telling]) is telling and telling_group([alike]) is alike


def test_a_suite_of_one_prompt_has_no_standard_error_and_one_without_rewards_no_rate():
    shared = {"samples": 2, "truncated": 0.0, "mean_tokens": 3.0, "tokens_per_s": 1.0, "seconds": 1.0, "texts": "t"}
    one = SuiteResult("s", 1, mean=0.5, stderr=math.nan, pass_at={1: 0.5, 2: 1.0}, failed=0.0, **shared)
    assert one.to_dict()["stderr"] is None and "±" not in (text := "\n".join(one.lines())) and "0.500" in text
    lost = SuiteResult("s", 2, mean=math.nan, stderr=math.nan, pass_at={}, failed=1.0, **shared)
    assert lost.to_dict()["mean"] is None and "nan" not in (text := "\n".join(lost.lines()))
    assert "no reward  100% of the samples" in text
    json.dumps([one.to_dict(), lost.to_dict()], allow_nan=False)
