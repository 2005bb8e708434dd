"""Files and functions of the package stay short. Ruff checks the number of parameters (PLR0913 in pyproject.toml)."""

import ast
import re
from pathlib import Path

FILES = sorted((Path(__file__).parents[1] / "scalerl").rglob("*.py"))
LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 400, 60


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.end_lineno - node.lineno + 1


def test_no_file_has_more_than_400_lines():
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert len(lines) > 200
    assert {path: count for path, count in lines.items() if count > LINES_OF_A_FILE} == {}


def test_no_function_has_more_than_60_lines():
    functions = {
        f"{path}:{node.lineno} {node.name}": length(node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(functions) > 2000 and max(functions.values()) > 50
    assert {name: count for name, count in functions.items() if count > LINES_OF_A_FUNCTION} == {}


def test_at_most_8_handlers_catch_every_exception():
    wide = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                caught = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)} if node.type else set()
                if node.type is None or caught & {"Exception", "BaseException"}:
                    wide.append(f"{path}:{node.lineno}")
    assert 0 < len(wide) <= 8, wide


def test_only_heartbeats_and_trackers_read_the_wall_clock():
    """It may jump; durations, time limits and device-hours are measured with the monotonic one."""
    read = {path.name for path in FILES if re.search(r"\btime\.time(_ns)?\b|datetime\.now|utcnow", path.read_text())}
    assert read == {"status.py", "run.py", "mlflow.py", "tensorboard.py"}
