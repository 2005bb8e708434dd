"""`scalerl follow`: what it prints, and how it ends. Rows are added while the command sleeps."""

import json
import re

import pytest
from commands import call
from test_following import append, level, lines

from scalerl.cli import follow as command


def meanwhile(monkeypatch, *actions):
    """Do one action in each sleep of the command; after the last, raise what Ctrl-C raises."""
    left = list(actions)

    def sleep(seconds):
        assert seconds >= 0
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(command.time, "sleep", sleep)


def saturating(first, last):
    """Return rows of a run that soon no longer rises."""
    rows = [
        {"step": s, "eval/accuracy": 0.1 + 0.5 * s**3 / (s**3 + 500) + 0.002 * (s % 3)} for s in range(first, last + 1)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_it_prints_what_was_read_once_and_a_line_with_the_time_for_each_forecast(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    append(path, lines(1, 20))
    meanwhile(monkeypatch, lambda: None, lambda: append(path, lines(21, 40)))
    code, out, err = call(capsys, "follow", path, "--devices", 8)
    assert code == 130 and "SIGINT" in err
    shown = out.splitlines()
    assert [line.split()[0] for line in shown[:5]] == ["log", "metric", "compute", "bounds", "start"]
    assert len(shown) == 7 and all(
        re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (Stop|Continue)", line) for line in shown[5:]
    )
    capsys.readouterr()
    _, forecast, _ = call(capsys, "forecast", path, "--devices", 8)
    assert shown[-1][21:] in forecast.splitlines()  # the same words


def test_a_condition_ends_it_with_0_and_its_reason(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    append(path, saturating(1, 4))
    meanwhile(monkeypatch, *[lambda n=n: append(path, saturating(n, n)) for n in range(5, 60)])
    code, out, err = call(capsys, "follow", path, "--until", "gain at 2x below 0.1 with probability 0.9")
    assert code == 0 and not err
    assert "'gain at 2x below 0.1 with probability 0.9' holds: share of draws above 0.1 is" in out.splitlines()[-1]
    assert "waiting: 4 of 5 evaluations" in out.splitlines()[0]


@pytest.mark.parametrize(("until", "code"), [((), 0), (("--until", "falling"), 1)])
def test_the_end_of_the_run_is_a_success_only_without_a_condition(tmp_path, capsys, until, code):
    rows = [{"step": s, "reward": level(s), "step_time": 60.0} for s in range(1, 30)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [*rows, {"step": 29, "train_runtime": 99.0}]}))
    got, out, err = call(capsys, "follow", path, *until)
    assert got == code and "the run has ended: finished" in out
    assert ("'falling'" in err) == bool(until)


def test_a_silent_log_ends_it_after_its_patience(tmp_path, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(command.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 1800.0))
    code, out, err = call(capsys, "follow", tmp_path / "run.log", "--patience", 2)
    assert code == 1 and out.count("no such file") == 1 and "nothing new for 2 hours" in err


def test_json_is_one_object_per_change(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    append(path, lines(1, 3))
    meanwhile(
        monkeypatch,
        lambda: append(path, lines(4, 20)),
        lambda: path.unlink(),
        lambda: append(path, lines(1, 30, high=0.9)),
    )
    _, out, _ = call(capsys, "follow", path, "--devices", 8, "--price", 2, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [one["event"] for one in rows] == ["waiting", "forecast", "gone", "back", "restarted", "forecast"]
    assert rows[1]["advice"]["sentence"] == rows[1]["text"] and rows[1]["advice"]["cost"]["money"] > 0
    assert len(rows[1]["forecast"]["at"]) == 2 and rows[1]["log"]["metric"] == "reward"
    assert {"time", "source"} <= rows[0].keys()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--until", "gain below 1"], "got 'gain below 1'; allowed: 'gain at 2x below 0.02'"),
        (["--every", "0"], "--every: got 0"),
        (["--patience", "-1"], "--patience"),
        (["--column", "step"], "ROLE=NAME"),
    ],
)
def test_wrong_options_are_found_before_anything_is_read(tmp_path, capsys, words, error):
    code, out, err = call(capsys, "follow", tmp_path / "run.log", *words)
    assert code == 2 and error in err and not out


def test_standard_input_gets_the_way_to_follow_it(capsys):
    code, _, err = call(capsys, "follow", "-")
    assert code == 2 and "tee run.log" in err
