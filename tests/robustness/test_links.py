"""Links in a run or study from somebody else: no command writes to, or removes, a file outside the directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from robustness.campaign import Case, check_here
from robustness.test_kept_files import curve, run, study
from scalerl.core.errors import ConfigError
from scalerl.core.outputs import check_stays_inside
from scalerl.training.config import LAB
from scalerl.training.loop.run_dir import RunDirectory

STEP = "checkpoints/step_000004"
IN_A_RUN = (
    "model", STEP, f"{STEP}/trainer.json", "rollouts", "metrics.jsonl",
    "rollouts/samples.jsonl", "errors.log", "weights", "logs", ".export.tmp",
    "wandb", "checkpoints/.replaced_step_000004",
    
)  # fmt: skip
IN_A_STUDY = (
    "journal.jsonl", "results.json", "scalerl", "scalerl/seed-0",
    "scalerl/seed-0.toml", "scalerl/seed-0/metrics.jsonl", "scalerl/.seed-0.copy",
)  # fmt: skip


def planted(make: Callable[[Path], object], inside: str, *, dangling: bool = False) -> Callable[[Path], object]:
    """Return an `arrange` that makes a run or study and moves a part of it outside, with a link in its place."""

    def arrange(here: Path) -> None:
        make(here)
        path, victim = here / inside, here / "victim"
        if path.exists():
            shutil.move(path, victim)
        elif Path(inside).suffix:
            victim.write_text("mine")
        else:
            victim.mkdir()
            (victim / "step_000001").write_text("mine")
            (victim / "config.json").write_text("mine")
        path.symlink_to(os.path.relpath(victim, path.parent))
        if dangling:
            shutil.rmtree(victim) if victim.is_dir() else victim.unlink()

    return arrange


def emptied(name: str) -> Callable[[Path], object]:
    """Return an `arrange` for a directory that looks like one that a killed start left, but with a link."""

    def arrange(here: Path) -> None:
        (here / "r").mkdir()
        (here / "victim").mkdir()
        (here / "r" / name).symlink_to("../victim")

    return arrange


CASES = (
    *(Case(f"resume: {name} is a link", ("resume", "run"), planted(run, f"run/{name}"),
           expect=(name, "outside the directory", "Nothing was changed")) for name in IN_A_RUN),
    *(Case(f"resume: {name} is a link to nothing", ("resume", "run"), planted(run, f"run/{name}", dangling=True),
           expect=(name, "outside the directory")) for name in (STEP, "metrics.jsonl")),
    Case("resume: the configuration is a link", ("resume", "run"), planted(run, "run/config.toml"),
         expect="config.toml"),
    Case("resume: the lock is a link", ("resume", "run"), planted(run, "run/.lock"), expect=".lock: it is a link"),
    Case("resume: the lock is a link to nothing", ("resume", "run"), planted(run, "run/.lock", dangling=True),
         expect=".lock: it is a link"),
    *(Case(f"study resume: {name} is a link", ("study", "resume", "study"), planted(study, f"study/{name}"),
           expect=(name, "outside the directory", "Nothing was changed")) for name in IN_A_STUDY),
    *(Case(f"train: {name} of the run directory is a link", ("train", "--run-dir", "r"),
           emptied(name), expect=("r is not empty", name)) for name in ("rollouts", ".lock")),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_outside_is_written_or_removed(case, tmp_path, monkeypatch):
    check_here(case, tmp_path, monkeypatch)


def test_the_links_of_a_user_still_work(tmp_path):
    """Links to the directory itself and within it are no danger, and wandb keeps its own."""
    run(tmp_path)
    (tmp_path / "disk").mkdir()
    shutil.move(tmp_path / "run", tmp_path / "disk/run")
    (tmp_path / "runs").symlink_to("disk")
    (tmp_path / "mine").symlink_to(tmp_path / "disk/run")
    inside = tmp_path / "disk/run"
    (inside / "latest").symlink_to("checkpoints/step_000004")
    (inside / "here").symlink_to(inside / "model")
    (inside / ".#config.toml").symlink_to("user@host.4242")
    (inside / "wandb/run-1/logs").mkdir(parents=True)
    (inside / "wandb/run-1/logs/debug-core.log").symlink_to(tmp_path / "cache.log")
    for path in (tmp_path / "runs/run", tmp_path / "mine", inside):
        RunDirectory.resume(path).close()
    (tmp_path / "disk/run-2").mkdir()
    (inside / "latest").unlink()
    (inside / "latest").symlink_to("../run-2")  # its name begins like that of the run
    with pytest.raises(ConfigError, match="latest is a link to"):
        RunDirectory.resume(inside)


def test_a_refused_run_is_not_locked_and_a_pipe_is_refused(tmp_path):
    run(tmp_path)
    os.mkfifo(tmp_path / "run/errors.log")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"errors.log is a pipe or a device"):
            RunDirectory.resume(tmp_path / "run")
    (tmp_path / "run/errors.log").unlink()
    RunDirectory.resume(tmp_path / "run").close()


def test_the_directory_of_tensorboard_is_not_read_from_the_run(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra `logs`")
    from scalerl.training.trackers.base import LoggedRun
    from scalerl.training.trackers.tensorboard import Tracker

    made = RunDirectory.create(tmp_path / "run", LAB)
    made.close()
    tracker = Tracker()
    foreign = LoggedRun("run", made.path, str(tmp_path / "victim"), 4)
    assert tracker.start({}, foreign) == str(made.path / "tensorboard")
    tracker.finish("stopped")
    assert not (tmp_path / "victim").exists()


def test_only_links_that_lead_outside_are_refused_at_any_depth(tmp_path):
    curve(tmp_path)
    check_stays_inside(tmp_path / "run")
    deep = tmp_path / "run/a/b/c"
    deep.mkdir(parents=True)
    (deep / "up").symlink_to("../../../points.jsonl")
    check_stays_inside(tmp_path / "run")
    (deep / "out").symlink_to("../../../../study/study.toml")
    with pytest.raises(ConfigError, match="a/b/c/out is a link to"):
        check_stays_inside(tmp_path / "run")
