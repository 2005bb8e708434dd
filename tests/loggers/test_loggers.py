"""Every logger: the values that the tracker's reader finds, and runs with a failing logger."""

from __future__ import annotations

import gc
import importlib.util
import json
import struct
import time
import warnings

import pytest
import runs
from logged_runs import Remembers, calls, play, point, row

from scalerl.core.errors import ConfigError
from scalerl.reading.pages.run import RunView
from scalerl.training.config import read_config
from scalerl.training.config.overrides import plain_values
from scalerl.training.loop.run_info import run_info
from scalerl.training.trackers import follow
from scalerl.training.trackers.base import makers_of
from scalerl.training.trackers.follow import Followers, evaluation_numbers


def config_of(*loggers):
    return read_config(None, {"loggers": list(loggers)})


def session(config, path, first, last, resumed=None, makers=None, went_back=False):
    """Simulate one process of a run; return its notes."""
    output = []
    info = run_info(config)
    settings, makers = plain_values(config, mode="json"), makers or makers_of(config.loggers)
    followers = Followers(settings, info, path, makers, output.append, resumed, went_back)
    play(followers, first, last)
    followers.ended("finished")
    followers.close()
    return output


# ---- readers of the trackers
# each returns {(name, step): value} of all numbers, the number of pictures, and the parameter recipe.loss.kind


def read_tensorboard(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "tensorboard"), size_guidance={"scalars": 0, "images": 0}).Reload()
    numbers = [((tag, one.step), one.value) for tag in events.Tags()["scalars"] for one in events.Scalars(tag)]
    data = b"".join(file.read_bytes() for file in (path / "tensorboard").iterdir())
    assert events.Images("curve")[0].encoded_image_string[1:4] == b"PNG"
    return numbers, len(events.Images("curve")), "cispo" if b"recipe.loss.kind" in data and b"cispo" in data else ""


def frames(data):
    """Yield the records of a file of wandb, in LevelDB's log format: blocks of 32 KiB, headers of 7 bytes."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        if place + 7 + length > len(data):  # still being written
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # FULL or LAST
            yield parts
            parts = b""


def wandb_records(file):
    """Return the records of a file of wandb, whose own process writes the end after `finish` has returned."""
    from wandb.proto.wandb_internal_pb2 import Record

    def ended():
        records = [Record.FromString(data) for data in frames(file.read_bytes())]
        return records if any(record.HasField("exit") for record in records) else None

    return runs.wait_for(ended, what="the exit")


def read_wandb(path):
    numbers, pictures, kind = [], 0, ""
    files = sorted(path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1  # both processes use the id of the run
    for file in files:
        for record in wandb_records(file):
            for update in [*record.run.config.update, *record.config.update]:
                if update.key == "recipe":
                    kind = json.loads(update.value_json)["loss"]["kind"]
            values = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
            }
            pictures += "curve" in values or "curve.path" in values
            numbers += [
                ((name, values["_step"]), value)
                for name, value in values.items()
                if isinstance(value, int | float) and not name.startswith("_") and not name.startswith("curve")
            ]
    return numbers, pictures, kind


def read_mlflow(path):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("scalerl").experiment_id])
    assert run.info.status == "FINISHED"
    numbers = [
        ((name, one.step), one.value)
        for name in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, name)
    ]
    return numbers, len(client.list_artifacts(run.info.run_id, "curve")), run.data.params["recipe.loss.kind"]


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("wandb", "mlflow")]


@pytest.mark.parametrize("name", ["tensorboard", *SLOW])
def test_a_tracker_has_every_row_once_with_forecast_picture_and_configuration_after_a_resume(
    name, tmp_path, monkeypatch
):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    warnings.simplefilter("ignore")  # warnings of the libraries
    monkeypatch.setattr(follow, "LOGGER_FINISH_S", 120.0)  # a first start on a busy machine
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)  # mlflow puts artifacts here
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    config = config_of(name)
    assert session(config, tmp_path, 0, 33) == []
    if name == "wandb":
        time.sleep(1.0)  # the name of its offline directory has the time in seconds
    assert session(config, tmp_path, 31, 42, resumed=30) == []  # steps 31 to 33 are logged again

    numbers, pictures, kind = READERS[name](tmp_path)

    values = dict(numbers)
    assert len(values) == len(numbers)  # no duplicates
    assert [values[("pass_rate", step)] for step in range(1, 43)] == pytest.approx(
        [step / 100 for step in range(1, 43)]
    )
    assert sorted(step for key, step in values if key == "entropy") == list(range(1, 43))
    assert ("occupancy", 1) not in values  # it is NaN there
    assert values[("eval/arithmetic/pass_rate", 40)] == pytest.approx(0.6 - 0.5 / (1 + 40 / 60))
    assert values[("eval/arithmetic/stderr", 0)] == pytest.approx(0.004)
    ahead = [values[(f"forecast/arithmetic/2x{end}", 40)] for end in ("_low", "", "_high")]
    assert 0.3 < ahead[0] < ahead[1] < ahead[2] < 0.6
    assert pictures >= 2  # the first and the last
    assert kind == "cispo"
    assert gc.isenabled()  # MLflow pauses it while numbers are sent


# ---- custom loggers


def test_a_custom_logger_gets_its_calls_in_order_and_its_id_on_resume(tmp_path):
    file = tmp_path / "calls"
    config = config_of({"kind": "custom", "function": "logged_runs:Remembers", "params": {"file": str(file)}})
    session(config, tmp_path, 0, 2)
    session(config, tmp_path, 2, 3, resumed=1)
    received = calls(file)
    assert received[0] == ["start", 240, tmp_path.name, "", None]
    assert [call[0] for call in received[1:5]] == ["log", "log", "log", "finish"]
    assert received[2] == ["log", {"step": 1, "pass_rate": 0.01, "entropy": 0.5, "truncation_rate": 0.0}, 1]
    assert received[5:] == [
        ["start", 240, tmp_path.name, "number-7", 1],
        ["log", {**received[3][1], "step": 3, "pass_rate": 0.03}, 3],
        ["finish", "finished"],
    ]


@pytest.mark.parametrize("logger, problem", [
    ({"function": "logged_runs:Nobody"}, "has no function or class 'Nobody'"),
    ({"function": "logged_runs:point", "params": {"step": 3}}, "without a method start"),
    ({"function": "logged_runs:Remembers"}, "must take ()"),
    ({"function": "logged_runs:Remembers", "params": {"file": 7}}, "TypeError"),
])  # fmt: skip
def test_an_unusable_logger_is_refused_at_the_start(logger, problem):
    with pytest.raises(ConfigError, match="loggers") as error:
        makers_of(config_of({"kind": "custom", **logger}).loggers)
    assert problem in str(error.value)


# ---- runs that go back


def write_files(path, last, every=5):
    """Write the rows and evaluations of a run up to a step, as a run does before it calls its loggers."""
    rows = [{**row(step), "occupancy": None} for step in range(1, last + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    points = [point(step).to_dict() for step in range(0, last + 1, every)]
    (path / "points.jsonl").write_text("".join(json.dumps(one) + "\n" for one in points))


def remembering(file, *later_rates):
    """Return a configuration with a custom logger and rates that were set during the run, as (after_step, rate)."""
    logger = {"kind": "custom", "function": "logged_runs:Remembers", "params": {"file": str(file)}}
    rates = [{"after_step": step, "learning_rate": rate} for step, rate in later_rates]
    return read_config(None, {"loggers": [logger], "recipe.optimizer.later_rates": rates})


def steps_of(received, name):
    return [call[2] for call in received if call[0] == "log" and name in call[1]]


@pytest.mark.slow
def test_a_run_that_went_back_starts_anew_in_the_tracker_with_all_its_rows(tmp_path):
    file, rates, went_back = tmp_path / "calls", [(20, 1e-4)], True
    assert session(remembering(file), tmp_path, 0, 33) == []
    file.unlink()
    write_files(tmp_path, 20)
    notes = session(remembering(file, *rates), tmp_path, 21, 42, resumed=20, went_back=went_back)
    assert len(notes) == 1 and "went back to step 20, so a new run starts in the tracker" in notes[0]
    received = calls(file)
    assert received[0] == ["start", 240, f"{tmp_path.name}-2", "", 20]
    assert steps_of(received, "pass_rate") == list(range(1, 43))
    assert steps_of(received, "eval/arithmetic/pass_rate") == list(range(0, 41, 5))
    assert received[1][1]["eval/arithmetic/pass_rate"] == point(0).pass_rate and received[-1] == ["finish", "finished"]
    assert ["figure", "curve", "step_000040.png", "PNG", 40] in received
    file.unlink()
    assert session(remembering(file, *rates), tmp_path, 41, 44, resumed=40) == []  # killed: the same steps again
    assert calls(file)[0] == ["start", 240, f"{tmp_path.name}-2", "number-7", 40]
    assert steps_of(calls(file), "pass_rate") == [43, 44]
    file.unlink()
    write_files(tmp_path, 10)
    session(remembering(file, (10, 1e-5)), tmp_path, 11, 12, resumed=10)
    assert calls(file)[0] == ["start", 240, f"{tmp_path.name}-3", "", 10]


def test_a_new_rate_after_the_last_logged_step_continues_the_logged_run(tmp_path):
    file = tmp_path / "calls"
    session(remembering(file), tmp_path, 0, 20)
    file.unlink()
    write_files(tmp_path, 20)
    assert session(remembering(file, (20, 1e-4)), tmp_path, 21, 22, resumed=20) == []
    assert calls(file)[0] == ["start", 240, tmp_path.name, "number-7", 20]
    assert steps_of(calls(file), "pass_rate") == [21, 22]


def test_a_run_that_starts_over_with_another_rate_starts_anew(tmp_path):
    file = tmp_path / "calls"
    session(remembering(file), tmp_path, 0, 3)
    file.unlink()
    (note,) = session(remembering(file, (0, 1e-4)), tmp_path, 0, 4)
    assert "went back to step 0" in note and steps_of(calls(file), "pass_rate") == [1, 2, 3, 4]


def test_a_logger_that_a_resume_adds_gets_the_earlier_rows(tmp_path):
    file = tmp_path / "calls"
    write_files(tmp_path, 20)
    assert session(remembering(file), tmp_path, 21, 22, resumed=20) == []
    assert calls(file)[0] == ["start", 240, tmp_path.name, "", 20]
    assert steps_of(calls(file), "pass_rate") == list(range(1, 23))


# ---- faulty loggers


@pytest.mark.parametrize("where, lost", [("start", 5), ("finish", 1)])
def test_a_logger_that_raises_is_reported_once_and_the_others_continue(where, lost, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    makers = {"bad": lambda: Remembers(bad, fails_in=where), "good": lambda: Remembers(good)}
    output = session(config_of(), tmp_path, 0, 3, makers=makers)
    left = 6 if where == "start" else lost
    assert len(output) == 2 and f"ValueError: no {where} today" in output[0] and f"{left} failed" in output[1]
    assert [call[0] for call in calls(good)] == ["start", "log", "log", "log", "log", "finish"]


def test_a_hanging_logger_does_not_delay_the_run_and_its_drops_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "LOGGER_FINISH_S", 0.2)
    output = []
    followers = Followers(
        plain_values(config_of(), mode="json"),
        run_info(config_of()),
        tmp_path,
        {"slow": lambda: Remembers(tmp_path / "calls", slow=3600)},
        output.append,
    )
    for step in range(1, 1601):
        followers.step(row(step))
    followers.close()
    assert output[0].startswith("logger slow is too slow: 1000 rows are waiting")
    dropped = int(output[-1].split(" calls were dropped")[0].rpartition(" ")[2])
    assert 599 <= dropped <= 601 and output[-1].endswith("the files in the run directory are complete")


# ---- evaluations


def test_each_task_is_logged_under_its_name_with_a_forecast_once_it_can_be_fitted():
    config = read_config(None, ["--data", '[{kind = "arithmetic"}, {kind = "programs"}]'])
    points = [point(10 * n, task) for n in range(8) for task in ("arithmetic", "programs")]
    early = evaluation_numbers(RunView(run_info(config), (), points[:4]))
    late = evaluation_numbers(RunView(run_info(config), (), points))
    assert early["eval/programs/pass_rate"] == point(10).pass_rate
    assert not [name for name in early if name.startswith("forecast/")]
    for task in ("arithmetic", "programs"):
        ends = [f"{at}{end}" for at in ("2x", "4x", "ceiling") for end in ("", "_low", "_high")]
        assert [name for name in ends if f"forecast/{task}/{name}" not in late] == []
