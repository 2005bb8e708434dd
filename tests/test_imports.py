"""Imports go in one direction, and the light half never loads the heavy half."""

import ast
import functools
import graphlib
import importlib
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1] / "scalerl"

MAP = re.findall(
    r"^\| `(core|reading/\w+|training/\w+|api|cli)` \|", (ROOT.parent / "docs/architecture.md").read_text(), re.M
)
"""The packages of docs/architecture.md, the lowest first: each imports only packages before it, so no two import each
other, and no reader imports training."""

ORDER = [name.replace("/", ".") for name in MAP]
READ = [name for name in ORDER if name.startswith(("core", "reading"))]


def test_every_package_imports_only_packages_before_it():
    graph = import_graph()
    assert {package_of(module) for module in graph} - {""} == set(ORDER) and len(ORDER) == 20
    assert wrong_way(graph) == [] and ORDER[: len(READ)] == READ


def test_no_package_below_pages_imports_it_by_a_string():
    files = [path for package in MAP[: len(READ) - 1] for path in (ROOT / package).rglob("*.py")]
    named = [path for path in files if re.search(r"[\"']scalerl\.reading\.pages\b", path.read_text())]
    assert len(files) > 50 and named == []
    importlib.import_module("scalerl")  # which registers what they call
    assert set(importlib.import_module("scalerl.core").VIEWS) == {"html_of", "plot", "curve_from"}


def test_the_rule_sees_an_import_in_the_wrong_direction():
    assert wrong_way({"scalerl.reading.pages.run": {"scalerl.training.config.run"}}) == [
        "scalerl.reading.pages.run imports scalerl.training.config.run"
    ]
    same = {"scalerl.training.models.build": {"scalerl.training.config.run", "scalerl.training.models.policy"}}
    assert wrong_way(same) == []
    assert wrong_way({"scalerl.core.rows": {"scalerl.reading.tables.table"}}) == [
        "scalerl.core.rows imports scalerl.reading.tables.table"
    ]


def wrong_way(graph: dict[str, set[str]]) -> list[str]:
    """Return the imports of a package that comes later; `scalerl` itself, which loads what is used, does not count."""
    return [
        f"{module} imports {name}"
        for module, names in graph.items()
        for name in sorted(names)
        if package_of(module) and package_of(name) and ORDER.index(package_of(name)) > ORDER.index(package_of(module))
    ]


def package_of(module: str) -> str:
    """Return the package of a module as the page calls it, such as core or reading.curves; empty for a half itself."""
    parts = module.split(".")[1:]
    if parts and parts[0] in ("reading", "training"):
        return ".".join(parts[:2]) if len(parts) > 1 else ""
    return "".join(parts[:1])


@functools.cache
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


def test_packages_that_run_take_the_parts_of_a_configuration_that_they_use():
    """Only what decides before a run, or writes and shows it, has the whole configuration."""
    running = ("models", "recipe", "rewards", "prompts", "engines", "learner", "trackers")
    files = [path for package in running for path in (ROOT / "training" / package).rglob("*.py")]
    assert len(files) > 100
    assert [path for path in files if re.search(r"\bRunConfig\b", path.read_text())] == []


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
    assert len(graph) > 100 and "scalerl.reading.curves.fit" in reachable(graph, "scalerl.training.study.allocate")
    graphlib.TopologicalSorter(graph).prepare()  # CycleError has the modules of a cycle


LIGHT = (
    "scalerl.training.study.allocate", "scalerl.cli.frontier", "scalerl.training.machines.plan",
    "scalerl.training.trackers.follow",
    "scalerl.training.prompts.curriculum", "scalerl.training.loop.progress",
)  # fmt: skip


def test_the_light_half_loads_no_torch():
    code = f"""
import importlib, sys
for module in {LIGHT}:
    importlib.import_module(module)
    found = {{'torch', 'transformers', 'matplotlib', 'pandas'}} & set(sys.modules)
    assert not found, (module, found)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_reading_half_loads_neither_torch_nor_the_library_of_the_configuration():
    """Without the server and the callback for transformers, it needs numpy, scipy, matplotlib and rich only."""
    extras = {"scalerl.reading.pages.server", "scalerl.reading.logs.callback"}
    modules = [m for m in import_graph() if package_of(m) in READ and m not in extras]
    assert len(modules) > 60
    blocked = "'torch', 'transformers', 'pydantic', 'tomli_w', 'starlette', 'plotly'"
    code = f"import sys\nfor name in ({blocked}): sys.modules[name] = None\nimport {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_without_extras_loads_no_optional_package():
    """The modules are imported anew in this process, which has torch; a new one takes seconds to import it."""
    import torch  # noqa: F401
    import transformers  # noqa: F401

    extras = ("httpx", "ray", "vllm", "peft", "datasets", "wandb", "mlflow")
    with patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.partition(".")[0] == "scalerl"]:
            del sys.modules[name]
        sys.modules |= dict.fromkeys(extras)
        for name in ("scalerl.training.loop.launch", "scalerl.training.loop.evaluation", "scalerl.cli.main"):
            importlib.import_module(name)
        assert len([name for name in sys.modules if name.startswith("scalerl.")]) > 100


def test_only_heartbeats_and_trackers_read_the_wall_clock():
    """It may jump; durations, time limits and device-hours are measured with the monotonic one.

    `follow` prints the time of day, and writes it to trackers.
    """
    clock = re.compile(r"\btime\.time(_ns)?\b|datetime\.now|utcnow")
    files = ROOT.rglob("*.py")
    readers = {path.name for path in files if clock.search(path.read_text(encoding="utf-8"))}
    assert readers == {"status.py", "run.py", "mlflow.py", "tensorboard.py", "follow.py"}
