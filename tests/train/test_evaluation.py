"""Held-out mean@k against values computed by hand."""

import json
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from texts import rollout

from scalerl.core.types import EvalPoint, Group, Outcome, Prompt, Score, ScoredGroup
from scalerl.reading.curves import Curve, fit
from scalerl.reading.curves.noise import relative_noise
from scalerl.reading.pages.outlook import curve_of
from scalerl.reading.pages.run import FollowedRun
from scalerl.training.config import LAB
from scalerl.training.engines.replay import Difference
from scalerl.training.loop.evaluation import PointTally, eval_point, mean_at_k
from scalerl.training.loop.evaluator import HeldOut, Snapshot, held_out_visits
from scalerl.training.loop.run_dir import RunDirectory
from scalerl.training.loop.warm_start import make_tokenizer
from scalerl.training.models.text import TokenText

ALL = np.ones((4, 4), bool)


def test_mean_at_k_and_its_error_over_prompts():
    rate, stderr = mean_at_k(np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=bool), ALL[:3])
    # rates .5, 1, .25: mean .58333, sample variance .145833, error sqrt(.145833 / 3)
    assert math.isclose(rate, 7 / 12) and math.isclose(stderr, math.sqrt(0.14583333333 / 3), rel_tol=1e-9)


def test_samples_without_a_reward_are_not_counted():
    passed = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=bool)
    counted = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]], dtype=bool)
    # 2 of 4, 3 of 3, 1 of 3: 6 of 10; residuals 2 - 2.4, 3 - 1.8, 1 - 1.8, over the mean count 10/3
    rate, stderr = mean_at_k(passed, counted)
    residuals = np.array([-0.4, 1.2, -0.8]) / (10 / 3)
    assert math.isclose(rate, 0.6)
    assert math.isclose(stderr, math.sqrt((residuals**2).sum() / 2 / 3), rel_tol=1e-9)
    # 146 of the 155 samples with a reward pass, not 146 of 160
    flat = np.arange(160) < 146
    rate, _ = mean_at_k(flat.reshape(40, 4), (np.arange(160) < 155).reshape(40, 4))
    assert round(rate, 4) == 0.9419


def test_an_evaluation_without_any_reward_has_no_pass_rate():
    rate, stderr = mean_at_k(np.zeros((2, 2), bool), np.zeros((2, 2), bool))
    assert math.isnan(rate) and math.isnan(stderr)


@given(st.integers(1, 20), st.integers(1, 9), st.randoms(use_true_random=False))
def test_with_all_rewards_the_rate_and_its_error_have_the_bits_of_the_plain_formulas(prompts, samples, rng):
    passed = np.array([[rng.random() < 0.5 for _ in range(samples)] for _ in range(prompts)])
    rate, stderr = mean_at_k(passed, np.ones_like(passed))
    rates = passed.mean(axis=1)
    assert rate == rates.mean()
    assert prompts == 1 or stderr == rates.std(ddof=1) / np.sqrt(prompts)


def test_a_point_of_an_environment_has_turns_calls_and_the_time_of_replies():
    visit = held_out_visits([Prompt("0" * 16, "q", (1,), "a", "t", {})])[0]
    ends = [Outcome(3, "environment", 1.0, "", {}, calls=2, waited_s=0.5), Outcome(1, "tokens", 0.0, "", {})]
    group = Group(visit, tuple(replace(rollout([4, 5]), outcome=end) for end in ends), 0)
    scored = ScoredGroup(group, (Score(1.0, True), Score(-1.0, False)))
    point = eval_point([scored], Snapshot(5, device_hours=0.1, flops=2.0, tokens=3), eval_s=0.5)
    row = point.to_dict()
    assert (row["turns"], row["tool_calls"], row["reply_wait_s"]) == (2.0, 1.0, 0.25) and EvalPoint.of(row) == point


def test_points_are_split_by_task_and_only_saved_and_replayed_rollouts_keep_their_tokens():
    prompts = [Prompt(f"{i:016x}", "q", (1, i), "a", task, {}) for i, task in enumerate(["b", "a", "b"])]
    visits, text = held_out_visits(prompts), TokenText(make_tokenizer())
    tally = PointTally(
        HeldOut(visits, (2, 2, 2), replayed=(0, 2), kept=frozenset({(0, 0), (1, 0), (2, 0)}), saved=1), text
    )
    for index in (2, 0, 1):  # in any order
        scores = (Score(1.0, True), Score(1.0, index == 2))
        tally.add(index, ScoredGroup(Group(visits[index], (rollout([4, index]), rollout([5, 6, 7])), 0), scores))
    assert [(prompt, one.tokens.tolist()) for prompt, one in tally.replayed()] == [((1, 0), [4, 0]), ((1, 2), [4, 2])]
    assert set(tally._groups[1].group.rollouts[1].tokens.tolist()) == {-1}
    found = tally.evaluated(Snapshot(5, 0.1, 2.0, 3), 0.5, Difference(2, 4, 0.2, 0.1, (np.array([0.1, -0.2]), None)))
    assert [(one.task, one.pass_rate, one.prompts, one.mean_tokens) for one in found.points] == [
        ("a", 0.5, 1, 2.5),
        ("b", 0.75, 2, 2.5),
    ]
    assert [(row["task"], row["prompt_id"][-1], row["log_ratio_min"]) for row in found.rows] == [
        ("a", "1", None),
        ("b", "0", -0.2),
    ]


def test_a_curve_of_one_prompt_has_no_standard_errors_in_its_file_its_fit_and_its_page(tmp_path):
    """The rate is 0.5, 0.55 and so on; in memory the missing error is NaN, in files null."""
    run = RunDirectory.create(tmp_path / "run", LAB)
    prompt = Prompt("0" * 16, "q", (1,), "a", "arithmetic", {})
    for step in range(8):
        scores = tuple(Score(1.0, number < 10 + step) for number in range(20))
        group = ScoredGroup(Group(held_out_visits([prompt])[0], (rollout([4]),) * 20, 0), scores)
        run.add_points([eval_point([group], Snapshot(step, step, flops=1.0 + step, tokens=3), eval_s=0.5)])
    rows = [json.loads(line) for line in (run.path / "points.jsonl").read_text().splitlines()]
    assert [row["stderr"] for row in rows] == [None] * 8 and rows[1]["pass_rate"] == 0.55
    assert all(math.isnan(point.stderr) for point in run.points())
    curve = Curve.read(run.path, compute="flops")
    assert curve.stderr is None and relative_noise(curve) is None
    fitted = fit(curve_of(run.points(), "flops"))
    assert 0 < fitted.predict([16.0]).mean[0] < 1
    (run.path / "metrics.jsonl").write_text("")
    seen = FollowedRun(run.path)
    assert seen.summary()["tasks"]["arithmetic"]["stderr"] is None
    assert seen.source("arithmetic").curve.stderr is None
    json.dumps(seen.summary(), allow_nan=False)
