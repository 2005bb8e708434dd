"""Damaged curve files and logs of all frameworks: each is refused by the rule of campaign.py, or read with a note."""

from pathlib import Path

import pytest
from importers import builders

from robustness.campaign import Case, check_here, write

LOGS = Path(__file__).parents[1] / "importers" / "logs"
POINTS = "".join(f'{{"flops": {n}e12, "pass_rate": {0.2 + 0.02 * n:.2f}}}\n' for n in range(12))
TABLE = "flops,pass_rate\n" + "".join(f"{n}e12,{0.2 + 0.02 * n:.2f}\n" for n in range(12))
DEEP = '{"a": ' * 50_000 + "1" + "}" * 50_000


def fit(fault, content, expect, name="p.jsonl", allowed=(1, 2)):
    return Case(f"points: {fault}", ("fit", name), write(name, content), expect, allowed)


def log(fault, content, expect=(), name="log.jsonl", allowed=(1, 2), words=()):
    return Case(f"log: {fault}", ("import", name, *words), write(name, content), expect, allowed)


def with_row(row, at=5):
    """Return the valid points with another line among them."""
    lines = POINTS.splitlines(keepends=True)
    return "".join([*lines[:at], row + "\n", *lines[at:]])


FITS = [
    fit("an empty file", b"", "empty"),
    fit("UTF-16", POINTS.encode("utf-16"), "", allowed=(0,)),
    fit("Latin-1", POINTS.encode() + b'{"task": "\xe9"}\n', "1 row", allowed=(0,)),
    fit("nested deeply", with_row(DEEP), "line 6"),
    fit("an integer of 400 digits", with_row(f'{{"flops": {"9" * 400}, "pass_rate": 0.3}}'), "line 6"),
    fit("a compute of 1e308", with_row('{"flops": 1e308, "pass_rate": 0.3}'), "flops"),
    fit("the same key twice", with_row('{"flops": 1, "flops": 2, "pass_rate": 0.3}'), "twice"),
    fit("the compute negative", with_row('{"flops": -1, "pass_rate": 0.3}'), "compute"),
    fit("the metric out of its bounds", with_row('{"flops": 5.5e12, "pass_rate": 7}'), "bounds"),
    fit("CSV: good", TABLE, "", "p.csv", (0,)),
    fit("CSV: a header twice", TABLE.replace("flops,", "flops,flops,", 1), "more than once", "p.csv"),
    fit("CSV: a row too short", TABLE + "1\n", "line 14", "p.csv"),
    fit("CSV: a quote that never ends", TABLE + '"1,2\n', "p.csv", "p.csv"),
    fit("a Parquet file", b"PAR1", "Parquet", "p.parquet"),
    *(fit(f"cut off at {k}", POINTS[:k], (), allowed=(0, 1, 2)) for k in range(1, len(POINTS), 111)),
    *(fit(f"CSV: cut off at {k}", TABLE[:k], (), "p.csv", (0, 1, 2)) for k in range(1, len(TABLE), 41)),
]  # fmt: skip


@pytest.mark.parametrize("case", FITS, ids=lambda case: case.name)
def test_curve_files_are_read_or_refused(case, tmp_path, monkeypatch):
    check_here(case, tmp_path, monkeypatch)


BUILT = {
    "verl console": builders.verl_console(), "verl jsonl": builders.verl_jsonl(), "prime-rl": builders.prime_rl(),
    "open-instruct": builders.open_instruct(), "skyrl": builders.skyrl(),
}  # fmt: skip
TRAINER_STATE = next(LOGS.rglob("trainer_state.json")).read_text()
EVENTS = next(LOGS.rglob("*tfevents*"))

IMPORTS = [
    log("an empty file", b"", "empty"),
    log("an executable", b"\x7fELF\x02\x01\x00\x00\x00\x01", "is binary"),
    log("no evaluation", '{"step": 1, "timing_s/step": 60.0}\n', "no score or reward"),
    log("a training reward", '{"step": 1, "timing_s/step": 60.0, "critic/score/mean": 0.3}\n', "", allowed=(0,)),
    log("no compute", '{"x": 1, "val-core/a/acc/mean@4": 0.5}\n', "", allowed=(0,)),
    log("the same key twice", '{"step": 1, "step": 2}\n', "no score or reward"),
    log("log_history of text", '{"log_history": ["a", 7]}', "no score or reward", "trainer_state.json"),
    log("CSV: a cell of 200 KiB", "step,reward\n1," + "9" * 200_000 + "\n", "CSV", "log.csv"),
    log("wandb: its own format", b":W&B" + bytes(range(256)) * 8, "wandb sync", "run.wandb"),
    log("TensorBoard: rubbish", bytes(range(256)) * 4, "no scalars", "events.out.tfevents.1"),
    log("--column step", BUILT["verl jsonl"], "column", words=("--column", "step")),
    log("-o below a file", BUILT["verl jsonl"], "log.jsonl/p", words=("-o", "log.jsonl/p")),
    Case("log: all files of the machine", ("import", "/"), expect="too many to search"),
    Case("log: a directory that links to itself", ("import", "."), lambda here: (here / "a").symlink_to(here), "log"),
    *(log(f"TRL: cut off at {k}", TRAINER_STATE[:k], (), "trainer_state.json")
      for k in range(1, len(TRAINER_STATE) - 2, len(TRAINER_STATE) // 4)),
    *(log(f"{name}: cut off at {k} of 8", text[: len(text) * k // 8], (), allowed=(0, 1, 2))
      for name, text in BUILT.items() for k in (1, 5)),
    *(log(f"TensorBoard: cut off at {k} of 8", EVENTS.read_bytes()[: EVENTS.stat().st_size * k // 8], (), EVENTS.name,
          (0, 1, 2)) for k in (1, 4, 7)),
]  # fmt: skip


@pytest.mark.parametrize("case", IMPORTS, ids=lambda case: case.name)
def test_logs_are_read_with_a_note_or_refused(case, tmp_path, monkeypatch):
    check_here(case, tmp_path, monkeypatch)
