"""Commands that would overwrite a user's file, and damaged checkpoints, by the rule of campaign.py.

Every case checks that no existing file has changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from simulated_study import Truth, write_study

from robustness.campaign import Case, check_here, write
from scalerl.training.config import LAB
from scalerl.training.learner.checkpoint import TRAINER_FORMAT, CheckpointStore, save_state
from scalerl.training.loop.run_dir import ROW_FILES, RunDirectory

RATES = [0.2 + 0.5 * n**2 / (n**2 + 9) + 0.005 * (-1) ** n for n in range(12)]
GOOD = "".join(f'{{"step": {n}, "flops": {n}e12, "pass_rate": {rate}}}\n' for n, rate in enumerate(RATES))
OTHER = GOOD.replace("0.2", "0.1")
CSV = "step,pass_rate\n" + "".join(f"{n},{rate}\n" for n, rate in enumerate(RATES))
Arrange = Callable[[Path], object]


def both(*parts: Arrange) -> Arrange:
    """Return an `arrange` that runs several others in order."""

    def arrange(here: Path) -> None:
        for part in parts:
            part(here)

    return arrange


def link(name: str, target: str, *, hard: bool = False) -> Arrange:
    def arrange(here: Path) -> None:
        os.link(here / target, here / name) if hard else (here / name).symlink_to(target)

    return arrange


def folder(name: str) -> Arrange:
    return lambda here: (here / name).mkdir(parents=True)


POINTS = both(write("p.jsonl", GOOD), write("q.jsonl", OTHER), write("t.csv", CSV), write("notes.txt", "mine"))
WEIGHTS = save({"w": np.zeros(1, np.float32)})
MODEL = both(write("m/config.json", '{"model_type": "qwen3"}'), write("m/model.safetensors", WEIGHTS))
DATA = write("d.jsonl", '{"prompt": "1+1", "answer": "2"}\n')


def run(here: Path) -> None:
    """Create a run of four steps whose checkpoint of step 4 has all kinds of parts."""
    made = RunDirectory.create(here / "run", LAB)
    for name in ROW_FILES:
        made.append(name, [{"step": step, "text": "abc"} for step in range(1, 5)])
    (here / "run/checkpoints").mkdir()
    store = CheckpointStore(here / "run/checkpoints", keep=2)
    path, cursors = store.begin(4), made.cursors()
    save_state(path, "learner", {"master.w": np.arange(64.0)})
    save_state(path, "generator", {"cache": np.arange(9), "sampling_version": 4})
    digests = made.row_digests(cursors)
    save_state(path, "trainer", {"format": TRAINER_FORMAT, "cursors": cursors, "row_digests": digests})
    store.commit(4)
    made.close()


def study(here: Path) -> None:
    write_study(here / "study", {"scalerl": Truth(last_step=48), "fp32": Truth(last_step=48)}, seeds=1)


def curve(here: Path) -> None:
    """Create a run directory with a curve that can be fitted."""
    study(here)
    (here / "study/scalerl/seed-0").rename(here / "run")
    (here / "run/curve.png").write_bytes(b"my picture")


def harm(name: str, kind: str) -> Arrange:
    """Return an `arrange` that damages one file of a run."""

    def arrange(here: Path) -> None:
        path = here / "run" / name
        data = path.read_bytes()
        path.unlink()
        if kind == "removed":
            return
        middle = bytes([data[len(data) // 2] ^ 1])
        changed = {
            "cut short": data[:-9],
            "emptied": b"",
            "a list": b"[]",
            "flipped": data[: len(data) // 2] + middle + data[len(data) // 2 + 1 :],
            "NUL bytes at its end": data[:-9] + b"\0" * 9,
            "of another run": data.replace(b"abc", b"xyz"),
            "a directory": b"",
        }
        path.mkdir() if kind == "a directory" else path.write_bytes(changed[kind])

    return arrange


INPUT, FOREIGN = "is an input of this command", "exists and is not"
TAKEN, UNCHANGED = "is not empty", "Nothing was changed"

BYTES = os.fsdecode(b"r\xff")
TRAIN = ("--model", "m", "--data", "d.jsonl", "--run-dir")
EVAL = ("m", "--suite", "d.jsonl", "-o")
OUTPUTS = (  # command, files, and for each case its name, words, further files and message
    ("report", (POINTS,), (
        ("-o is the input", ("p.jsonl", "-o", "p.jsonl"), (), (INPUT, UNCHANGED)),
        ("-o is a hard link to the input", ("p.jsonl", "-o", "h.html"), (link("h.html", "p.jsonl", hard=True),), INPUT),
        ("-o is another file of points", ("p.jsonl", "-o", "q.jsonl"), (), (FOREIGN, UNCHANGED)),
        ("-o lies in no directory", ("p.jsonl", "-o", "no/page.html"), (), "cannot be written to no/page.html"),
    )),
    ("report", (curve,), (
        ("-o is points.jsonl of the run", ("run", "-o", "run/points.jsonl"), (), FOREIGN),
    )),
    ("import", (POINTS,), (
        ("-o is the log", ("t.csv", "-o", "t.csv"), (), (INPUT, UNCHANGED)),
        ("-o has points of another origin", ("t.csv", "-o", "q.jsonl"), (), (FOREIGN, UNCHANGED)),
    )),
    ("study", (study,), (
        ("show -o is its plan", ("show", "study", "-o", "study/study.toml"), (), FOREIGN),
        ("-o is another study", ("loo", "-o", "study"), (), ("another study", UNCHANGED)),
    )),
    ("study", (), (
        ("-o holds notes", ("loo", "-o", "r"), (write("r/notes.txt", "mine"),), TAKEN),
        ("-o is not UTF-8", ("loo", "-o", BYTES), (), ("is not UTF-8", UNCHANGED)),
        ("resume of a run", ("resume", "run"), (run,), "no study here"),
        ("resume with a plan that is damaged", ("resume", "r"), (write("r/study.toml", "name = ["),), "study.toml"),
    )),
    ("train", (MODEL, DATA), (
        ("--run-dir is the model", (*TRAIN, "m"), (), (TAKEN, UNCHANGED)),
        ("--run-dir is the current directory, which contains the model", (*TRAIN, "."), (), TAKEN),
        ("--run-dir is the data", (*TRAIN, "d.jsonl"), (), "is a file"),
        ("--run-dir holds a hidden file", (*TRAIN, "r"), (write("r/.git/HEAD", "ref"),), TAKEN),
        ("--run-dir holds a run", (*TRAIN, "run"), (run,), "already holds a run"),
        ("--run-dir is not UTF-8", (*TRAIN, BYTES), (), ("is not UTF-8", UNCHANGED)),
        ("--run-dir is a link to nothing", (*TRAIN, "l"), (link("l", "nowhere"),),
         "is a link to something that does not exist"),
    )),
    ("eval", (MODEL, DATA), (
        ("-o has the suite, whose name the texts get", (*EVAL, "."), (), (TAKEN, UNCHANGED)),
        ("-o holds a summary", (*EVAL, "r"), (write("r/summary.json", "{}"),), TAKEN),
    )),
)  # fmt: skip
PLACES = tuple(
    Case(f"{verb}: {name}", (verb, *words), both(*files, *more), expect=expect)
    for verb, files, cases in OUTPUTS
    for name, words, more, expect in cases
)
STEP = "checkpoints/step_000004"
NONE_LEFT = ("none of them can be used", "nothing was changed", "scalerl train run/config.toml")
RESUMED = (
    *(
        Case(f"resume: {part} {kind}", ("resume", "run"), both(run, harm(part, kind)),
             expect=(part.rpartition("/")[2], *NONE_LEFT))
        for part, *kinds in (
            (f"{STEP}/generator.safetensors", "removed", "cut short", "flipped", "emptied", "a directory"),
            (f"{STEP}/manifest.json", "removed", "cut short", "a list"),
            ("metrics.jsonl", "removed", "cut short", "flipped", "NUL bytes at its end", "of another run"),
            ("points.jsonl", "flipped"),
        )
        for kind in kinds
    ),
    *(
        Case(f"resume: {what}", ("resume", "run"), both(run, lambda here, name=name: shutil.rmtree(here / name)),
             expect=("they were removed", *NONE_LEFT))
        for what, name in (("no checkpoint", f"run/{STEP}"), ("no checkpoints/", "run/checkpoints"))
    ),
    Case("resume: a directory that is not UTF-8", ("resume", BYTES), both(run, lambda here: (here / "run").rename(
         here / BYTES)), expect=("is not UTF-8", UNCHANGED)),
    Case("resume: a model", ("resume", "m"), MODEL, expect="no run here"),
    Case("resume: a study", ("resume", "study"), study, expect="no run here"),
    Case("resume: rows without a configuration", ("resume", "r"), write("r/metrics.jsonl", GOOD), expect="no run here"),
)  # fmt: skip
PARTIAL = (
    Case("study show: the page cannot be written", ("study", "show", "study", "-o", "no/p.html"), study,
         expect=("fp32", "no page: the page cannot be written to no/p.html"), allowed=(0, 1)),
    Case("report: the page cannot be written", ("report", "p.jsonl", "-o", "no/p.html"), POINTS,
         expect=("p: About what you ask for", "cannot be written to no/p.html"), allowed=(1,)),
)  # fmt: skip
CASES = (*PLACES, *RESUMED, *PARTIAL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_file_is_lost(case, tmp_path, monkeypatch):
    check_here(case, tmp_path, monkeypatch)
