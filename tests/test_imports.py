"""Imports go in one direction, and the light half never loads the heavy half."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "scalerl"

LAYERS = {  # package -> other packages that it may import
    "core": {"types"},
    "types": set(),
    "config": {"core", "scaling.stop"},
    "scaling": {"core"},
    "importers": {"types", "core", "scaling"},
    "models": {"config", "core"},
    "learn": {"config", "core"},
    "tasks": {"types", "config", "core"},
    "prompts": {"types", "config", "core", "tasks", "models.template", "models.text"},
    "rollouts": {"types", "config", "core", "models", "tasks", "cluster.devices"},
    "cluster": {"config", "core", "models", "rollouts", "tasks", "training.learner", "types"},
    "loggers": {"types", "config", "core", "view", "scaling"},
    "view": {"types", "core", "scaling", "study"},
    "study": {"scaling", "config", "types", "view", "core", "training.run_info"},
}


@pytest.mark.parametrize("package", list(LAYERS))
def test_a_package_imports_only_lower_layers(package):
    own = [f"scalerl.{name}" for name in (package, *LAYERS[package])]
    files = {module: names for module, names in import_graph().items() if f"{module}.".startswith(f"{own[0]}.")}
    assert files
    for module, names in files.items():
        for name in names - {"scalerl"}:
            assert any(f"{name}.".startswith(f"{allowed}.") for allowed in own), f"{module} imports {name}"


def import_graph() -> dict[str, set[str]]:
    """Return the scalerl modules that each module imports: at any depth of the file, for type checking too."""
    files = {}
    for path in ROOT.rglob("*.py"):
        parts = ("scalerl", *path.relative_to(ROOT).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for module, path in files.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                found |= {full if full in files else node.module for full in names.values()}
        graph[module] = found & files.keys()
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def test_no_module_imports_itself_through_others():
    graph = import_graph()
    assert len(graph) > 100 and "scalerl.scaling.fit" in reachable(graph, "scalerl.study.allocate")
    assert [module for module in graph if module in reachable(graph, module)] == []


@pytest.mark.parametrize(
    "module",
    [
        "scalerl.importers.points",
        "scalerl.view.summary",
        "scalerl.study.allocate",
        "scalerl.cli.frontier",
        "scalerl.cluster.plan",
        "scalerl.loggers.follow",
        "scalerl.prompts.curriculum",
        "scalerl.training.progress",
    ],
)
def test_the_light_half_loads_no_torch(module):
    heavy = "{'torch', 'transformers', 'matplotlib', 'pandas'}"
    code = f"import sys, {module}; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_without_extras_loads_no_optional_package():
    extras = "'httpx', 'ray', 'vllm', 'peft', 'datasets', 'wandb', 'mlflow'"
    blocked = f"for name in ({extras}): sys.modules[name] = None"
    code = f"import sys\n{blocked}\nimport scalerl.training.launch, scalerl.training.evaluation, scalerl.cli.main"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_heartbeats_and_trackers_read_the_wall_clock():
    """It may jump; durations, time limits and device-hours are measured with the monotonic one."""
    clock = re.compile(r"\btime\.time(_ns)?\b|datetime\.now|utcnow")
    files = ROOT.rglob("*.py")
    readers = {path.name for path in files if clock.search(path.read_text(encoding="utf-8"))}
    assert readers == {"status.py", "run.py", "mlflow.py", "tensorboard.py"}
