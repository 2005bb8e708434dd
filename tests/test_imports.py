"""Imports go in one direction, and the light half never loads the heavy half."""

import ast
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
    "prompts": {"types", "config", "core", "tasks", "models.template"},
    "rollouts": {"types", "config", "core", "models", "tasks", "cluster.devices"},
    "cluster": {"config", "core", "models", "rollouts", "tasks", "training.learner", "types"},
    "loggers": {"types", "config", "core", "view", "scaling"},
    "view": {"types", "config", "core", "scaling", "study", "training.status"},
    "study": {"scaling", "config", "types", "view", "core"},
}


def imports_of(path: Path) -> set[str]:
    """Return the scalerl modules a file imports, at any depth of the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("scalerl"):
            names.add(node.module.removeprefix("scalerl").lstrip("."))
            if node.module == "scalerl":
                names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.removeprefix("scalerl.") for a in node.names if a.name.startswith("scalerl.")}
    return names - {"", "__version__"}


@pytest.mark.parametrize("package", list(LAYERS))
def test_a_package_imports_only_lower_layers(package):
    files = [*(ROOT / package).rglob("*.py"), *ROOT.glob(f"{package}.py")]
    assert files
    for path in files:
        for name in imports_of(path):
            allowed = {package, *LAYERS[package]}
            assert any(name == a or name.startswith(a + ".") for a in allowed), f"{path} imports {name}"


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
        "scalerl.scaling",
        "scalerl.importers.points",
        "scalerl.view.summary",
        "scalerl.study.allocate",
        "scalerl.cli",
        "scalerl.config.recipe",
        "scalerl.config",
        "scalerl.cluster.plan",
        "scalerl.view.state",
        "scalerl.loggers.follow",
        "scalerl.loggers.base",
        "scalerl.types",
    ],
)
def test_the_light_half_loads_no_torch(module):
    heavy = "{'torch', 'transformers', 'matplotlib', 'pandas'}"
    code = f"import sys, {module}; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_learner_side_imports_torch():
    """Records, curriculum and pipeline can be used, and tested, without a model."""
    for module in (
        "scalerl.rollouts.pipeline",
        "scalerl.rollouts.coordinator",
        "scalerl.prompts.curriculum",
        "scalerl.training.progress",
    ):
        code = f"import sys, {module}; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_no_decision_depends_on_the_wall_clock():
    shown = {ROOT / "training/status.py", *(ROOT / "view").rglob("*.py")}  # times for the reader of the live page
    shown |= {ROOT / "loggers/tensorboard.py", ROOT / "loggers/mlflow.py"}  # times for the reader of a tracker
    files = list({*ROOT.rglob("*.py")} - shown)
    assert len(files) > 100
    for path in files:
        read = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not read & {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}, path
