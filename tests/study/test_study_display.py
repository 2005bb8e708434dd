"""A study in a terminal and in a log: arms, states, last values and forecasts."""

import io

from rich.console import Console
from simulated_study import Truth, write_study

from scalerl.study.display import StudyDisplay
from scalerl.study.plan import RunKey

TRUTHS = {"scalerl": Truth(), "dapo": Truth(asymptote=0.53), "young": Truth(last_step=24)}


def shown(tmp_path, states, terminal):
    study = write_study(tmp_path / "s", TRUTHS, seeds=1)
    before = sorted(path.stat().st_mtime_ns for path in study.path.rglob("*"))
    out = io.StringIO()
    display = StudyDisplay(study, Console(file=out, force_terminal=terminal, width=100, height=60))
    display.start(1)
    display.update({RunKey(arm, 0): state for arm, state in states.items()})
    display.stop()
    assert sorted(path.stat().st_mtime_ns for path in study.path.rglob("*")) == before
    return out.getvalue()


def test_a_terminal_shows_every_run_with_its_state_last_value_and_ceiling(tmp_path):
    text = shown(tmp_path, {"scalerl": "finished", "dapo": "running", "young": "failed"}, terminal=True)
    lines = {line.split()[1]: line for line in text.splitlines() if "│ 0 " in line or "│ 0    │" in line}
    assert "✓" in lines["scalerl"] and "160" in lines["scalerl"] and "0.6" in lines["scalerl"]
    assert "▶" in lines["dapo"] and "✗" in lines["young"] and "1 of 3 runs" in text


def test_a_log_has_one_line_per_finished_run_with_its_ceiling(tmp_path):
    text = shown(tmp_path, {"scalerl": "finished", "dapo": "running", "young": "waiting"}, terminal=False)
    (line,) = [line for line in text.splitlines() if line.startswith("scalerl/seed-0: ")]
    assert "pass rate 0." in line and ", A 0.6" in line and "[1 of 3" in line
