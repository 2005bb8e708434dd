"""Runs every command and snippet of docs/importing.md in a directory with the files of the page."""

import re
import shlex
import shutil
from pathlib import Path

import builders
import pytest
from doc_pages import blocks

from scalerl import cli

LOGS = Path(__file__).parent / "logs"
PAGE = (Path(__file__).parents[2] / "docs/importing.md").read_text()
IMPORT = blocks("docs/importing.md", "python")[0]
COMMANDS = [line for block in blocks("docs/importing.md", "bash") for line in block.splitlines()]
COMMANDS += re.findall(r"\| `(scalerl import .+?)` \|", PAGE)
NEEDS = {"events": "tensorboard"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with logs of all trainers."""
    monkeypatch.chdir(tmp_path)
    lines = builders.verl_console().splitlines()
    own = [{"_step": s, "_runtime": 60 * s, "eval/accuracy": s / 100 if s % 5 == 0 else ""} for s in builders.STEPS]
    table = ["gpu_hours,iteration,acc", *(f"{8 * n},{n},{n / 100}" for n in range(6))]
    files = {
        "run.log": builders.verl_console(), "resumed.log": "\n".join(lines[-20:]), "verl.jsonl": builders.verl_jsonl(),
        "orchestrator/metrics.jsonl": builders.prime_rl(), "open-instruct.csv": builders.open_instruct(),
        "verl.csv": builders.as_csv([{"_step": s, **builders.verl_row(s)} for s in builders.STEPS]),
        "skyrl.jsonl": builders.skyrl(), "history.csv": builders.as_csv(own),
        "table.csv": "\n".join(table) + "\n",
    }  # fmt: skip
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    for name, log in (("grpo-run", "trl-whole"), ("grpo-two", "trl-two"), ("events", "trl-tensorboard")):
        shutil.copytree(LOGS / log, name)
    return tmp_path


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("scalerl import")])
def test_a_command_of_the_page_imports_points(place, capsys, command):
    words = shlex.split(command)[1:]
    if words[1] in NEEDS:
        pytest.importorskip(NEEDS[words[1]])
    assert cli.main(words) == 0
    out, error = capsys.readouterr()
    points = Path("points.jsonl").read_text() if "-o" in words else out
    assert len(points.splitlines()) >= 3 and "metric    " in error
    if "--devices" in words:
        assert '"device_hours"' in points


def test_imported_points_can_be_fitted_with_the_command_of_the_page(place, capsys):
    for command in COMMANDS[:3]:
        assert cli.main(shlex.split(command)[1:]) == 0
    assert "device-hours" in capsys.readouterr().out


def test_the_first_snippet_of_the_page_works(place, capsys):
    exec(IMPORT, {})
    assert "metric    val-core/gsm8k" in capsys.readouterr().out
