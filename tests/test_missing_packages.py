"""Packages that are not installed: the error has the command that installs them."""

import importlib
import json
import math
import subprocess
import sys

import pytest
from commands import call as command
from simulated_study import Truth, write_study

from scalerl.cli.watch import run_watch
from scalerl.core.errors import ConfigError
from scalerl.core.packages import EXTRAS
from scalerl.reading.curves import CurveError
from scalerl.reading.logs import read
from scalerl.reading.pages.frozen import plotly_script
from scalerl.training.config import read_config, to_toml
from scalerl.training.config.data import EnvironmentTask
from scalerl.training.loop.run_info import run_info
from scalerl.training.machines.jobs import RayWorkers
from scalerl.training.prompts.sources import environment_rows
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.plans import PLANS
from scalerl.training.trackers.base import makers_of

EVENTS = "tensorboard.backend.event_processing.event_accumulator"
CASES = [
    ("uvicorn", lambda place: run_watch([]), "scalerl[watch]"),
    ("plotly.offline", lambda place: plotly_script(), "scalerl[report]"),
    ("ray", lambda place: RayWorkers("local", 1, 1.0, 0.0), "scalerl[ray]"),
    ("httpx", lambda place: importlib.import_module("scalerl.training.engines.vllm"), "scalerl[cluster]"),
    ("verifiers", lambda place: environment_rows(EnvironmentTask(environment="any"), 1), "verifiers>="),
    ("mlflow", lambda place: makers_of(read_config(None, {"loggers": ["mlflow"]}).loggers), "scalerl[mlflow]"),
    (EVENTS, lambda place: read(place / "a.tfevents"), "tensorboard"),
]


@pytest.mark.parametrize(("module", "call", "command"), CASES, ids=[module for module, *_ in CASES])
def test_a_missing_package_is_reported_with_the_command_that_installs_it(module, call, command, tmp_path, monkeypatch):
    (tmp_path / "a.tfevents").write_bytes(b"\0")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "scalerl.reading.pages.server", raising=False)
    monkeypatch.delitem(sys.modules, "scalerl.training.engines.vllm", raising=False)
    monkeypatch.setattr("scalerl.training.trackers.base.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises((ConfigError, CurveError), match="pip install '?" + command.replace("[", r"\[")):
        call(tmp_path)


WITHOUT = f"import sys\nsys.modules |= dict.fromkeys({[*EXTRAS['train'], 'pydantic_core']})\n"
"""Makes a Python like one with the base install alone."""


def base(place, code):
    """Run code in a new Python without the packages of the extra `train`; return its exit code, output and errors."""
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, cwd=place, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--steps", "2", "--run-dir", "here"],
        ["resume", "run"],
        ["score", "rows.jsonl", "--task", "math"],
        ["study", "rates", "-o", "here"],
    ],
    ids=" ".join,
)
def test_a_command_of_the_extra_train_says_in_one_line_what_to_install_and_leaves_nothing(words, tmp_path):
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


def test_all_names_of_the_package_can_be_imported_without_the_extra_and_training_says_what_to_install(tmp_path):
    names = "RunFailed fit load ScalerlError"
    shown = ", ".join(f"{name}.__name__" for name in names.split())
    code, out, error = base(tmp_path, f"from scalerl import *; print({shown})")
    assert (code, out, error) == (0, f"{names}\n", "")
    for call_ in ("train()", "train(steps=1, run_dir='here')", "resume('run')"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run/config.toml").write_text(to_toml(read_config(None, {})))
        _, _, error = base(tmp_path, f"import scalerl; scalerl.{call_}")
        assert "ConfigError" in error and "pip install 'scalerl[train]'" in error.splitlines()[-1], error
        assert not (tmp_path / "here").exists() and not (tmp_path / "runs").exists()


READING = [
    "forecast run points.jsonl --at 2x --target 0.6",
    "compare run --versus points.jsonl --compute flops",
    "frontier w16 w32 w64 --vary model.width --budget 1e13",
    pytest.param("design --budget 100 --evaluations 11 --difference 0.1", marks=pytest.mark.slow),
    "import log.csv --metric reward -o imported.jsonl",
    "report run points.jsonl --versus w16 --compute flops",
    "study show simulated",
    "watch log.csv --metric reward --port 0",
    "follow ended --json",
]
"""Commands for whoever has a log or a run, in a directory that `place` makes."""
SERVED = (
    "import scalerl.reading.pages.server as server, types\n"
    "server.server_of = lambda *a: types.SimpleNamespace(run=lambda **b: None)\n"
)
LEFT = "left = [m for m in sys.modules if m.split('.')[0] in ('pydantic', 'torch') and sys.modules[m]]\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with points, a log of another trainer, and runs of three widths."""
    here = tmp_path_factory.mktemp("logs")
    for name, width in (("run", 32), ("w16", 16), ("w32", 32), ("w64", 64)):
        config = read_config(None, {"model.width": width})
        ceiling, midpoint = 0.5 + 0.05 * math.log2(width / 16), 2e12 * width / 16
        flops = [5e11 * step for step in range(30)]
        rates = [0.2 + (ceiling - 0.2) / (1 + (midpoint / max(c, 1)) ** 1.5) for c in flops]
        rows = [points_row(i, flops[i], round(rates[i] + 0.004 * (-1) ** i, 4)) for i in range(30)]
        (here / name).mkdir()
        (here / name / "run.json").write_text(run_info(config).to_json())
        (here / name / "config.toml").write_text(to_toml(config))
        (here / name / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "points.jsonl").write_text((here / "run/points.jsonl").read_text())
    write_study(here / "simulated", {"base": Truth(), "better": Truth(asymptote=0.66)}, seeds=2)
    log = "".join(f"{i},{1000 * i},{0.6 - 0.4 / (1 + i / 5):.4f}\n" for i in range(20))
    (here / "log.csv").write_text("step,num_tokens,reward\n" + log)
    rows = [{"step": i, "reward": 0.6 - 0.4 / (1 + i / 5), "step_time": 60.0} for i in range(1, 21)]
    (here / "ended").mkdir()
    history = {"log_history": [*rows, {"step": 20, "train_runtime": 1200.0}]}
    (here / "ended/trainer_state.json").write_text(json.dumps(history))
    return here


def points_row(step, flops, rate):
    (task,) = read_config(None, {}).main_tasks
    return {"step": step, "task": task, "pass_rate": rate, "stderr": 0.01, "flops": flops, "tokens": 100 * step,
            "device_hours": step / 60}  # fmt: skip


@pytest.mark.parametrize("words", READING)
def test_a_command_for_logs_and_runs_works_in_the_base_install_and_loads_no_part_of_training(words, place):
    served = SERVED if "watch" in words else ""
    code = f"from scalerl.cli import main\n{served}code = main({words.split()})\n{LEFT}" + (
        "left += [m for m in sys.modules if m.startswith('scalerl.training')]\nassert not left, left\nsys.exit(code)"
    )
    code, out, error = base(place, code)
    assert code == 0 and "Traceback" not in error and (out or "import" in words), error


def test_another_missing_module_is_not_hidden(monkeypatch, capsys):
    monkeypatch.setattr("scalerl.cli.recipes.print_recipes", lambda: importlib.import_module("no_such_module"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        command(capsys, "recipes")
