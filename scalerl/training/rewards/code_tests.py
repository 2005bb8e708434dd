"""Tests of programs: the forms of public data sets, converted to three classes."""

from __future__ import annotations

import ast
import base64
import builtins
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from scalerl.core.errors import UserError, short
from scalerl.core.files import parse_json
from scalerl.training.rewards.code_answer import code_of_prompt, syntax_tree
from scalerl.training.rewards.sandbox.guest.plain import dumps
from scalerl.training.rewards.sandbox.guest.program import FROM, MODULES

ALLOWED_TESTS = (
    '{"inputs": [...], "outputs": [...]} with or without "fn_name", a list of {"input": ..., "output": ...}, a list of '
    'assertions, or {"test": "def check(candidate): ...", "entry_point": "name"}; each also as JSON text; or a test '
    "file, with 'from solution import NAME'"
)
MOST_UNPACKED = 256 << 20
"""Largest size of the hidden tests of a row after decompression, bytes."""
PICKLED_TEXT = {"PROTO", "FRAME", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "PUT", "BINPUT", "MEMOIZE", "STOP"}
"""Instructions of a pickle that contains one text (pickletools)."""


class BadTests(UserError):
    """Tests that cannot be read; the message names the field."""


@dataclass(frozen=True, slots=True)
class InputOutput:
    r"""Tests of a program that reads standard input and writes standard output.

    Example: InputOutput(inputs=("3 4\n",), outputs=("7\n",))
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tolerance: float = 0.0
    """Largest difference of two numbers, absolute or relative; 0: the same value."""


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
    tolerance: float = 0.0
    """Largest difference of two floats, absolute or relative; 0: the same value."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Code that calls the program's functions and raises if they are wrong.

    Example: Checks(setup="import math", tests="assert add(3, 4) == 7", names=("add",), entry="")
    """

    setup: str
    tests: str
    names: tuple[str, ...]
    """Names that the tests use from the program."""
    entry: str = ""
    """If set, `check(entry)` is called at the end, and the prompt is the beginning of this function (HumanEval)."""
    runner: Literal["", "functions", "pytest"] = ""
    """What runs the test functions and classes of a test file: this package, or pytest if the file needs it."""


Tests = InputOutput | Calls | Checks


def read_tests(columns: Mapping[str, Any]) -> Tests:
    """Return the tests of a row.

    They are in the column "tests" or in the columns of a known data set: HumanEval (test, entry_point), MBPP
    (test_list), LiveCodeBench (public_test_cases, private_test_cases), APPS and TACO (input_output), KodCode (test).

    The column `float_tolerance` is the largest difference of two numbers (`data.float_tolerance` for a whole task).

    Raises:
        BadTests: There are no tests, or their form is unknown.
    """
    tests, tolerance = _tests(columns), columns.get(TOLERANCE_COLUMN)
    if tolerance is None or isinstance(tests, Checks):
        return tests
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise BadTests(
            f"{TOLERANCE_COLUMN!r}: got {short(tolerance)}; allowed: a number from 0 to below 1, such as 1e-6"
        )
    return replace(tests, tolerance=float(tolerance))


TOLERANCE_COLUMN = "float_tolerance"
"""Column with the tolerance of a row."""


def _tests(columns: Mapping[str, Any]) -> Tests:
    if columns.get("tests") is not None:
        return _parse(columns["tests"], "tests", columns)
    if columns.get("test") and columns.get("entry_point"):
        return _humaneval(columns, columns)
    for name in ("test_list", "input_output", "test"):
        if columns.get(name) is not None:
            return _parse(columns[name], name, columns)
    if columns.get("public_test_cases") is not None:
        return _parse(livecodebench_cases(columns), "public_test_cases", columns)
    raise BadTests(f"'tests': the row has none (columns here: {', '.join(columns)}); allowed: {ALLOWED_TESTS}")


def _parse(cell: Any, field: str, columns: Mapping[str, Any]) -> Tests:
    value = from_text(cell, field)
    if isinstance(value, Mapping) and "test" in value and "entry_point" in value:
        return _humaneval(value, columns)
    if isinstance(value, Mapping) and "inputs" in value and "outputs" in value:
        return _pairs(value["inputs"], value["outputs"], value.get("fn_name"), field)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return _assertions(value, columns, field)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return _cases(value, columns, field)
    raise BadTests(f"{field!r}: got {short(cell)}; allowed: {ALLOWED_TESTS}")


def from_text(value: Any, field: str) -> Any:
    """Return the value of JSON text, or a list with a text that contains assertions. Other values are unchanged.

    Raises:
        BadTests: The text is neither.
    """
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value, long_integers=True)
    except ValueError as error:
        tree = syntax_tree(value)
        if tree is not None and (cases_of(tree) or any(isinstance(node, ast.Assert) for node in ast.walk(tree))):
            return [value]
        raise BadTests(f"{field!r}: neither JSON ({error}) nor assertions; allowed: {ALLOWED_TESTS}") from None


def _source(code: Any, field: str) -> str:
    if not isinstance(code, str) or syntax_tree(code) is None:
        raise BadTests(f"{field!r} is not valid Python; correct the row or remove it")
    return code


def _humaneval(value: Mapping[str, Any], columns: Mapping[str, Any]) -> Checks:
    test, entry = _source(value["test"], "test"), value["entry_point"]
    if not isinstance(entry, str) or not entry.isidentifier():
        raise BadTests(f"'entry_point': got {short(entry)}; allowed: the name of a function")
    return Checks(code_of_prompt(columns.get("prompt")), test, (entry,), entry)


def _assertions(lines: Sequence[str], columns: Mapping[str, Any], field: str) -> Checks:
    """Return a list of assertions. Functions that they call without defining them belong to the program."""
    imports = columns.get("test_imports") or []
    before = [*(imports if isinstance(imports, list) else [imports]), columns.get("test_setup_code") or ""]
    setup = _source("\n".join(map(str, before)), "test_setup_code")
    for number, line in enumerate(lines, start=1):
        if syntax_tree(line) is None:
            raise BadTests(f"{field!r}: assertion {number} is not valid Python: {short(line)}")
    tests = "\n".join(lines)
    source = _source(f"{setup}\n{tests}", field)
    tree = ast.parse(source)
    names = imported_names(tree) or free_names(source)
    if not names:
        raise BadTests(f"{field!r}: the assertions call no function of the program")
    cases = cases_of(tree)
    return Checks(
        setup, tests, names, runner="" if not cases else "pytest" if needs_pytest(tree, cases) else "functions"
    )


MODULE = "solution"
"""Module of a test file that stands for the program, as in KodCode."""


def imported_names(tree: ast.Module) -> tuple[str, ...]:
    """Return the names that a test file imports from the program, or uses as attributes of its module."""
    names, modules = dict[str, None](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == MODULE:
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name for alias in node.names if alias.name == MODULE}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names[node.attr] = None
    if "*" in names:
        names |= dict.fromkeys(_candidates(tree)[0])
    return tuple(name for name in names if name != "*")


def cases_of(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the test functions of a test file, and the test methods of its classes, as pytest finds them."""
    cases, methods = list[ast.FunctionDef](), list[ast.stmt]()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (node.name.startswith("Test") or any(map(_is_case, node.bases))):
            methods += node.body
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            cases.append(node)
    return cases + [node for node in methods if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]


def _is_case(base: ast.expr) -> bool:
    return (base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")) == "TestCase"


def needs_pytest(tree: ast.Module, cases: Sequence[ast.FunctionDef]) -> bool:
    """Return whether a test file uses pytest, other than to start it, or has a test with arguments (fixtures)."""
    used = any(
        (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pytest")
        or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        and node.value.id == "pytest" and node.attr != "main")
        for node in ast.walk(tree)
    )  # fmt: skip
    arguments = (
        argument.arg for case in cases if not case.decorator_list
        for argument in case.args.args[: len(case.args.args) - len(case.args.defaults)]
    )  # fmt: skip
    return used or any(name != "self" for name in arguments)


def imports_of(tests: Tests) -> tuple[str, ...]:
    """Return the modules outside the standard library that tests import before they run."""
    if not isinstance(tests, Checks):
        return ()
    names = dict[str, None]()
    for node in ast.parse(f"{tests.setup}\n{tests.tests}").body:
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names[node.module] = None
    if tests.runner == "functions":
        names.pop("pytest", None)  # imported and not used
    elif tests.runner == "pytest":
        names["pytest"] = None
    standard = {*sys.stdlib_module_names, MODULE}
    return tuple(name for name in names if name.partition(".")[0] not in standard)


def free_names(source: str) -> tuple[str, ...]:
    """Return the names that code uses without defining or importing them: those of the program under test.

    Builtins and the names of guest/program.py are excluded, unless nothing else is called. In that case, the first
    function that an assertion calls is the program's (MBPP has `assert sum(10, 15) == 6`).
    """
    candidates, called = _candidates(ast.parse(source))
    others = [name for name in candidates if name not in FROM and name not in MODULES]
    if any(name in called for name in others):
        return tuple(others)
    return tuple(others) + tuple(called[:1])


def _candidates(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Return the names that code uses without making them: those that are no builtins, and those that it calls."""
    used, definitions, called = list[str](), set[str](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            definitions.add(node.id) if isinstance(node.ctx, ast.Store) else used.append(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions.add(node.name)
        elif isinstance(node, ast.arg):
            definitions.add(node.arg)
        elif isinstance(node, ast.alias):
            definitions.add((node.asname or node.name).partition(".")[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.append(node.func.id)
    excluded = definitions | set(dir(builtins))
    return list(dict.fromkeys(name for name in used if name not in excluded)), [
        name for name in called if name not in definitions
    ]


def _cases(cases: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], field: str) -> Tests:
    """Return tests from a list of inputs with outputs, as in LiveCodeBench and DeepCoder."""
    for number, case in enumerate(cases, start=1):
        if "input" not in case or "output" not in case:
            raise BadTests(f"{field!r}: test {number} has {', '.join(map(repr, case))}; allowed: 'input' and 'output'")
    name = cases[0].get("fn_name") or _function_name(cases[0].get("metadata"))
    if not name and any("functional" in (case.get("testtype"), case.get("type")) for case in cases):
        name = _function_name(columns.get("metadata"))
        if not name:
            raise BadTests(
                f"{field!r}: the tests call a function that is not named; give its name in 'metadata': 'func_name'"
            )
    return _pairs([case["input"] for case in cases], [case["output"] for case in cases], name, field)


def _function_name(metadata: Any) -> Any:
    try:
        metadata = parse_json(metadata) if isinstance(metadata, str) else metadata
    except ValueError:
        raise BadTests("'metadata' is not valid JSON; correct the row or remove it") from None
    return metadata.get("func_name") if isinstance(metadata, Mapping) else None


def livecodebench_cases(columns: Mapping[str, Any]) -> list[Any]:
    """Return the public and the hidden tests of a row of LiveCodeBench.

    Raises:
        BadTests: A column holds no list of tests.
    """
    cases = []
    for field in ("public_test_cases", "private_test_cases"):
        cell = columns.get(field) or []
        try:
            tests = _unpacked(cell) if isinstance(cell, str) else cell
        except (ValueError, zlib.error) as error:
            raise BadTests(f"{field!r} cannot be read ({error}); download the file again") from None
        if not isinstance(tests, list):
            raise BadTests(f"{field!r}: got {short(tests)}; allowed: a list of tests")
        cases += tests
    return cases


def _unpacked(text: str) -> Any:
    """Return the value of JSON text, or of base64 of zlib of a pickle of JSON text.

    The pickle is not loaded: it could run code, and ask for any amount of memory.
    """
    import pickletools

    if text.lstrip().startswith(("[", "{")):
        return parse_json(text, long_integers=True)
    unpacking = zlib.decompressobj()
    packed = unpacking.decompress(base64.b64decode(text), MOST_UNPACKED)
    if not unpacking.eof:
        raise ValueError(f"cut off, or more than {MOST_UNPACKED >> 20} MiB")
    instructions = [(code.name, word) for code, word, _ in islice(pickletools.genops(packed), len(PICKLED_TEXT))]
    words = [word for _, word in instructions if isinstance(word, str)]
    if len(words) != 1 or not PICKLED_TEXT.issuperset(name for name, _ in instructions):
        raise ValueError("a pickle of other things than a text")
    return parse_json(words[0], long_integers=True)


def _pairs(inputs: Any, outputs: Any, name: Any, field: str) -> Tests:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        sizes = [len(part) if isinstance(part, list) else type(part).__name__ for part in (inputs, outputs)]
        raise BadTests(
            f"{field!r}: got {sizes[0]} inputs and {sizes[1]} outputs; allowed: two lists of one length, at least 1"
        )
    if not name:
        return InputOutput(tuple(_text(item, field) for item in inputs), tuple(_text(item, field) for item in outputs))
    if not isinstance(name, str):
        raise BadTests(f"{field!r}: 'fn_name' is {short(name)}; allowed: the name of a function")
    as_lines = isinstance(inputs[0], str)
    arguments, results = [], []
    for number, (call_input, call_output) in enumerate(zip(inputs, outputs, strict=True), start=1):
        try:
            if isinstance(call_input, str):
                call_input = [parse_json(line, long_integers=True) for line in call_input.split("\n") if line.strip()]
                call_output = (
                    parse_json(call_output, long_integers=True) if isinstance(call_output, str) else call_output
                )
            else:
                dumps([call_input, call_output])
        except (ValueError, TypeError, RecursionError) as error:
            raise BadTests(f"{field!r}: test {number} of {name}: not valid JSON ({error})") from None
        if not isinstance(call_input, list):
            raise BadTests(f"{field!r}: test {number} of {name}: got {short(call_input)}; allowed: a list of arguments")
        arguments.append(call_input)
        results.append(call_output)
    return Calls(name, tuple(arguments), tuple(results), wrapped=not as_lines)


def _text(value: Any, field: str) -> str:
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str | int | float) for line in lines):
        raise BadTests(f"{field!r}: got {short(value)} as input or output; allowed: text, a number, or a list of lines")
    return "\n".join(map(str, lines))
