"""Packages that are not installed: the error has the command that installs them."""

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import call as command

import scalerl
from scalerl.cli.watch import run_watch
from scalerl.cluster.jobs import RayWorkers
from scalerl.config import read_config, to_toml
from scalerl.config.data import EnvironmentTask
from scalerl.core.errors import ConfigError
from scalerl.core.packages import EXTRAS
from scalerl.importers import read
from scalerl.loggers.base import makers_of
from scalerl.prompts.sources import environment_rows
from scalerl.scaling import CurveError
from scalerl.study.directory import StudyDirectory
from scalerl.study.plans import PLANS
from scalerl.view.frozen import plotly_script

EVENTS = "tensorboard.backend.event_processing.event_accumulator"
CASES = [
    ("uvicorn", lambda place: run_watch([]), "scalerl[watch]"),
    ("plotly.offline", lambda place: plotly_script(), "scalerl[report]"),
    ("ray", lambda place: RayWorkers("local", 1, 1.0, 0.0), "scalerl[ray]"),
    ("httpx", lambda place: importlib.import_module("scalerl.rollouts.vllm"), "scalerl[vllm]"),
    ("verifiers", lambda place: environment_rows(EnvironmentTask(environment="any"), 1), "verifiers>="),
    ("mlflow", lambda place: makers_of(read_config(None, {"loggers": ["mlflow"]})), "scalerl[mlflow]"),
    (EVENTS, lambda place: read(place / "a.tfevents"), "tensorboard"),
]


@pytest.mark.parametrize(("module", "call", "command"), CASES, ids=[module for module, *_ in CASES])
def test_a_missing_package_is_reported_with_the_command_that_installs_it(module, call, command, tmp_path, monkeypatch):
    (tmp_path / "a.tfevents").write_bytes(b"\0")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "scalerl.view.server", raising=False)
    monkeypatch.delitem(sys.modules, "scalerl.rollouts.vllm", raising=False)
    monkeypatch.setattr("scalerl.loggers.base.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises((ConfigError, CurveError), match="pip install '?" + command.replace("[", r"\[")):
        call(tmp_path)


WITHOUT = "import sys\nsys.modules |= dict.fromkeys(['torch', 'transformers', 'safetensors', 'math_verify'])\n"
"""Makes a Python like one with the base install alone."""


def base(place, code):
    """Run code in a new Python without the packages of the extra `train`; return its exit code, output and errors."""
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, cwd=place, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["train", "--steps", "2", "--run-dir", "here"],
        ["resume", "run"],
        ["eval", "model", "--suite", "rows.jsonl"],
        ["eval", "model", "--suite", "rows.jsonl", "--engine", "vllm"],
        ["score", "rows.jsonl", "--task", "math"],
        ["score", "rows.jsonl", "--task", "math", "--json"],
        ["doctor"],
        ["doctor", "--json"],
        ["plan", "--rehearse"],
        ["study", "loo"],
        ["study", "rates", "-o", "here"],
        ["study", "resume", "study"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_torch_says_in_one_line_what_to_install_and_leaves_nothing(words, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1", "answer": "2", "completion": "2"}) + "\n")
    config = read_config(None, {})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(to_toml(config))
    StudyDirectory.create(tmp_path / "study", PLANS["rates"](config))
    before = sorted(tmp_path.rglob("*"))
    code, out, error = base(tmp_path, f"from scalerl.cli import main; sys.exit(main({words}))")
    assert code == 2 and out == "" and error.count("\n") == 1, (out, error)
    assert "pip install 'scalerl[train]'" in error and error.startswith("scalerl: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_all_names_of_the_package_can_be_imported_without_torch_and_training_says_what_to_install(tmp_path):
    code, out, error = base(tmp_path, "from scalerl import *; print(RunFailed.__name__, fit.__name__, load.__name__)")
    assert (code, out, error) == (0, "RunFailed fit load\n", "")
    for call_ in ("train()", "train(steps=1, run_dir='here')", "resume('run')"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run/config.toml").write_text(to_toml(read_config(None, {})))
        _, _, error = base(tmp_path, f"import scalerl; scalerl.{call_}")
        assert "ConfigError" in error and "pip install 'scalerl[train]'" in error.splitlines()[-1], error
        assert not (tmp_path / "here").exists() and not (tmp_path / "runs").exists()


def test_commands_of_the_base_install_work_without_torch(tmp_path):
    rows = [{"prompt": "1+1=<think>", "answer": "2", "completion": "1+1=2</think>2"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in (["recipes"], ["score", "rows.jsonl", "--task", "arithmetic"]):
        code, _, error = base(tmp_path, f"from scalerl.cli import main; sys.exit(main({words}))")
        assert (code, error) == (0, ""), error


def test_another_missing_module_is_not_hidden(monkeypatch, capsys):
    monkeypatch.setattr("scalerl.cli.recipes.print_recipes", lambda: importlib.import_module("no_such_module"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        command(capsys, "recipes")


def test_the_extras_that_messages_recommend_have_those_packages():
    declared = tomllib.loads((Path(scalerl.__file__).parents[1] / "pyproject.toml").read_text())
    for extra, modules in EXTRAS.items():
        needs = " ".join(declared["project"]["optional-dependencies"][extra]).replace("-", "_")
        assert [name for name in modules if name not in (needs + " tokenizers huggingface_hub")] == []
