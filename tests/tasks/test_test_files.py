"""Test files of pytest and unittest as tests of programs, and packages in the sandbox."""

import sys

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards import code
from scalerl.training.rewards.checks import check_tests, sandbox_line
from scalerl.training.rewards.code import ProgramJudge
from scalerl.training.rewards.code_tests import BadTests, imports_of, read_tests
from scalerl.training.rewards.sandbox.detect import offer


@pytest.fixture(scope="module")
def judge():
    try:
        judge = ProgramJudge(Sandbox(packages=("pytest",), test_s=30.0))
    except ConfigError as error:
        pytest.skip(f"no sandbox here: {error}")
    yield judge
    judge.close()


PROGRAM = """
from collections import Counter
from enum import Enum
import json, sys

LIMIT = 3

class Negative(ValueError):
    def __init__(self, name, value):
        super().__init__(f"{name} is negative: {value}")

class Color(Enum):
    RED = 1
    BLUE = 2

class Vector:
    def __init__(self, *parts): self.parts = parts
    def __add__(self, other): return Vector(*[a + b for a, b in zip(self.parts, other.parts)])
    def __eq__(self, other): return self.parts == other.parts
    def __len__(self): return len(self.parts)
    def __getitem__(self, at): return self.parts[at]
    def __iter__(self): return iter(self.parts)
    def __contains__(self, part): return part in self.parts
    def __repr__(self): return f"Vector{self.parts}"

class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next

def add(a, b):
    if a < 0: raise Negative("a", a)
    return a + b
def mean(xs): return sum(xs) / len(xs)
def sort(xs): xs.sort()
def flip(rows):
    for row in rows: row.reverse()
def count(text): return Counter(text)
def parse(text): return json.loads(text)
def find(key): return {}[key]
def leave(): sys.exit(2)
def color(n): return Color(n)
def turn(node):
    last = None
    while node: node.next, last, node = last, node, node.next
    return last
"""

RIGHT = {
    "a function": "from solution import add\ndef test_add():\n    assert add(1, 2) == 3",
    "no import": "def test_add():\n    assert add(1, 2) == 3",
    "the module": "import solution\ndef test_add(): assert solution.add(1, 2) == 3",
    "all names, and those of the prelude": "from solution import *\ndef test_it(): assert count('ab') == Counter('ba')",
    "pytest imported and not used": "import pytest\nfrom solution import add\ndef test_add(): assert add(1, 2) == 3\n"
    "if __name__ == '__main__':\n    pytest.main()",
    "unittest": "import unittest\nfrom solution import add, Negative\nclass Add(unittest.TestCase):\n"
    "    def setUp(self): self.one = 1\n    def test_add(self): self.assertEqual(add(self.one, 2), 3)\n"
    "    def test_many(self):\n        for n in range(3):\n            with self.subTest(n=n):\n"
    "                self.assertEqual(add(n, n), 2 * n)\n"
    "    def test_negative(self):\n        with self.assertRaises(Negative): add(-1, 2)\n"
    "if __name__ == '__main__':\n    unittest.main()",
    "parametrize": "import pytest\nfrom solution import add\n@pytest.mark.parametrize('a,b,c', [(1, 2, 3), (2, 2, 4)])"
    "\n"
    "def test_add(a, b, c): assert add(a, b) == c",
    "fixtures": "import pytest\nfrom solution import add\n@pytest.fixture\ndef one(): return 1\n"
    "def test_add(one, capsys):\n    print('x')\n    assert add(one, 2) == 3 and capsys.readouterr().out == 'x\\n'",
    "approx": "from pytest import approx\nfrom solution import mean\n"
    "def test_mean(): assert mean([0.1, 0.2]) == approx(0.15)",
    "a built-in error": "import pytest\nfrom solution import mean, find\ndef test_errors():\n"
    "    with pytest.raises(ZeroDivisionError): mean([])\n"
    "    with pytest.raises(KeyError) as error: find('k')\n    assert str(error.value) == \"'k'\"\n"
    "    with pytest.raises(LookupError): find('k')",
    "an error of the program": "import pytest\nfrom solution import add, Negative\ndef test_errors():\n"
    "    with pytest.raises(Negative, match='a is negative: -1'): add(-1, 2)\n"
    "    with pytest.raises(ValueError, match='negative'): add(-1, 2)",
    "an error of a library": "import json, pytest\nfrom solution import parse\ndef test_errors():\n"
    "    with pytest.raises(json.JSONDecodeError): parse('{')",
    "the end of the program": "import pytest\nfrom solution import leave\ndef test_errors():\n"
    "    with pytest.raises(SystemExit): leave()",
    "an argument changed in place": "from solution import sort, flip\ndef test_it():\n    xs = [2, 1]\n    sort(xs)\n"
    "    rows = [[1, 2], [3, 4]]\n    first = rows[0]\n    flip(rows)\n"
    "    assert xs == [1, 2] and rows == [[2, 1], [4, 3]] and first == [2, 1]",
    "operators of a class": "from solution import Vector\ndef test_vector():\n    v = Vector(1, 2) + Vector(3, 4)\n"
    "    assert v == Vector(4, 6) and v != Vector(1, 2) and len(v) == 2 and v[1] == 6 and list(v) == [4, 6]\n"
    "    assert 4 in v and 5 not in v and str(v) == 'Vector(4, 6)' and isinstance(v, Vector)",
    "a linked list": "from solution import Node, turn\ndef test_turn():\n    node = turn(Node(1, Node(2)))\n"
    "    seen = []\n    while node:\n        seen.append(node.value)\n        node = node.next\n"
    "    assert seen == [2, 1]",
}


@pytest.mark.parametrize("name", list(RIGHT))
def test_a_right_program_passes_a_test_file(judge, name):
    judged = judge.verdict(PROGRAM, read_tests({"test": RIGHT[name]}))
    assert judged.passed, judged


def test_a_row_in_the_form_of_kodcode_is_judged_and_its_solution_passes(judge, monkeypatch):
    monkeypatch.setattr(code, "judge", lambda: judge)
    columns = {"question": "Add.", "solution": "def add(a, b):\n    return a + b", "test": RIGHT["parametrize"]}
    prompt = Prompt("0" * 16, "Add.", (1,), "", "code", columns, "data.jsonl line 1")
    answer = "```python\n{}\n```\nTest it:\n```python\nfrom solution import add\nassert add(1, 1) == 2\n```"
    assert code.verify(prompt, answer.format(columns["solution"])).passed
    assert not code.verify(prompt, answer.format("def add(a, b):\n    return a * b")).passed


@pytest.mark.parametrize(
    ("tests", "runner", "imports"),
    [
        (RIGHT["a function"], "functions", ()),
        (RIGHT["pytest imported and not used"], "functions", ()),
        (RIGHT["approx"], "pytest", ("pytest",)),
        (
            "import numpy as np\nfrom solution import f\ndef test_f(): assert f(np.ones(3)) == 3",
            "functions",
            ("numpy",),
        ),
        ("from solution import f\ndef test_f(tmp_path): assert f(str(tmp_path))", "pytest", ("pytest",)),
        ("assert f(1) == 2", "", ()),
    ],
)
def test_a_test_file_says_what_it_needs(tests, runner, imports):
    read = read_tests({"tests": tests})
    assert (read.runner, imports_of(read)) == (runner, imports)


def test_a_test_file_that_uses_nothing_of_the_program_is_refused():
    with pytest.raises(BadTests, match="call no function of the program"):
        read_tests({"tests": "def test_a():\n    assert 1 == 1"})


def rows(*tests):
    return [
        Prompt("0" * 16, "q", (1,), "", "code", {"tests": one}, f"data.jsonl line {number}")
        for number, one in enumerate(tests, start=1)
    ]


def test_a_package_that_tests_need_and_the_sandbox_lacks_is_one_line_at_the_start(judge):
    numpy = "import numpy\nfrom solution import f\ndef test_f(): assert f(1) == 2"
    prompts = rows("assert f(1) == 2", numpy, RIGHT["approx"], numpy)
    check_tests(prompts)
    with pytest.raises(ConfigError) as error:
        sandbox_line(Sandbox(), prompts)
    assert str(error.value).startswith("data.jsonl line 2: numpy is imported in the tests of 2 rows")
    assert "add 'numpy' to scoring.sandbox.packages" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"data.jsonl line 3: .*add 'pytest' to scoring.sandbox.packages"):
        sandbox_line(Sandbox(), prompts[:1] + prompts[2:3])
    assert sandbox_line(Sandbox(packages=("numpy", "pytest")), prompts).startswith("programs run in")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"packages": ["nosuchpackage"]},
            r"scoring.sandbox.packages: programs cannot import nosuchpackage .*ModuleNotFound",
        ),
        ({"python": "/nope/python"}, r"scoring.sandbox.python: '/nope/python' does not run as Python \(No such file"),
        ({"python": "/bin/cat"}, r"scoring.sandbox.python: '/bin/cat' does not run as Python \(it gave no version\)"),
    ],
)
def test_a_missing_package_or_another_python_is_one_line_at_the_start(judge, settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        offer(Sandbox(**settings))
    assert "\n" not in str(error.value)


def test_an_old_python_is_refused_with_its_version(judge, tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nprintf '3\\n8\\n/usr\\n/usr\\n'\n")
    old.chmod(0o755)
    with pytest.raises(ConfigError, match=r"a Python 3.8; allowed: the path of a Python 3.11 or newer"):
        offer(Sandbox(python=str(old)))


def test_packages_are_read_only_and_without_network(judge):
    program = """
import numpy, os
print(numpy.arange(4).sum())
for attempt in (lambda: open(os.path.join(os.path.dirname(numpy.__file__), "x.py"), "w"),
                lambda: __import__("socket").create_connection(("127.0.0.1", 1))):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__)
print(os.listdir("/tmp") if not {prefix!r}.startswith("/tmp") else [])
"""
    with_numpy = ProgramJudge(Sandbox(packages=("numpy",), test_s=30.0))
    try:
        printed = with_numpy.output(program.replace("{prefix!r}", repr(sys.prefix))).split("\n")
    finally:
        with_numpy.close()
    assert printed[:4] == ["6", "OSError", "PermissionError", "[]"], printed


def test_names_of_packages_are_modules():
    with pytest.raises(ValueError, match="packages"):
        Sandbox(packages=("numpy; import os",))
