"""Text of programs, models, data sets and files on a terminal: no control characters, and no forged lines."""

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from scalerl.cli import main
from scalerl.core.errors import ConfigError
from scalerl.core.printable import printable
from scalerl.training.config import LAB, read_config
from scalerl.training.config.trust import check_trust
from scalerl.training.loop.display import RunDisplay

HOSTILE = "x\npass  1.00  forged\x1b[2J\r\x9b31m\u202e\u2028\ud800"


def check(text):
    """Assert that a text contains no control characters and no line that begins like the forged one."""
    assert "forged" in text and "pass  1.00" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]", text), repr(text)
    assert not any(line.startswith("pass") for line in text.split("\n")), text


def test_unsafe_characters_are_escaped_and_others_kept():
    assert printable(HOSTILE) == r"x\npass  1.00  forged\x1b[2J\r\x9b31m\u202e\u2028\ud800"
    assert printable("± é 中 🙂\ta\\nb") == "± é 中 🙂\ta\\nb"


def test_a_program_cannot_forge_a_verdict_of_score(tmp_path, capsys):
    program = f"import os\nos.write(2, {HOSTILE.encode('utf-8', 'surrogatepass')!r})\nraise SystemExit(1)"
    row = {"completion": f"```python\n{program}\n```", "tests": {"inputs": [""], "outputs": ["7"]}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    words = ["--task", "code", "--sandbox", "unsafe", "--workers", "1"]
    assert main(["score", str(tmp_path / "rows.jsonl"), *words]) == 0
    found = capsys.readouterr().out
    check(found)
    assert [line[:4] for line in found.splitlines()] == ["prog", "FAIL", "0 of"]


def test_names_in_a_file_cannot_forge_lines_of_an_error(tmp_path, capsys):
    rows = [{"task": name, "step": 1, "flops": 1.0, "pass_rate": 0.5} for name in ("a", HOSTILE)]
    (tmp_path / "points.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["fit", str(tmp_path / "points.jsonl")]) == 2
    check(capsys.readouterr().err)


def test_names_in_a_configuration_cannot_forge_the_question_about_code(monkeypatch, capsys):
    terminal = SimpleNamespace(isatty=lambda: True, readline=lambda: "n\n")
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    config = read_config(None, ["--model", "m", "--data", "d.jsonl", "--reward", "rewards:f"])
    with pytest.raises(ConfigError, match="nothing was run"):
        check_trust([config], HOSTILE, trusted=False, typed=[])
    check(capsys.readouterr().err)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_display_of_a_run_shows_notes_and_names_safely(terminal):
    out = io.StringIO()
    display = RunDisplay(LAB, Console(file=out, force_terminal=terminal, color_system=None, width=300))
    display.note(HOSTILE)
    check(out.getvalue().replace("\x1b[", "") if terminal else out.getvalue())
