"""Imports go one way, and the light half never loads the heavy one."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "scalerl"

LAYERS = {  # package -> packages it may import, itself aside
    "scaling": set(),
    "importers": {"types", "scaling"},
    "integrations": {"scaling"},
    "learn": {"recipe", "parts", "onednn"},
    "tasks": {"types", "config", "data", "parts", "recipe", "rollouts.streams"},
    "prompts": {"types", "config", "data", "parts", "tasks", "rollouts.streams"},
    "rollouts": {"types", "recipe", "parts", "policy", "compute", "learn"},
    "report": {"types", "config", "data", "recipe", "parts", "scaling"},
    "study": {"scaling", "parts", "config", "data", "recipe", "types", "report", "train.run_dir"},
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
def test_a_package_imports_only_what_lies_before_it(package):
    for path in (ROOT / package).rglob("*.py"):
        for name in imports_of(path):
            allowed = {package, *LAYERS[package]}
            assert any(name == a or name.startswith(a + ".") for a in allowed), f"{path} imports {name}"


@pytest.mark.parametrize(
    "module",
    [
        "scalerl.scaling",
        "scalerl.importers.points",
        "scalerl.report.summary",
        "scalerl.study.allocate",
        "scalerl.cli",
        "scalerl.recipe",
        "scalerl.config",
        "scalerl.types",
    ],
)
def test_the_light_half_loads_no_torch(module):
    heavy = "{'torch', 'transformers', 'matplotlib', 'pandas'}"
    code = f"import sys, {module}; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_the_learner_half_knows_torch_at_import():
    """Records, curriculum and pipeline can be used, and tested, without a model."""
    for module in (
        "scalerl.rollouts.pipeline",
        "scalerl.rollouts.generator",
        "scalerl.prompts.curriculum",
        "scalerl.evaluate",
    ):
        code = f"import sys, {module}; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)
