"""Loggers in a run and after its resume."""

import sys

import pytest
import runs


@pytest.mark.slow
def test_a_resumed_run_is_logged_completely_and_a_failing_logger_changes_nothing(lab_model, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "run"
    loggers = '["tensorboard", {kind = "custom", function = "logged_runs:Remembers", params = {file = "/nowhere/x"}}]'
    output = runs.train(
        lab_model, path, "--steps", "6", "--loggers", loggers,
        PYTHONPATH=":".join(entry for entry in sys.path if entry),
    )  # fmt: skip
    code, more = runs.call("resume", str(path), "--steps", "12", "--loggers", "tensorboard")
    assert code == 0, more

    assert output.count("the run continues, and the data of failed calls are lost") == 1
    assert "logger logged_runs:Remembers: FileNotFoundError" in output and "logger" not in more
    events = EventAccumulator(str(path / "tensorboard")).Reload()
    logged = [(one.step, round(one.value, 5)) for one in events.Scalars("entropy")]
    assert logged == [(row["step"], round(row["entropy"], 5)) for row in runs.rows(path, "metrics.jsonl")]
    assert [one.step for one in events.Scalars("eval/arithmetic/pass_rate")] == [0, 6, 12]
