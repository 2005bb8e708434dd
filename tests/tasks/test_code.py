"""Programs as answers: extraction of the program, forms of tests, and comparison of outputs."""

import base64
import json
import pickle
import time
import tracemalloc
import zlib
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards import code, code_tests
from scalerl.training.rewards.base import Verdict
from scalerl.training.rewards.code import ProgramJudge
from scalerl.training.rewards.code_answer import difference, program_of, value_difference, with_prompt
from scalerl.training.rewards.code_tests import BadTests, Calls, Checks, InputOutput, read_tests
from scalerl.training.rewards.sandbox.guest.plain import as_json, dumps


@pytest.fixture(scope="module")
def judge():
    try:
        judge = ProgramJudge(Sandbox(test_s=5.0))
    except ConfigError as error:
        pytest.skip(f"no sandbox here: {error}")
    yield judge
    judge.close()


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("First:\n```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```\nDone.", "print(2)\n"),
        ("```python\nprint(1)\n```\nIt prints:\n```\n1\n```", "print(1)\n"),
        ("```python\nprint(0)\n```</think>```py\nprint(1)\n```", "print(1)\n"),
        ("```python3 title=a.py\nprint('``' + '`')\n```", "print('``' + '`')\n"),
        ("print(1)", "print(1)"),
        ("```cpp\nint main() {}\n```", None),
        ("<think>```python\nprint(1)\n```</think>", None),
    ],
)
def test_the_program_is_the_last_python_block_after_the_thinking(completion, program):
    assert program_of(completion) == program


DEFINED = "def inc(x):\n    return x + 1\n"
METHOD = "class Solution:\n    def inc(self, x: int) -> int:\n        return x + 1\n"


@pytest.mark.parametrize("program", [DEFINED, METHOD])
@pytest.mark.parametrize("demo", ["print(inc(4))", "sol = Solution()\nprint(sol.inc(4))"])
@pytest.mark.parametrize("mark", ["python", ""])
def test_the_block_that_defines_the_function_counts_not_its_demonstration(program, demo, mark):
    text = f"```{mark}\n{program}```\nUsage:\n```{mark}\n{demo}\n```\nOutput:\n```\n5\n```"
    assert program_of(text, ["inc"]) == program
    later = f"{text}\nBetter:\n```{mark}\n# better\n{program}```\n"
    assert program_of(later, ["inc"]) == f"# better\n{program}"


@pytest.mark.parametrize(
    ("got", "wanted", "tolerance", "same"),
    [
        ("0.30000000000000004", "0.3", 0.0, True),
        ("0.30000000000000104", "0.3", 0.0, False),
        ("0.3000001", "0.3", 1e-6, True),
        ("0.30001", "0.3", 1e-6, False),
        ("1000000.5", "1000000", 1e-6, True),
        ("1000002", "1000000", 1e-6, False),
        ("30000000000000004", "30000000000000000", 0.0, False),
        ("yes", "no", 0.5, False),
    ],
)
def test_floats_are_compared_with_the_tolerance_of_their_row(got, wanted, tolerance, same):
    assert (difference(got, wanted, tolerance) is None) is same


def test_a_tolerance_holds_for_values_at_any_depth_and_must_be_a_number():
    assert value_difference([0.1 + 0.2, {"a": 1}], [0.3, {"a": 1}], tolerance=1e-9) is None
    assert value_difference([0.1 + 0.2], [0.3]) and value_difference([2], [1], tolerance=0.9)
    tests = {"inputs": ["1"], "outputs": ["0.3"]}
    assert read_tests({"tests": tests, "float_tolerance": 1e-6}).tolerance == 1e-6
    assert read_tests({"tests": tests}).tolerance == 0
    with pytest.raises(BadTests, match=r"float_tolerance.*got 'x'"):
        read_tests({"tests": tests, "float_tolerance": "x"})


def test_programs_use_the_classes_of_contest_sites_and_long_integers(judge):
    tree = "class Solution:\n    def f(self, root: Optional[TreeNode]) -> int:\n        return TreeNode(3).val\n"
    assert judge.verdict(tree, Calls("f", ([1],), (3,))).passed
    linked = "def f(x):\n    return ListNode(1, ListNode(2)).next.val\n"
    assert judge.verdict(linked, Calls("f", ([1],), (2,))).passed
    assert judge.verdict("print(2**20000)", InputOutput(("",), (_power(20000),))).passed
    assert judge.verdict("print(int(input()) + 1)", InputOutput(("9" * 5000,), ("1" + "0" * 5000,))).passed


def _power(exponent):
    from decimal import localcontext

    with localcontext() as context:
        context.prec = 7000
        return f"{Decimal(2) ** exponent:f}"


PROMPT = 'from typing import List\n\ndef helper(x): return 2 * x\n\ndef f(x: List[int]):\n    """Doubles."""\n'


@pytest.mark.parametrize(
    "completion",
    [
        "    return [helper(i) for i in x]\n",
        "```python\n    return [helper(i) for i in x]\n```",
        "```python\nfrom __future__ import annotations\ndef f(x): return [2 * i for i in x]\n```",
    ],
)
def test_an_answer_may_continue_the_prompt_or_replace_the_function(judge, completion):
    test = "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n    assert helper(3) == 6"
    tests = read_tests({"test": test, "entry_point": "f", "prompt": PROMPT})
    judged = judge.verdict(with_prompt(completion, PROMPT, "f"), tests)
    assert judged == Verdict(True, 1.0, "passed: the checks, with 1 calls")


def test_the_code_of_a_chat_prompt_is_its_block():
    chat = [{"role": "user", "content": f"Complete this:\n```python\n{PROMPT}```"}]
    assert with_prompt("```python\ndef f(x): return x\n```", chat, "f") == f"{PROMPT}\n\ndef f(x): return x\n"


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        (" 1 2 \n3\n\n", "1 2\n3", True),
        ("1  2", "1 2", True),
        ("1.0 2", "1 2.00", True),
        ("1e3", "1000", True),
        ("0.333", "0.33", False),
        ("50000000000000001", "50000000000000000", False),
        ("1\n\n2", "1\n2", False),
        ("1 2", "1 2 3", False),
        ("Yes", "YES", False),
        ("nan", "nan", True),
        ("inf", "Infinity", False),
        ("٧", "7", False),
        ("0010", "10", False),
        ("00:30", "0:30", False),
        ("0.50", "0.5", True),
        ("00.5", "0.5", False),
        ("1_0", "10", False),
        ("", "7", False),
    ],
)
def test_outputs_are_compared_as_livecodebench_does(got, wanted, same):
    assert (difference(got, wanted) is None) is same


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        ((1, (2, 3)), [1, [2, 3]], True),
        ({1: (2,)}, {"1": [2]}, True),
        (1.0, 1, True),
        ("1", 1, False),
        (0.1 + 0.2, 0.3, False),
        (float("nan"), float("nan"), False),
        ([5], 5, False),
        ([Fraction(1, 2), Decimal("7")], [0.5, 7], True),
        (Decimal(2**60 + 1), 2**60 + 1, True),
        (Decimal(2**60 + 1), 2**60, False),
    ],
)
def test_values_are_compared_as_json(got, wanted, same):
    assert (value_difference(as_json(got), wanted) is None) is same


@pytest.mark.parametrize("value", [{1, 2}, object(), Decimal("0.1"), [iter([])]])
def test_values_that_json_does_not_have_are_not_compared(value):
    with pytest.raises(TypeError, match="not JSON"):
        as_json(value)


def test_a_wrapped_result_also_matches_its_content():
    for got, wanted, same in ((5, [5], True), ([5], [5], True), (5, [6], False), (5, [5, 6], False)):
        assert (value_difference(got, wanted, wrapped=True) is None) is same


def test_a_line_without_end_is_not_searched_again_and_again():
    began = time.process_time()
    assert program_of("```" + "a" * 300_000) is None
    assert difference(" ".join(["1" * 1000] * 1000), " ".join(["2"] * 1000))
    assert time.process_time() - began < 5  # measured: 0.01 s; with backtracking 40 s


PAIRS = InputOutput(("3 4\n",), ("7\n",))
ADDS = Calls("add", ([3, 4],), (7,))
CALL = {"input": "3\n4", "output": "7"}


@pytest.mark.parametrize(
    ("columns", "tests"),
    [
        ({"tests": '{"inputs": ["3 4\\n"], "outputs": ["7\\n"], "fn_name": null}'}, PAIRS),
        ({"input_output": '{"inputs": ["3 4\\n"], "outputs": ["7\\n"]}'}, PAIRS),
        ({"tests": [{"input": "3 4\n", "output": "7\n", "testtype": "stdin"}]}, PAIRS),
        ({"tests": {"inputs": ["3\n4"], "outputs": ["7"], "fn_name": "add"}}, ADDS),
        (
            {"tests": {"inputs": [[3, 4]], "outputs": [7], "fn_name": "add"}},
            Calls("add", ([3, 4],), (7,), wrapped=True),
        ),
        ({"tests": json.dumps([{**CALL, "type": "functional", "metadata": {"func_name": "add"}}])}, ADDS),
        (
            {"public_test_cases": json.dumps([{**CALL, "testtype": "functional"}]), "metadata": '{"func_name": "add"}'},
            ADDS,
        ),
        ({"tests": ["assert add(3, 4) == 7"]}, Checks("", "assert add(3, 4) == 7", ("add",))),
        ({"tests": "assert add(3, 4) == 7"}, Checks("", "assert add(3, 4) == 7", ("add",))),
        (
            {"test_list": ["assert add(3, 4) == 7"], "test_imports": ["import math"], "test_setup_code": "x = 1"},
            Checks("import math\nx = 1", "assert add(3, 4) == 7", ("add",)),
        ),
        (
            {"tests": {"test": "def check(c): assert c(3, 4) == 7", "entry_point": "add"}, "prompt": "Add."},
            Checks("", "def check(c): assert c(3, 4) == 7", ("add",), "add"),
        ),
    ],
)
def test_tests_are_read_in_the_forms_of_public_data_sets(columns, tests):
    assert read_tests(columns) == tests


def test_hidden_tests_of_livecodebench_are_unpacked_without_running_code():
    public = json.dumps([{"input": "1 1\n", "output": "2\n", "testtype": "stdin"}])
    hidden = json.dumps([{"input": "3 4\n", "output": "7\n", "testtype": "stdin"}])

    def packed(value):
        return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()

    columns = {"public_test_cases": public, "private_test_cases": packed(hidden)}
    assert read_tests(columns) == InputOutput(("1 1\n", "3 4\n"), ("2\n", "7\n"))
    for other in (OrderedDict(a=1), b"7", ["7", "7"], 7):
        with pytest.raises(BadTests, match="a pickle of other things than a text"):
            read_tests({**columns, "private_test_cases": packed(other)})


def test_hidden_tests_that_are_damaged_are_refused_and_large_ones_are_not_unpacked_whole(monkeypatch):
    public = json.dumps([{"input": "1 1\n", "output": "2\n"}])
    whole = pickle.dumps(json.dumps([{"input": "3 4\n", "output": "7\n"}]))
    for data in (*(whole[:size] for size in range(len(whole))), b"\x80\x04X\xff\xff\xff\xff", b"r\xff\xff\xff\xff"):
        text = base64.b64encode(zlib.compress(data)).decode()
        with pytest.raises(BadTests, match="private_test_cases"):
            read_tests({"public_test_cases": public, "private_test_cases": text})
    bomb = base64.b64encode(zlib.compress(b"1" * 50_000_000)).decode()
    monkeypatch.setattr(code_tests, "MOST_UNPACKED", 1 << 20)
    tracemalloc.start()
    try:
        for text in (bomb, bomb[:100], bomb[1:], "é", "7", "[" * 100_000, "[" + "9" * 5000 + "]"):
            with pytest.raises(BadTests, match="private_test_cases"):
                read_tests({"public_test_cases": public, "private_test_cases": text})
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
COLUMNS = {
    "tests": ["assert f(1) == 2"],
    "test": "def check(c): c(1)",
    "entry_point": "f",
    "test_list": ["assert f(1) == 2"],
    "test_imports": ["import math"],
    "test_setup_code": "x = 1",
    "input_output": {"inputs": ["1"], "outputs": ["2"], "fn_name": "f"},
    "public_test_cases": [{"input": "1", "output": "2", "testtype": "functional"}],
    "private_test_cases": [{"input": [1], "output": 2, "metadata": {"func_name": "f"}}],
    "metadata": {"func_name": "f"},
    "prompt": [{"role": "user", "content": "def f(x):"}],
}


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_any_values_in_the_columns_of_tests_are_tests_or_a_known_error(data):
    """Replaces values at random places of valid columns, some of which are JSON text."""

    def changed(value):
        if data.draw(st.integers(0, 5)) == 0:
            value = data.draw(JSON_VALUES)
        elif isinstance(value, dict):
            value = {key: changed(item) for key, item in value.items()}
        elif isinstance(value, list):
            value = [changed(item) for item in value]
        return json.dumps(value, default=str) if data.draw(st.integers(0, 5)) == 0 else value

    named = data.draw(st.sets(st.sampled_from(list(COLUMNS))))
    columns = {name: changed(COLUMNS[name]) for name in COLUMNS if name in named}
    try:
        parsed = read_tests(columns)
    except BadTests:
        return
    if isinstance(parsed, Calls):
        dumps([*parsed.arguments, *parsed.results])


@pytest.mark.parametrize("digits", [1000, 5000])
def test_expected_integers_may_have_as_many_digits_as_python_prints(digits):
    """Results such as the 1000th Fibonacci number occur in public sets."""
    columns = {"tests": {"inputs": ["1"], "outputs": ["9" * digits], "fn_name": "f"}}
    if digits > 4300:
        with pytest.raises(BadTests, match="'tests': test 1 of f"):
            read_tests(columns)
    else:
        assert read_tests(columns).results == (10**digits - 1,)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tests": "{broken"}, "'tests'.*JSON"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"tests": {"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}}, "test 1 of f"),
        ({"tests": [{"input": "1"}]}, "test 1 has 'input'"),
        ({"tests": ["assert f(1) =="]}, "assertion 1"),
        ({"tests": {"test": "def check(c): 0", "entry_point": "f()"}}, "'entry_point'"),
        ({"tests": [{"input": "1", "output": "1", "testtype": "functional"}]}, "not named"),
    ],
)
def test_unreadable_tests_are_reported_with_their_field(columns, message):
    with pytest.raises(BadTests, match=message):
        read_tests(columns)


@pytest.mark.parametrize(
    ("program", "tests", "reason"),
    [
        ("def f(x): return x", ["assert f(1) == 2"], "AssertionError"),
        ("def f(x): return [].pop()", ["assert f(1) == 2"], "IndexError"),
        ("x = 1", ["assert f(1) == 2"], "NameError"),
        ("def f(g): return g(1)", ["assert f(lambda x: x) == 1"], "plain data"),
    ],
)
def test_a_failed_assertion_is_reported_with_its_reason(judge, program, tests, reason):
    judged = judge.verdict(program, read_tests({"tests": tests}))
    assert not judged.passed and reason in judged.reason, judged


def test_a_check_that_never_calls_the_program_fails(judge):
    tests = Checks("", "def check(candidate):\n    pass", ("f",), "f")
    assert judge.verdict("def f(x): return x", tests).reason == "the tests never called the program"


def test_a_method_of_solution_may_use_the_names_that_leetcode_provides(judge):
    program = "class Solution:\n    def add(self, a: List[int], b: Optional[int]) -> int:\n        return sum(a) + b"
    tests = read_tests({"tests": {"inputs": ["[1, 2]\n4", "[]\n0"], "outputs": ["7", "0"], "fn_name": "add"}})
    assert judge.verdict(program, tests) == Verdict(True, 1.0, "passed: 2 tests")


def test_a_large_input_and_output_are_transferred(judge):
    text = "x" * 1_000_000 + "\n"
    assert judge.verdict("print(input())", InputOutput((text,), (text,))).passed


def test_the_verifier_takes_program_and_tests_from_the_row(judge, monkeypatch):
    monkeypatch.setattr(code, "judge", lambda: judge)
    prompt = Prompt("0" * 16, "q", (1,), "", "code", {"tests": {"inputs": ["3 4"], "outputs": ["7"]}})
    right = "<think>hm</think>```python\nprint(sum(map(int, input().split())))\n```"
    assert code.verify(prompt, right).passed
    assert not code.verify(prompt, "7").passed and not code.verify(prompt, "no idea").passed
    check = {"test": "def check(candidate):\n    assert candidate([1]) == [2]", "entry_point": "f", "prompt": PROMPT}
    continued = Prompt("0" * 16, PROMPT, (1,), "", "humaneval", check)
    body = "    return [{} * i for i in x]\n"  # a base model continues the prompt
    assert [code.verify(continued, body.format(factor)).passed for factor in (2, 3)] == [True, False]
