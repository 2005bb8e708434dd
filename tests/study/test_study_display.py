"""A study in a terminal and in a log: a line for each finished run."""

import io

from rich.console import Console
from simulated_study import Truth, write_study

from scalerl.core.run_files import RunKey
from scalerl.training.study.display import StudyDisplay

TRUTHS = {"scalerl": Truth(), "dapo": Truth(asymptote=0.53), "young": Truth(last_step=24)}


def test_each_finished_run_has_one_line_with_its_ceiling_and_nothing_is_written(tmp_path):
    study = write_study(tmp_path / "s", TRUTHS, seeds=1)
    before = sorted(path.stat().st_mtime_ns for path in study.path.rglob("*"))
    out = io.StringIO()
    display = StudyDisplay(study, Console(file=out, force_terminal=True, width=200))
    display.start(1)
    states = {RunKey("scalerl", 0): "finished", RunKey("dapo", 0): "running", RunKey("young", 0): "waiting"}
    display.update(states)
    display.update({**states, RunKey("young", 0): "failed"})
    assert sorted(path.stat().st_mtime_ns for path in study.path.rglob("*")) == before
    (line,) = [line for line in out.getvalue().splitlines() if "/seed-0: " in line]
    assert line.startswith("scalerl/seed-0: pass rate 0.") and ", A 0.6" in line and "[1 of 3" in line
