"""The libraries of a run send nothing to their makers, unless the user's environment says otherwise."""

import importlib.util
import os
import subprocess
import sys

import pytest

CASES = {
    "mlflow": (
        "import scalerl.training.trackers.mlflow, mlflow.telemetry as t; print(t.get_telemetry_client() is None)",
        {"MLFLOW_DISABLE_TELEMETRY": "false"},
    ),
    "wandb": (
        "import scalerl.training.trackers.wandb, wandb.env; print(not wandb.env.error_reporting_enabled())",
        {"WANDB_ERROR_REPORTING": "true"},
    ),
    "ray": (
        "from scalerl.training.machines.connect import connect\nimport ray, ray._common.usage.usage_lib as u\n"
        "ray.is_initialized = lambda: True\nconnect('local', 'x'); print(not u.usage_stats_enabled())",
        {"RAY_USAGE_STATS_ENABLED": "1"},
    ),
}
NOT_IN_CI = ("CI", "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "GITHUB_ACTIONS", "DO_NOT_TRACK")
"""Variables with which mlflow turns its telemetry off itself, as some others that no machine of ours has."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_telemetry_is_off_by_default(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    code, choice = CASES[name]
    environment = {key: value for key, value in os.environ.items() if key not in (*NOT_IN_CI, *choice)}
    for own, off in (({}, "True"), (choice, "False")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**environment, **own}, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.split()[-1:] == [off], done.stderr
