"""Prompts of public code data sets. Their tests are in columns that the code verifier reads (tasks/code/tests.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scalerl.core.errors import ConfigError, short
from scalerl.tasks.code.tests import BadTests, from_text, livecodebench_cases

FIRST_HALF_OF_2025 = ("2025-01-01", "2025-06-30")
"""First and last contest date of `livecodebench-2025`."""

ASKED = "Write your answer as one Python program in a ```python code block."


def humaneval(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row of HumanEval: the function to complete, `test` with check(candidate), and its name."""
    return dict(values) | {name: _needed(values, name, where) for name in ("test", "entry_point", "prompt")}


def mbpp(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row of MBPP: the text with the assertions, like its authors' prompts (arXiv 2108.07732, sec. 3)."""
    assertions = _needed(values, "test_list", where)
    if not isinstance(assertions, list):
        raise ConfigError(f"{where}: 'test_list' is {short(assertions)}; allowed: a list of assertions")
    shown = "\n".join(map(str, assertions))
    question = values.get("text") or _needed(values, "prompt", where)  # `prompt` in the sanitized edition
    prompt = f"{question} Your code should satisfy these tests:\n\n{shown}\n\n{ASKED}"
    return {**values, "prompt": prompt}


def deepcoder(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row of DeepCoder: the problem, its starter code if any, and the tests."""
    tests = _needed(values, "tests", where)
    return {**values, "prompt": _asked(values, "problem", where), "tests": _read(where, from_text, tests, "tests")}


def livecodebench(values: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return a row of LiveCodeBench of the first half of 2025; None for other contests."""
    low, high = FIRST_HALF_OF_2025
    if not low <= str(_needed(values, "contest_date", where))[:10] <= high:
        return None
    tests = _read(where, livecodebench_cases, values)
    kept = {name: value for name, value in values.items() if not name.endswith("_test_cases")}
    return {**kept, "prompt": _asked(values, "question_content", where), "tests": tests}


ROW_FORMS: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any] | None]] = {
    "humaneval": humaneval,
    "mbpp": mbpp,
    "deepcoder": deepcoder,
    "livecodebench-2025": livecodebench,
}
"""Functions by the names in NamedSet.rows; they return None for rows that do not belong to the set."""


def _asked(values: Mapping[str, Any], column: str, where: str) -> str:
    starter = str(values.get("starter_code") or "")
    begin = f"\n\nBegin with this code:\n```python\n{starter}\n```" if starter.strip() else ""
    reads = "" if begin else " It reads standard input and writes standard output."
    return f"{_needed(values, column, where)}{begin}\n\n{ASKED}{reads}"


def _read(where: str, read: Callable[..., Any], *words: Any) -> Any:
    try:
        return read(*words)
    except BadTests as error:
        raise ConfigError(f"{where}: {error}") from None


def _needed(values: Mapping[str, Any], column: str, where: str) -> Any:
    if values.get(column) in (None, "", []):
        raise ConfigError(
            f"{where}: the column {column!r} is empty or missing (columns here: {', '.join(values)}); give a file of "
            "this set"
        )
    return values[column]
