"""Packages that are not installed: the error has the command that installs them."""

import importlib
import sys
from types import SimpleNamespace

import pytest

from scalerl.cli.watch import watch
from scalerl.cluster.jobs import RayWorkers
from scalerl.config import read_config
from scalerl.config.data import EnvironmentTask
from scalerl.core.errors import ConfigError
from scalerl.importers import read
from scalerl.loggers.base import makers_of
from scalerl.prompts.sources import environment_rows
from scalerl.scaling import CurveError
from scalerl.view.page import plotly_script

EVENTS = "tensorboard.backend.event_processing.event_accumulator"
CASES = [
    ("uvicorn", lambda place: watch(SimpleNamespace()), "scalerl[watch]"),
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
