"""The callback inside TRL's GRPOTrainer, on a tiny random model; skipped if trl is not installed."""

import itertools
import json
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")
from tiny_grpo import grpo, prompts

from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.logs import read
from scalerl.reading.logs.callback import ForecastCallback

# transformers and trl warn about their own deprecations
pytestmark = pytest.mark.filterwarnings("ignore")


def points(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_writes_points_and_forecasts_from_the_fifth_evaluation_on(tmp_path, capsys):
    callback = ForecastCallback(tmp_path / "new/points.jsonl", devices=2)
    trainer = grpo(tmp_path, steps=12, callbacks=[callback], eval_on_start=True)
    trainer.train()
    rows = points(tmp_path / "new/points.jsonl")
    history = [row for row in trainer.state.log_history if "eval_reward" in row]
    assert [row["step"] for row in rows] == [row["step"] for row in history] == [0, 2, 4, 6, 8, 10, 12]
    assert [row["pass_rate"] for row in rows] == [row["eval_reward"] for row in history]
    assert [row.get("tokens", 0) for row in rows] == [row["eval_num_tokens"] for row in history]
    assert Curve.read(tmp_path / "new/points.jsonl").axis == "device_hours"
    output = [line for line in capsys.readouterr().out.splitlines() if line.startswith("forecast")]
    assert len(output) == 3 and output[0].startswith("forecast  eval_reward") and "at step 8; with 2x" in output[0]


def test_without_evaluations_the_reward_of_training_is_used_and_is_called_that(tmp_path):
    output = []
    callback = ForecastCallback(tmp_path / "points.jsonl", devices=2, say=output.append)
    trainer = grpo(tmp_path, steps=14, callbacks=[callback], eval_strategy="no", logging_steps=1)
    trainer.train()
    rows = points(tmp_path / "points.jsonl")
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert [row["pass_rate"] for row in rows] == rewards[: len(rows)] and len(rows) >= 10
    assert {row["kind"] for row in rows} == {"training reward"} and rows[0]["device_hours"] < rows[-1]["device_hours"]
    assert "the training reward, because there are no evaluations" in output[0]
    assert any("(training reward)" in line and "with 2x" in line for line in output)
    assert Curve.read(tmp_path / "points.jsonl").training


def test_after_ten_rows_without_a_reward_it_says_what_is_missing(tmp_path):
    output = []
    callback = ForecastCallback(tmp_path / "points.jsonl", say=output.append)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True, num_input_tokens_seen=0, log_history=[])
    control = SimpleNamespace(should_training_stop=False)
    callback.on_train_begin(SimpleNamespace(world_size=1), state, control)
    for step in range(1, 11):
        state.global_step = step
        callback.on_log(None, state, control, logs={"loss": 0.1, "learning_rate": 1e-6})
        assert bool(output) == (step == 10)
    assert "forecast  none after 10 rows without an evaluation" in output[0]


@pytest.mark.slow
def test_device_hours_exclude_evaluation(tmp_path):
    def slow(completions, **columns):
        time.sleep(0.2)  # once per training step and per evaluation step
        return [1.0 if c.isdigit() else 0.0 for c in map(lambda text: text[:1], completions)]

    callback = ForecastCallback(tmp_path / "points.jsonl", devices=1)
    trainer = grpo(tmp_path, steps=2, rewards=[slow], callbacks=[callback], eval_steps=1, logging_steps=1)
    trainer.train()
    seconds = points(tmp_path / "points.jsonl")[-1]["device_hours"] * 3600
    steps = sum(row["step_time"] for row in trainer.state.log_history if "step_time" in row)
    evaluation = sum(row["eval_runtime"] for row in trainer.state.log_history if "eval_runtime" in row)
    assert evaluation > 0.4 and steps <= seconds < steps + 0.5 * evaluation
    # the importer reads the same from the trainer's log, except for the optimizer's step
    trainer.save_state()
    assert read(tmp_path, devices=1).rows[-1]["device_hours"] * 3600 == pytest.approx(steps)


def test_a_resumed_run_continues_its_curve(tmp_path):
    grpo(tmp_path, steps=6, callbacks=[ForecastCallback(tmp_path / "points.jsonl")]).train()  # checkpoint at 4 and 6
    before = points(tmp_path / "points.jsonl")
    trainer = grpo(tmp_path, steps=8, callbacks=[ForecastCallback(tmp_path / "points.jsonl")])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    rows = points(tmp_path / "points.jsonl")
    assert [row["step"] for row in rows] == [2, 4, 6, 8] and rows[:2] == before[:2]
    assert all(a["device_hours"] < b["device_hours"] for a, b in itertools.pairwise(rows))


def test_each_evaluation_set_has_its_own_curve(tmp_path):
    sets = {"sums": prompts(16), "few": prompts(8)}
    grpo(tmp_path, steps=4, evaluation=sets, callbacks=[ForecastCallback(tmp_path / "points.jsonl")]).train()
    assert [(row["step"], row["task"]) for row in points(tmp_path / "points.jsonl")] == [
        (2, "sums"), (2, "few"), (4, "sums"), (4, "few")
    ]  # fmt: skip


def test_a_missing_metric_is_reported_and_the_run_continues(tmp_path):
    output = []
    callback = ForecastCallback(tmp_path / "points.jsonl", metric="eval_accuracy", say=output.append)
    trainer = grpo(tmp_path, steps=2, callbacks=[callback])
    trainer.train()
    assert trainer.state.global_step == 2 and "no number in 'eval_accuracy'" in output[0] and "eval_reward" in output[0]


def evaluate(callback, scores, name="eval_reward", seconds=36.0):
    """Pass the events of a run to a callback, without a trainer; return the step at which the callback stopped it."""
    args, control = SimpleNamespace(world_size=1), SimpleNamespace(should_training_stop=False)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True, num_input_tokens_seen=0, log_history=[])
    callback.on_train_begin(args, state, control)
    for score in scores:
        state.global_step += 10
        callback.seconds += seconds
        callback.on_log(args, state, control, logs={name: score})
        if name == "eval_reward":
            callback.on_evaluate(args, state, control, metrics={})
        if control.should_training_stop:
            return state.global_step
    return None


FALLING = [0.6 * n / (n + 2) for n in range(1, 16)] + [0.5, 0.4, 0.3, 0.2, 0.15, 0.1]


def test_a_condition_stops_the_run_and_is_dropped_after_a_resume(tmp_path):
    output = []
    callback = ForecastCallback(tmp_path / "p.jsonl", say=output.append).stop_when("falling")
    stopped = evaluate(callback, FALLING)
    # the mean of the last three is 0.05 below the best, and four times the noise, two evaluations after the fall began
    assert stopped in (170, 180) and output[-1].startswith("stopping, because 'falling' holds: the metric fell by")
    state = SimpleNamespace(global_step=stopped, is_world_process_zero=True, num_input_tokens_seen=0, log_history=[])
    again = ForecastCallback(tmp_path / "p.jsonl", say=output.append).stop_when("falling", "ceiling identified")
    again.on_train_begin(SimpleNamespace(world_size=1), state, None)
    assert [rule.text for rule in again.rules] == ["ceiling identified"]
    assert "this condition is ignored from now on" in output[-1]


def test_a_condition_on_the_reward_of_training_stops_the_run(tmp_path):
    callback = ForecastCallback(tmp_path / "p.jsonl", say=str).stop_when("falling")
    assert evaluate(callback, [*FALLING, 0.1], "reward") == 220  # looks at 10, 13, 17 and 22 rows


def test_a_resumed_run_does_not_overwrite_another_programs_file(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    state = SimpleNamespace(global_step=10, is_world_process_zero=True)
    with pytest.raises(CurveError, match="not written"):
        ForecastCallback(tmp_path / "p.jsonl").on_train_begin(SimpleNamespace(world_size=1), state, None)
    assert "loss" in (tmp_path / "p.jsonl").read_text()
