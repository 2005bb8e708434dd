"""Logs of trackers are followed in real stores, and the forecast that is written there is not read as a metric."""

import json
import os
import sys
import time
import types
from pathlib import Path

import pytest
from commands import call
from test_follow_command import meanwhile
from test_following import EIGHT, kinds, level, values

from scalerl.importers import read
from scalerl.importers.formats import read_log
from scalerl.view.following import FollowedLog, Reading
from scalerl.view.outlook import HORIZON

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::Warning:sqlalchemy")

NUMBERS = {f"scalerl/{name}{end}" for name in (*HORIZON, "ceiling", "gain_2x") for end in ("", "_low", "_high")}
NUMBERS |= {"scalerl/identified", "scalerl/stop"}


class TensorBoard:
    """A run that writes event files."""

    def __init__(self, place):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.path = place / "logs"
        self.writer = EventFileWriter(str(self.path))

    def log(self, step, **metrics):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()])
        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self.writer.flush()

    def finish(self):
        pass

    def written(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (own,) = self.path.glob("*.scalerl")
        events = EventAccumulator(str(own))
        events.Reload()
        tags = events.Tags()["scalars"]
        return {tag: (events.Scalars(tag)[-1].step, events.Scalars(tag)[-1].value) for tag in tags}


class Mlflow:
    """A run in MLflow's SQLite database."""

    def __init__(self, place):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        self.path = place / "mlflow.db"
        self.client = MlflowClient(f"sqlite:///{self.path}")
        self.run = self.client.create_run(self.client.create_experiment("grpo"), run_name="mine").info.run_id

    def log(self, step, **metrics):
        for name, value in metrics.items():
            self.client.log_metric(self.run, name, value, step=step)

    def finish(self):
        self.client.set_terminated(self.run, "FINISHED")

    def written(self):
        names = self.client.get_run(self.run).data.metrics
        history = {name: self.client.get_metric_history(self.run, name)[-1] for name in names if "scalerl" in name}
        return {name: (metric.step, metric.value) for name, metric in history.items()}


@pytest.fixture(params=[TensorBoard, Mlflow])
def tracker(request, tmp_path):
    pytest.importorskip("tensorboard" if request.param is TensorBoard else "mlflow")
    return request.param(tmp_path)


def log_steps(tracker, first, last):
    for step in range(first, last + 1):
        tracker.log(step, reward=level(step), step_time=60.0, loss=0.1)


def test_a_local_tracker_is_followed_and_its_end_is_noticed(tracker):
    log = FollowedLog(tracker.path, EIGHT)
    log_steps(tracker, 1, 12)
    assert kinds(log) == ["forecast"] and values(log) == 12
    assert log.look() == []
    log_steps(tracker, 13, 20)
    assert kinds(log) == ["forecast"] and values(log) == 20
    assert log.source.log.rows[-1]["device_hours"] == pytest.approx(20 * 60 * 8 / 3600)
    tracker.finish()
    log_steps(tracker, 21, 21)
    assert ("ended" in kinds(log)) == isinstance(tracker, Mlflow)


def test_the_forecast_is_written_to_the_run_and_is_not_read_as_its_metric(tracker, monkeypatch, capsys):
    log_steps(tracker, 1, 20)
    before = read(tracker.path, devices=8)
    meanwhile(monkeypatch, lambda: log_steps(tracker, 21, 30), lambda: None)
    code, out, _ = call(capsys, "follow", tracker.path, "--devices", 8, "--write")
    assert code == 130 and "cannot" not in out
    written = tracker.written()
    assert written.keys() == NUMBERS and {step for step, _ in written.values()} == {30}
    log = FollowedLog(tracker.path, EIGHT)
    log.look()
    assert written["scalerl/2x"][1] == pytest.approx(log.outlook.forecast.at[0].mean, rel=1e-5)
    after = read(tracker.path, devices=8)
    assert after.metric == before.metric == "reward" and len(after.rows) == 30
    for name in ("step", "pass_rate", "device_hours"):
        assert [row[name] for row in after.rows[:20]] == [row[name] for row in before.rows]
    assert not any("scalerl" in name for name in after.others)


def test_a_log_without_other_metrics_than_a_forecast_has_no_metric(tmp_path):
    path = tmp_path / "run.jsonl"
    rows = [{"step": step, "scalerl/2x": 0.5, "timestamp": 1e9 + step} for step in range(1, 30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="no score"):
        read(path)
    assert "scalerl/2x" in read_log(path).frame.names


def test_a_log_that_is_no_tracker_gets_the_trackers_to_which_a_forecast_can_be_written(tmp_path, capsys):
    (tmp_path / "run.jsonl").write_text("{}\n")
    code, out, err = call(capsys, "follow", tmp_path / "run.jsonl", "--write")
    assert code == 2 and not out
    assert "not the log of a tracker" in err and "TensorBoard" in err and "wandb:" in err


def test_a_tracker_that_does_not_take_the_forecast_is_said_once_and_tried_again(tmp_path, monkeypatch, capsys):
    tracker = TensorBoard(tmp_path)
    log_steps(tracker, 1, 20)
    from scalerl.view.write_back import TensorBoardWriter

    real, calls = TensorBoardWriter.write, []

    def write(self, numbers, step):
        calls.append(step)
        if len(calls) < 3:
            raise ConnectionError("no route to host")
        real(self, numbers, step)

    monkeypatch.setattr(TensorBoardWriter, "write", write)
    more = [lambda n=n: log_steps(tracker, n, n) for n in (21, 22, 23)]
    meanwhile(monkeypatch, *more)
    _, out, _ = call(capsys, "follow", tracker.path, "--devices", 8, "--write")
    assert calls == [20, 21, 22, 23] and out.count("no route to host") == 1 and out.count("can be written again") == 1


def test_trackio_is_followed_and_gets_the_forecast(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    monkeypatch.setattr(sys.modules["trackio.sqlite_storage"], "TRACKIO_DIR", tmp_path)

    def log(first, last):
        rows = [{"reward": level(step), "step_time": 60.0} for step in range(first, last + 1)]
        storage.bulk_log("grpo", "mine", rows, steps=list(range(first, last + 1)), run_id="5e1f")

    log(1, 20)
    meanwhile(monkeypatch, lambda: log(21, 30))
    code, out, _ = call(capsys, "follow", tmp_path / "grpo.db", "--devices", 8, "--write")
    assert code == 130 and "cannot" not in out
    last = storage.get_logs("grpo", "mine", run_id="5e1f")[-1]
    assert last["step"] == 30 and last.keys() >= NUMBERS
    assert len(read(tmp_path / "grpo.db", devices=8).rows) == 30


# ------------------------------------------------------------------------------------------------------------- wandb


class Wandb(types.SimpleNamespace):
    """What a run on wandb answers, as recorded: rows by `_step`, a state, and what was written to other runs."""

    def __init__(self):
        super().__init__(rows=[], state="running", asked=[], error=None, opened=[], written=[])
        self.Settings = types.SimpleNamespace

    def Api(self, **options):
        return self

    def run(self, path):
        if self.error:
            raise self.error
        last = self.rows[-1]["_step"] if self.rows else -1
        return types.SimpleNamespace(scan_history=self.scan_history, state=self.state, lastHistoryStep=last)

    def scan_history(self, min_step=0, use_cache=True):
        self.asked.append(min_step)
        return iter([row for row in self.rows if row["_step"] >= min_step])

    def init(self, **options):
        self.opened.append(options)
        return types.SimpleNamespace(
            log=self.written.append, define_metric=lambda *a, **b: None, finish=lambda: self.opened.append("finished")
        )

    def add(self, first, last):
        for step in range(first, last + 1):
            self.rows.append({"_step": step, "reward": level(step), "step_time": 60.0, "_timestamp": 1e9 + 60 * step})


@pytest.fixture
def wandb(monkeypatch):
    made = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setattr("scalerl.view.write_back.find_spec", lambda name: True)
    return made


def test_a_run_on_wandb_is_asked_for_new_rows_only_and_ends(wandb):
    wandb.add(1, 20)
    log = FollowedLog(Path("wandb:team/project/abc"), EIGHT)
    assert kinds(log) == ["forecast"] and values(log) == 20
    wandb.add(21, 25)
    assert kinds(log) == ["forecast"] and values(log) == 25
    wandb.state = "finished"
    assert kinds(log)[-1] == "ended"
    assert wandb.asked == [0, 21, 26]


@pytest.mark.parametrize("error", [ConnectionError("no route to host"), TimeoutError("timed out"), OSError("502")])
def test_a_tracker_that_is_away_for_an_hour_loses_nothing_and_is_said_once(wandb, monkeypatch, capsys, error):
    wandb.add(1, 20)

    def leave():
        wandb.error = error
        wandb.add(21, 40)

    def come_back():
        wandb.error = None

    meanwhile(monkeypatch, leave, *[lambda: None] * 240, come_back)
    code, out, _ = call(capsys, "follow", "wandb:team/project/abc", "--devices", 8, "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 130 and [one["event"] for one in events] == ["forecast", "away", "back", "forecast"]
    assert events[-1]["log"]["values"] == 40


def test_a_tracker_that_is_away_from_the_start_is_tried_again_but_not_a_wrong_name(wandb, monkeypatch, capsys):
    wandb.error = ConnectionError("no route to host")
    wandb.add(1, 20)
    meanwhile(monkeypatch, lambda: setattr(wandb, "error", None))
    code, out, _ = call(capsys, "follow", "wandb:team/project/abc", "--devices", 8)
    assert code == 130 and out.splitlines()[0].count("away: ") == 1 and "device-hours" in out
    for error in (
        ValueError("Could not find run <Run a>"),
        PermissionError("permission denied"),
        Exception("api_key not set"),
    ):
        wandb.error = error
        code, out, err = call(capsys, "follow", "wandb:team/project/abc")
        assert code == 2 and "wandb login" in err and not out


def test_a_run_on_wandb_that_was_rewound_is_read_again(wandb):
    wandb.add(1, 20)
    log = FollowedLog(Path("wandb:team/project/abc"), EIGHT)
    log.look()
    del wandb.rows[10:]
    log.look()
    assert values(log) == 10 and wandb.asked == [0, 0]


def test_the_forecast_on_wandb_goes_to_a_run_beside_the_one_that_trains(wandb, monkeypatch, capsys):
    wandb.add(1, 20)
    meanwhile(monkeypatch)
    call(capsys, "follow", "wandb:team/project/abc", "--devices", 8, "--write")
    opened, end = wandb.opened
    assert (opened["entity"], opened["project"], opened["id"]) == (
        "team",
        "project",
        "abc-scalerl",
    ) and end == "finished"
    assert wandb.written[0].keys() == NUMBERS | {"scalerl/step"} and wandb.written[0]["scalerl/step"] == 20


def test_the_reading_of_a_followed_log_can_choose_the_run_of_a_store(tmp_path):
    tracker = pytest.importorskip("mlflow") and Mlflow(tmp_path)
    log_steps(tracker, 1, 20)
    other = tracker.client.create_run("1", run_name="other").info.run_id
    for step in range(1, 10):
        tracker.client.log_metric(other, "reward", level(step), step=step)
    log = FollowedLog(tracker.path, Reading(choices={"run": "mine", "devices": 8.0}))
    log.look()
    assert values(log) == 20
