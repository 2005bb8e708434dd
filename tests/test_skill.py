"""The skill for agents: printed by the command, short, and true to the commands, options and keys that exist."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from scalerl.cli.main import main
from scalerl.cli.skill import skill_text
from scalerl.reading.curves import sigmoid

TEXT = skill_text()


@pytest.fixture
def log(tmp_path):
    compute = np.linspace(0, 8000, 31)
    rates = sigmoid(compute, 0.61, 1.92, 2542.0, 0.2) + 0.004 * np.random.default_rng(0).standard_normal(31)
    path = tmp_path / "log.jsonl"
    rows = [{"device_hours": c, "pass_rate": r} for c, r in zip(compute.tolist(), rates.tolist(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_prints_the_file_that_is_shipped(capsys):
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == TEXT
    shown = Path(__file__).parents[1] / "skills" / "scalerl" / "SKILL.md"
    assert shown.read_text(encoding="utf-8") == TEXT


def test_the_three_calls_run_as_written_and_have_the_keys_of_the_table(capsys, log):
    block = re.search(r"```bash\n(.*?)```", TEXT, re.DOTALL)[1]
    for line in block.splitlines():
        words = line.partition("#")[0].split()[1:]
        assert main([str(log) if word.startswith("LOG") else word for word in words]) == 0
        values = json.loads(capsys.readouterr().out)
        if words[0] == "fit":
            for path in re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", TEXT, re.MULTILINE):
                for key in re.findall(r"`([^`]+)`", path):
                    value = values
                    for part in re.findall(r"\w+", key):
                        value = value[int(part)] if part.isdigit() else value[part]
        if words[0] == "compare":
            assert {"sentence", "compute_ratio", "probability_higher", "advice"} <= set(values)
            assert "probability" in values["measured"]
