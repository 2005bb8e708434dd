"""`scalerl ls` and `scalerl tail`: their output, within 80 columns."""

from __future__ import annotations

import json

import pytest
from logged_runs import point, row

from scalerl.cli import ls
from scalerl.cli.main import main
from scalerl.config import read_config
from scalerl.training.run_dir import RunDirectory
from scalerl.training.status import Heartbeat


def make_run(path, steps, state="", message=""):
    """Write a run with rows of these steps and an evaluation at every tenth; return its locked directory."""
    run = RunDirectory.create(path, read_config(None, {"steps": 100}))
    run.append("metrics.jsonl", [{**row(step), "generator_tokens_per_s": 123456.7, "step_s": 1.25} for step in steps])
    run.add_points([point(step) for step in (0, *steps) if step % 10 == 0])
    if state:
        with Heartbeat(path) as beating:
            beating.ended(state, message)
    return run


@pytest.fixture
def runs(tmp_path):
    make_run(tmp_path / "a-finished-run-with-a-name-of-many-characters", range(1, 101), "finished").close()
    make_run(tmp_path / "failed", range(1, 8), "failed", "the loss was not finite").close()
    make_run(tmp_path / "new", ()).close()
    (tmp_path / "broken\x1b[31m").mkdir()
    (tmp_path / "broken\x1b[31m" / "config.toml").write_text("nonsense = ")
    return tmp_path


def test_ls_lists_every_run_with_state_step_pass_rate_forecast_and_advice(runs, capsys):
    assert main(["ls", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [
        ["broken\\x1b[31m", "unreadable", "config.toml:"], ["failed", "failed", "7/100"], ["new", "dead", "0/100"],
    ]  # fmt: skip
    name, state, step, rate, ahead, advice = lines[1].split()
    assert (name, state, step, rate) == ("a-finished-..-characters", "finished", "100/100", "0.412")
    low, high = map(float, ahead.split("-"))
    assert 0.4125 < low <= high < 0.6
    assert advice in ("continue", "stop", "unknown")
    assert all(len(line) <= 80 for line in lines)


def test_tail_of_an_ended_run_prints_its_last_rows_and_its_state(runs, capsys):
    assert main(["tail", str(runs / "failed"), "--rows", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("failed, step 7/100")
    assert lines[1:3] == [
        f"step {n}/100  pass 0.0{n}0  truncated 0.0%  entropy 0.500  tok/s 123457  1.25 s" for n in (6, 7)
    ]
    assert lines[3:] == [
        "failed at step 7/100: the loss was not finite", f"continue with: scalerl resume {runs / 'failed'}"
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in lines[:-1])


def test_tail_prints_new_rows_also_after_a_return_to_a_checkpoint(tmp_path):
    run = make_run(tmp_path / "run", range(1, 6))
    cursors = {"cursors": run.cursors()}
    run.append("metrics.jsonl", [row(6), row(7)])
    lines = ls.followed(tmp_path / "run", rows=2, every_s=0.001)
    with Heartbeat(tmp_path / "run", phase="training") as beating:
        assert next(lines).endswith("training, step 7/100")
        assert [next(lines).split("  ")[0] for _ in range(2)] == ["step 6/100", "step 7/100"]
        run.append("metrics.jsonl", [row(8)])
        run.add_points([point(8)])
        assert next(lines).startswith("step 8/100  pass 0.080")
        assert next(lines) == f"evaluation at step 8: pass rate {point(8).pass_rate:.3f} ± 0.004, arithmetic"
        run.rewind(cursors)
        run.append("metrics.jsonl", [{**row(6), "pass_rate": 0.5}])
        assert "resumed from an earlier checkpoint" in next(lines)
        rest = []
        while not rest or not rest[-1].startswith("step 6/100  pass 0.500"):
            rest.append(next(lines))
        beating.ended("finished", "")
    assert list(lines)[-1] == "finished at step 6/100"
    run.close()


def test_the_last_message_is_wrapped_at_80_columns_without_escape_sequences(runs):
    from scalerl.view.run import FollowedRun

    make_run(runs / "long", range(1, 3), "failed", "a word\x1b[2J " * 40).close()
    *printed, again = ls.ending(FollowedRun(runs / "long"))
    assert len(printed) > 3 and max(map(len, printed)) <= 80 and "\x1b" not in "".join(printed)
    assert again == f"continue with: scalerl resume {runs / 'long'}"


def test_ctrl_c_ends_tail_without_a_traceback(runs, monkeypatch, capsys):
    def interrupted(path, rows):
        yield json.dumps({"path": str(path), "rows": rows})
        raise KeyboardInterrupt

    monkeypatch.setattr(ls, "followed", interrupted)
    assert main(["tail", str(runs / "new")]) == 130
    assert json.loads(capsys.readouterr().out) == {"path": str(runs / "new"), "rows": 10}
