"""Speeds read from metrics.jsonl: rows made from known speeds give those speeds."""

import json

import numpy as np
import pytest
from commands import call

from scalerl.core.errors import ConfigError
from scalerl.training.config import LAB, to_toml
from scalerl.training.config.base import replace
from scalerl.training.machines.measured import generator_steps, lengths_like, line_through, measure, read_speeds


def write_run(path, rows):
    path.mkdir()
    config = replace(LAB, rollouts=replace(LAB.rollouts, slots=200))
    (path / "config.toml").write_text(to_toml(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(step, running, seconds_a_step, steps=50, idle_s=1.0, handling_s=0.0):
    """Return the row of a generator that decodes `steps` steps and waits, and of a trainer of 500 tokens/s."""
    tokens = running * steps
    lived = seconds_a_step * steps + idle_s
    return {
        "step": step, "tokens": step * 10_000 + tokens, "occupancy": running / 200, "generator_idle": idle_s / lived,
        "generator_tokens_per_s": tokens / lived, "trained_tokens": 4000, "trainer_tokens_per_s": 500.0,
        "prompts": 16, "completion_tokens_mean": 31.25, "completion_tokens_max": 60, "swap_ms": 2.0,
        "step_s": lived + handling_s,
    }  # fmt: skip


def rows_of(points, **options):
    """Return rows with a cumulative count of tokens."""
    made, total = [], 0
    for number, (running, seconds) in enumerate(points, 1):
        one = row(number, running, seconds, **options)
        total += running * 50
        made.append({**one, "tokens": total})
    return made


def test_the_seconds_of_a_step_are_recovered(tmp_path):
    points = [(n, 0.01 + 0.0001 * n) for n in (100, 120, 140, 160, 180, 200, 100, 150, 190, 110)]
    found = measure([write_run(tmp_path / "run", rows_of(points))])
    assert found.base_s == pytest.approx(0.01, rel=1e-6) and found.slope_s == pytest.approx(1e-4, rel=1e-6)
    assert found.step_seconds(200, 0) == pytest.approx(0.03)
    # 4000 of 16 x 16 x 31.25 = 8000 tokens are trained, at 500 a second
    assert found.trained_share == pytest.approx(0.5) and found.trainer_tokens_per_s == pytest.approx(500)
    assert found.update_seconds(1)(np.asarray([8000])) == pytest.approx(8.0)
    assert found.update_seconds(4)(np.asarray([8000])) == pytest.approx(2.0)
    assert found.swap_s == 0.002 and found.tokens_mean == 31.25 and found.tokens_max == 60


def test_the_drift_follows_the_steps_in_order_on_both_sides(tmp_path):
    rows = rows_of([(100, 0.02)] * 6 + [(100, 0.04)] * 4)
    for one in rows[6:]:
        one["trainer_tokens_per_s"] = 250.0
    found = measure([write_run(tmp_path / "run", rows)])  # four of the last eight steps were half as fast
    assert [step * found.step_seconds(100, 0) for step, _ in found.drift] == pytest.approx([0.02] * 4 + [0.04] * 4)
    took = found.update_seconds(1)(np.asarray([1000]))
    assert [update * took for _, update in found.drift] == pytest.approx([1.0] * 4 + [2.0] * 4)


def test_nearly_constant_numbers_of_sequences_give_no_slope():
    assert line_through([(100, 0.02, 1.0), (104, 0.03, 1.0)]) == (0.025, 0.0)
    base, slope = line_through([(100, 0.04, 1.0), (200, 0.02, 1.0)])  # faster when fuller: noise
    assert (base, slope) == (0.03, 0.0)
    base, slope = line_through([(100, 0.01, 1.0), (200, 0.05, 1.0)])  # a base below 0 is set to 0
    assert base == pytest.approx(0) and slope == pytest.approx(0.03 / 150)


def test_rows_without_an_occupancy_are_skipped_and_a_run_without_any_is_an_error(tmp_path):
    rows = rows_of([(100, 0.02)] * 10)
    rows[7]["occupancy"] = None
    found = generator_steps(read_speeds(write_run(tmp_path / "one", rows)))
    assert len(found) == 8 and found.count(None) == 1  # the eight after the warm-up
    none = [{**one, "occupancy": None} for one in rows]
    with pytest.raises(ConfigError, match="no step has an occupancy"):
        measure([write_run(tmp_path / "two", none)])
    with pytest.raises(ConfigError, match="got 3 complete steps in metrics"):
        measure([write_run(tmp_path / "three", rows[:3])])
    with pytest.raises(ConfigError, match=r"four/config\.toml: no such file"):
        measure([tmp_path / "four"])


def test_lengths_fitted_to_a_run_have_its_mean_and_maximum():
    from scalerl.training.config.length import NoLengthControl

    rng = np.random.default_rng(3)
    truth = np.clip(np.rint(300 * rng.lognormal(-0.32, 0.8, 100_000)), 1, 100_000)
    longest = np.mean([rng.choice(truth, 256).max() for _ in range(200)])
    found = lengths_like(float(truth.mean()), float(longest), 256, NoLengthControl(max_tokens=100_000))
    assert found.mean() == pytest.approx(truth.mean(), rel=0.01)
    assert np.log(found).std() == pytest.approx(0.8, abs=0.11)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trainer_tokens_per_s", 0), ("tokens", -5), ("generator_idle", 1.5), ("step_s", 10**40), ("tokens", True),
    ],
)  # fmt: skip
def test_speeds_that_cannot_be_are_an_error_with_their_step(tmp_path, capsys, name, value):
    rows = rows_of([(100, 0.005), (150, 0.006), (200, 0.007)] * 4)
    rows[7][name] = value
    run = write_run(tmp_path / "run", rows)
    code, _, error = call(capsys, "plan", "--from", run)
    assert code == 2 and f"step 8 has {name} = " in error and error.count("\n") == 1
