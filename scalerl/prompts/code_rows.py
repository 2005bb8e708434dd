"""Conversion of rows of public code data sets to a prompt and a `tests` column.

The tests have one of the forms of the code verifier: {"inputs", "outputs", "fn_name"}, a list of assertions, or
{"test", "entry_point"}.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalerl.config.base import ConfigError

FIRST_HALF_OF_2025 = ("2025-01-01", "2025-06-30")
"""First and last contest date of `livecodebench-2025`."""

ASKED = "Write your answer as one Python program in a ```python code block."


def humaneval(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row of HumanEval: the function to complete, `test` with check(candidate), and its name."""
    tests = {"test": _needed(values, "test", where), "entry_point": _needed(values, "entry_point", where)}
    return {**values, "prompt": _needed(values, "prompt", where), "tests": tests}


def mbpp(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row of MBPP: the text with the assertions, like its authors' prompts (arXiv 2108.07732, sec. 3)."""
    assertions = list(_needed(values, "test_list", where))
    shown = "\n".join(assertions)
    said = values.get("text") or _needed(values, "prompt", where)  # `prompt` in the sanitized edition
    setup = values.get("test_setup_code") or "\n".join(values.get("test_imports") or ())
    prompt = f"{said} Your code should satisfy these tests:\n\n{shown}\n\n{ASKED}"
    return {**values, "prompt": prompt, "tests": [setup, *assertions] if setup else assertions}


def deepcoder(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row of DeepCoder: the problem, its starter code if any, and the tests."""
    tests = _json(_needed(values, "tests", where), "tests", where)
    return {**values, "prompt": _asked(values, "problem", where), "tests": _joined(tests, "tests", where)}


def livecodebench(values: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return a row of LiveCodeBench of the first half of 2025; None for other contests."""
    low, high = FIRST_HALF_OF_2025
    if not low <= str(_needed(values, "contest_date", where))[:10] <= high:
        return None
    public = _json(_needed(values, "public_test_cases", where), "public_test_cases", where)
    private = _private(_needed(values, "private_test_cases", where), where)
    name = _json(values.get("metadata") or "{}", "metadata", where).get("func_name")
    tests = _joined([*public, *private], "private_test_cases", where)
    if name:
        tests["fn_name"] = name
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
    starter = values.get("starter_code") or ""
    begin = f"\n\nBegin with this code:\n```python\n{starter}\n```" if starter.strip() else ""
    reads = "" if begin else " It reads standard input and writes standard output."
    return f"{_needed(values, column, where)}{begin}\n\n{ASKED}{reads}"


def _joined(tests: Any, column: str, where: str) -> dict[str, Any]:
    """Return tests as {"inputs", "outputs"}, given in this form or as a list of {"input", "output"}."""
    if isinstance(tests, Mapping) and {"inputs", "outputs"} <= tests.keys():
        return dict(tests)
    if not isinstance(tests, Sequence) or not tests or not all(
        isinstance(test, Mapping) and {"input", "output"} <= test.keys() for test in tests
    ):  # fmt: skip
        raise ConfigError(
            f"{where}: {column!r} holds no tests; allowed: a list of {{input, output}}, or {{inputs, outputs}}"
        )
    joined = {"inputs": [test["input"] for test in tests], "outputs": [test["output"] for test in tests]}
    first = tests[0]
    name = first.get("fn_name") or (first.get("metadata") or {}).get("func_name")
    return {**joined, "fn_name": name} if name else joined


def _private(text: str, where: str) -> list[Any]:
    """Return LiveCodeBench's private tests: JSON, or base64 of zlib of a pickled JSON string."""
    if text.lstrip().startswith("["):
        return list(_json(text, "private_test_cases", where))
    try:
        packed = zlib.decompress(base64.b64decode(text, validate=True))
        inner = _StringOnly(io.BytesIO(packed)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise ConfigError(f"{where}: 'private_test_cases' cannot be unpacked ({error}); download the file again") \
            from None  # fmt: skip
    return list(_json(inner, "private_test_cases", where))


class _StringOnly(pickle.Unpickler):
    """Reads plain values only, because a pickle with a class could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}; allowed: a string")


def _json(text: Any, column: str, where: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: {column!r} is not valid JSON ({error.msg} at column {error.colno})") from None


def _needed(values: Mapping[str, Any], column: str, where: str) -> Any:
    if values.get(column) in (None, "", []):
        raise ConfigError(
            f"{where}: the column {column!r} is empty or missing (columns here: {', '.join(values)}); give a file of "
            "this set"
        )
    return values[column]
