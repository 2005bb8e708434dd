"""Run directories and configurations with missing, damaged or wrong parts."""

import errno
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from json_rows import lines

from robustness.campaign import SECONDS, Case, check_here, within, write
from scalerl.cli.exits import guarded
from scalerl.core.files import ADVICE
from scalerl.core.run_files import RunInfo
from scalerl.training.config import PRESETS, to_toml

CONFIG = to_toml(PRESETS["lab"])
METRICS = [
    {"step": n, "tokens": 1000 * n, "trained_tokens": 900, "prompts": 16, "completion_tokens_mean": 4.0,
     "completion_tokens_max": 9, "generator_idle": 0.1, "step_s": 1.0, "trainer_tokens_per_s": 900.0, "swap_ms": 1.0,
     "occupancy": 0.5, "generator_tokens_per_s": 1000.0}
    for n in range(1, 21)
]  # fmt: skip
POINTS = [
    {"step": 15 * n, "task": "arithmetic", "pass_rate": 0.3 + 0.02 * n, "device_hours": 0.1 * n, "flops": 1e12 * n,
     "tokens": 1000 * n, "stderr": 0.01, "mean_tokens": 20.0} for n in range(12)
]  # fmt: skip
VERBS = (("fit",), ("report",), ("plan", "--from"))
INFO = RunInfo(title="lab", axis="flops", tasks={"arithmetic": (0.0, 1.0)}).to_json()


def run(fault, expect=(), config=CONFIG, points=None, metrics=None, info=INFO, allowed=(1, 2), verbs=VERBS):
    """Return cases of a run directory with these files (None: a valid one; empty bytes: an empty one; False: none)."""
    files = {
        "config.toml": config,
        "run.json": info,
        "points.jsonl": lines(POINTS) if points is None else points,
        "metrics.jsonl": lines(METRICS) if metrics is None else metrics,
    }

    def arrange(here):
        (here / "run").mkdir()
        for name, content in files.items():
            if content is not False:
                write(f"run/{name}", content)(here)

    return [
        Case(f"run: {fault} ({verb[0]})", (*verb, *(["run"] if verb != POINTS_OF else [])), arrange, expect, allowed)
        for verb in verbs
    ]


FIT, PLAN, READ = (("fit",),), (("plan", "--from"),), (("fit",), ("report",))
POINTS_OF = ("fit", "run/points.jsonl")
"""Verbs on a run directory, without the figure of a fit, which takes seconds."""
RUNS = [
    *run("no points", "points", points=False, verbs=FIT),
    *run("no metrics", "metrics.jsonl", metrics=False, verbs=PLAN),
    *run("a configuration of NUL bytes", "TOML", config=b"\0" * 512, verbs=PLAN),
    *run("no run.json", "scalerl upgrade run", info=False, verbs=READ),
    *run("half a run.json", "run.json is damaged", info=INFO[: len(INFO) // 2], verbs=READ),
    *run("a run.json of a later version", "install a newer version", info='{"schema": 2}', verbs=READ),
    *run("a run.json without a schema", "no schema", info="{}", verbs=READ),
    *run("tasks without bounds", "run.json is damaged", verbs=READ,
         info='{"schema": 1, "title": "", "tasks": {"a": 1}}'),
    *run("unknown fields", info=INFO.replace('"seed"', '"mood": {"a": [1]}, "seed"'), verbs=FIT, allowed=(0,)),
    *run("a metric with unknown fields", verbs=FIT, allowed=(0,), info=INFO.replace(
        '"metrics": {}', '"metrics": {"x": {"label": "X", "shape": "round"}}')),
    *run("metrics in Latin-1", "metrics.jsonl", metrics=b"\xe9\n" * 30, verbs=PLAN),
    *run("few steps", "7", metrics=lines(METRICS[:5]), verbs=PLAN),
    *run("metrics as text", "metrics.jsonl", metrics=lines([{**row, "swap_ms": "1"} for row in METRICS]), verbs=PLAN),
    *(case for k in (1, 4, 7) for case in run(f"points cut at {k} of 8", allowed=(0, 1, 2), verbs=(POINTS_OF,),
      points=lines(POINTS)[: len(lines(POINTS)) * k // 8])),
    *(case for name, value in (("pass_rate", None), ("device_hours", "x"), ("flops", [1]), ("step", {}), ("task", True))
      for case in run(f"points with {name} = {value!r}", allowed=(0, 1, 2), verbs=(POINTS_OF,),
                      points=lines([{**row, name: value} for row in POINTS]))),
]  # fmt: skip


@pytest.mark.parametrize("case", RUNS, ids=lambda case: case.name)
def test_a_damaged_run_directory_is_read_in_part_or_refused(case, tmp_path, monkeypatch):
    check_here(case, tmp_path, monkeypatch)


def test_a_file_instead_of_a_run_and_a_folder_instead_of_a_file_are_refused(tmp_path, monkeypatch):
    def folders(here):
        for name in ("config.toml", "points.jsonl", "metrics.jsonl"):
            (here / "run" / name).mkdir(parents=True)

    for number, verb in enumerate((*VERBS, ("resume",), ("eval",))):
        here = tmp_path / str(number)
        here.mkdir()
        check_here(Case(f"run: folders for files ({verb[0]})", (*verb, "run"), folders), here, monkeypatch)


@settings(max_examples=30)
@given(at=some.integers(0, len(CONFIG) - 1), change=some.binary(min_size=1, max_size=3))
def test_a_configuration_with_other_bytes_in_it_is_read_or_refused(at, change, tmp_path, monkeypatch):
    data = CONFIG.encode()
    case = Case("configuration: other bytes", ("train", "c.toml", "--dry-run"),
                write("c.toml", data[:at] + change + data[at + len(change) :]), (), (0, 1, 2))  # fmt: skip
    check_here(case, tmp_path, monkeypatch)


def test_errors_of_the_operating_system_become_messages_about_a_path(capsys, monkeypatch, tmp_path):
    """Root may write everywhere, so the test raises the errors itself."""
    for number in (errno.EROFS, errno.EACCES, errno.EDQUOT):

        def failing(number=number):
            raise OSError(number, os.strerror(number), str(tmp_path / "place"))

        assert guarded(failing) in (1, 2)
        assert capsys.readouterr().err == f"scalerl: {tmp_path}/place: {ADVICE[number]}\n"
    unknown = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    with pytest.raises(ConnectionRefusedError):  # an error without a path is not the user's fault, so it propagates
        guarded(lambda: (_ for _ in ()).throw(unknown))


def a_run(here):
    """Write a run of every kind of file that a command reads; return its directory."""
    from scalerl.training.loop.run_info import run_info

    run = here / "run"
    (run / "rollouts").mkdir(parents=True)
    status = {"state": "finished", "message": "", "host": "h", "pid": 1, "started": 1.0, "beat": 2.0, "phase": ""}
    event = {"step": 3, "kind": "warning", "key": "truncated", "text": "12% are truncated"}
    sample = {"step": 3, "task": "arithmetic", "prompt": "1+1=", "completion": "2", "reward": 1.0}
    for name, text in (
        ("config.toml", CONFIG), ("run.json", run_info(PRESETS["lab"]).to_json()), ("status.json", json.dumps(status)),
        ("summary.json", "{}"), ("loggers.json", "{}"), ("points.jsonl", lines(POINTS)),
        ("metrics.jsonl", lines(METRICS)), ("events.jsonl", lines([event])), ("rollouts.jsonl", lines([sample])),
        ("rollouts/samples.jsonl", lines([sample])), ("rollouts/samples.bin", "bytes"), (".lock", ""),
    ):  # fmt: skip
        (run / name).write_text(text)
    return run


@pytest.mark.parametrize("words", [
    ("fit", "run"), ("report", "run", "-o", "page.html"), ("ls", "."), ("import", "run", "-o", "points.jsonl"),
    ("upgrade", "run"), ("resume", "run"),
    ("plan", "--from", "run"), ("compare", "run", "--versus", "run"), 
])  # fmt: skip
@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir])
def test_a_pipe_or_directory_in_place_of_a_file_of_a_run_keeps_no_command_waiting(
    kind, words, tmp_path, monkeypatch, capsys
):
    from scalerl.cli.main import main

    run = a_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    if words[0] in ("resume", "train", "plan"):  # with the others they refuse nothing, and go on for seconds
        names = ["config.toml", *(["metrics.jsonl"] if kind is os.mkfifo else [])]
    for name in names:
        (run / name).rename(tmp_path / "aside")
        kind(run / name)
        with within(SECONDS, f"{words} with {name}"):
            try:
                assert main([*words]) in (0, 1, 2)
            except SystemExit as end:
                assert end.code in (0, 1, 2)
        assert "Traceback" not in (text := "".join(capsys.readouterr())) and text, name
        (run / name).rmdir() if kind is os.mkdir else (run / name).unlink()
        (tmp_path / "aside").rename(run / name)
        (tmp_path / "points.jsonl").unlink(missing_ok=True)
