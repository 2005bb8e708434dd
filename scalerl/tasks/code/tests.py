"""Tests of programs: the forms of public data sets, converted to three classes."""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.tasks.code.answer import parsed

ALLOWED = (
    '{"inputs": [...], "outputs": [...]} with or without "fn_name", a list of {"input": ..., "output": ...}, a list of '
    'assertions, or {"test": "def check(candidate): ...", "entry_point": "name"}; each also as JSON text'
)


class BadTests(ValueError):
    """Tests that cannot be read; the message names the field."""


@dataclass(frozen=True, slots=True)
class InputOutput:
    r"""Tests of a program that reads standard input and writes standard output.

    Example: InputOutput(inputs=("3 4\n",), outputs=("7\n",))
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Calls:
    """Tests of the value that a function, or a method of the class Solution, returns.

    Example: Calls(name="add", arguments=([3, 4],), results=(7,))
    """

    name: str
    arguments: tuple[list[Any], ...]
    results: tuple[Any, ...]
    wrapped: bool = False
    """Whether an expected [x] also matches x, as in APPS and TACO."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Code that calls the program's functions and raises if they are wrong.

    Example: Checks(setup="import math", tests="assert add(3, 4) == 7", names=("add",), entry="", continues=False)
    """

    setup: str
    tests: str
    names: tuple[str, ...]
    """Names that the tests use from the program."""
    entry: str = ""
    """If not empty, `check(entry)` is called at the end."""

    @property
    def continues(self) -> bool:
        """Whether the prompt is the beginning of the function (HumanEval)."""
        return bool(self.entry)


Tests = InputOutput | Calls | Checks


def read_tests(columns: Mapping[str, Any]) -> Tests:
    """Return the tests of a row.

    They are in the column "tests" or in the columns of a known data set: HumanEval (test, entry_point), MBPP
    (test_list), LiveCodeBench (public_test_cases, private_test_cases), APPS and TACO (input_output).

    Raises:
        BadTests: There are no tests, or their form is unknown.
    """
    if columns.get("tests") is not None:
        return _parse(columns["tests"], "tests", columns)
    if columns.get("test") and columns.get("entry_point"):
        return _humaneval(columns, columns)
    for name in ("test_list", "input_output"):
        if columns.get(name) is not None:
            return _parse(columns[name], name, columns)
    if columns.get("public_test_cases") is not None:
        return _livecodebench(columns)
    raise BadTests(f"'tests': the row has none (columns here: {', '.join(columns)}); allowed: {ALLOWED}")


def _parse(given: Any, field: str, columns: Mapping[str, Any]) -> Tests:
    value = _from_text(given, field) if isinstance(given, str) else given
    if isinstance(value, Mapping) and "test" in value and "entry_point" in value:
        return _humaneval(value, columns)
    if isinstance(value, Mapping) and "inputs" in value and "outputs" in value:
        return _pairs(value["inputs"], value["outputs"], value.get("fn_name"), field)
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return _assertions(value, columns, field)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        return _cases(value, columns, field)
    shown = repr(given)
    raise BadTests(f"{field!r}: got {shown[:80]}{'...' if len(shown) > 80 else ''}; allowed: {ALLOWED}")


def _from_text(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        tree = parsed(text)
        if tree is not None and any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
            return [text]
        raise BadTests(
            f"{field!r}: neither JSON ({error.msg} at line {error.lineno}, column {error.colno}) nor assertions; "
            f"allowed: {ALLOWED}"
        ) from None
    except RecursionError:
        raise BadTests(f"{field!r}: the JSON is nested too deeply") from None


def _humaneval(value: Mapping[str, Any], columns: Mapping[str, Any]) -> Checks:
    from scalerl.tasks.code.answer import code_of_prompt

    test, entry = str(value["test"]), str(value["entry_point"])
    if parsed(test) is None:
        raise BadTests("'test' is not valid Python; correct the row or remove it")
    if not entry.isidentifier():
        raise BadTests(f"'entry_point': got {entry!r}; allowed: the name of a function")
    return Checks(code_of_prompt(columns.get("prompt")), test, (entry,), entry)


def _assertions(lines: Sequence[str], columns: Mapping[str, Any], field: str) -> Checks:
    """Return a list of assertions. Functions that they call without defining them belong to the program."""
    imports = columns.get("test_imports") or []
    setup = "\n".join(
        [*(imports if isinstance(imports, list) else [str(imports)]), columns.get("test_setup_code") or ""]
    )
    tests = "\n".join(lines)
    for number, line in enumerate(lines, start=1):
        if parsed(line) is None:
            raise BadTests(f"{field!r}: assertion {number} is not valid Python: {line[:80]!r}")
    if parsed(setup) is None:
        raise BadTests("'test_setup_code' is not valid Python; correct the row or remove it")
    names = free_names(setup + "\n" + tests)
    if not names:
        raise BadTests(f"{field!r}: the assertions call no function of the program")
    return Checks(setup, tests, names)


def free_names(source: str) -> tuple[str, ...]:
    """Return the names that code uses without defining or importing them: those of the program under test.

    Builtins and the names of prelude.py are excluded, unless nothing else is called. In that case, the first function
    that an assertion calls is the program's (MBPP has `assert sum(10, 15) == 6`).
    """
    from scalerl.tasks.sandbox.guest.prelude import FROM, MODULES

    tree = ast.parse(source)
    used, made, called = list[str](), set[str](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            made.add(node.id) if isinstance(node.ctx, ast.Store) else used.append(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.append(node.func.id)
    known = made | set(dir(builtins))
    candidates = dict.fromkeys(name for name in used if name not in known)
    others = [name for name in candidates if name not in FROM and name not in MODULES]
    if any(name in called for name in others):
        return tuple(others)
    return tuple(others) + tuple(dict.fromkeys(name for name in called if name not in made))[:1]


def _cases(cases: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], field: str) -> Tests:
    """Return tests from a list of inputs with outputs, as in LiveCodeBench and DeepCoder."""
    for number, case in enumerate(cases, start=1):
        if "input" not in case or "output" not in case:
            raise BadTests(f"{field!r}: test {number} has {', '.join(map(repr, case))}; allowed: 'input' and 'output'")
    kinds = {str(case.get("testtype") or case.get("type") or "stdin") for case in cases}
    name = _function_name(cases[0].get("metadata")) or _function_name(columns.get("metadata"))
    if "functional" in kinds and not name:
        raise BadTests(
            f"{field!r}: the tests call a function that is not named; give its name in 'metadata': 'func_name'"
        )
    inputs, outputs = [case["input"] for case in cases], [case["output"] for case in cases]
    return _pairs(inputs, outputs, name if "functional" in kinds else None, field)


def _function_name(metadata: Any) -> str | None:
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except json.JSONDecodeError:
            raise BadTests("'metadata' is not valid JSON; correct the row or remove it") from None
    return metadata.get("func_name") if isinstance(metadata, Mapping) else None


def _livecodebench(columns: Mapping[str, Any]) -> Tests:
    cases = _from_text(columns["public_test_cases"], "public_test_cases")
    private = columns.get("private_test_cases")
    if private:
        cases = [*cases, *_unpacked(private)]
    return _parse(cases, "public_test_cases", columns)


class _OnlyText(pickle.Unpickler):
    """Reads a pickled string; a pickle that names any class is refused."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise BadTests(f"'private_test_cases': a pickle that names {module_name}.{global_name}; allowed: text")


def _unpacked(text: str) -> list[Any]:
    """Return LiveCodeBench's hidden tests: JSON, or base64 of zlib of a pickled JSON string."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        try:
            found = json.loads(_OnlyText(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load())
        except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, TypeError, json.JSONDecodeError) as error:
            raise BadTests(f"'private_test_cases' cannot be read ({error}); download the file again") from None
    if not isinstance(found, list):
        raise BadTests(f"'private_test_cases': got {type(found).__name__}; allowed: a list of tests")
    return found


def _pairs(inputs: Any, outputs: Any, name: Any, field: str) -> Tests:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        sizes = [len(part) if isinstance(part, list) else type(part).__name__ for part in (inputs, outputs)]
        raise BadTests(
            f"{field!r}: got {sizes[0]} inputs and {sizes[1]} outputs; allowed: two lists of one length, at least 1"
        )
    if not name:
        return InputOutput(tuple(map(_text, inputs)), tuple(map(_text, outputs)))
    arguments, results = [], []
    for number, (given, wanted) in enumerate(zip(inputs, outputs, strict=True), start=1):
        try:
            as_lines = isinstance(given, str)
            arguments.append([json.loads(line) for line in given.split("\n") if line.strip()] if as_lines else given)
            results.append(json.loads(wanted) if isinstance(wanted, str) and as_lines else wanted)
        except json.JSONDecodeError as error:
            raise BadTests(f"{field!r}: test {number} of {name}: not valid JSON ({error.msg})") from None
        if not isinstance(arguments[-1], list):
            raise BadTests(f"{field!r}: test {number} of {name}: got {given!r}; allowed: a list of arguments")
    return Calls(str(name), tuple(arguments), tuple(results), wrapped=not isinstance(inputs[0], str))


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
