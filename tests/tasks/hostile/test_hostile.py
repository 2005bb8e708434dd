"""Hostile programs: they cannot escape from the sandbox, exceed its limits, or pass with wrong results."""

import os
import socket
import time
from functools import cache
from pathlib import Path

import pytest
from cheats import CALLS, OUTPUTS, SPIES, UNREADABLE
from escapes import ESCAPES
from floods import FLOODS
from texts import report_of

from scalerl.core.errors import ConfigError
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards.code import SANDBOX_START_S, ProgramJudge
from scalerl.training.rewards.code_tests import Calls, Checks, InputOutput
from scalerl.training.rewards.sandbox.box import Box
from scalerl.training.rewards.sandbox.detect import offer

SECRET = "the-users-own-secret"
SETTINGS = Sandbox(test_s=20.0, program_s=60.0, memory_mb=256)
HURRIED = Sandbox(test_s=1.0, program_s=5.0, memory_mb=256)
"""Short limits for programs that never end. Other programs may need more on a busy machine."""
ENDLESS = ("hangs in the call", "returns numbers without end", "forges verdicts without end")
DOUBLES = "def f(x): return 2 * x"


@pytest.fixture(scope="module")
def judge():
    try:
        judge = ProgramJudge(SETTINGS)
    except ConfigError as error:
        pytest.skip(f"no sandbox here: {error}")
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def hurried(judge):
    judge = ProgramJudge(HURRIED)
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def outside(tmp_path_factory, judge):
    """A secret of the user in a file and in the environment, and a socket that programs must not reach."""
    secret = tmp_path_factory.mktemp("home") / "secret.txt"
    secret.write_text(SECRET)
    os.environ["SCALERL_TEST_SECRET"] = SECRET
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield secret, server
    del os.environ["SCALERL_TEST_SECRET"]


@cache
def command():
    return offer(SETTINGS)


def reported(program):
    return report_of(command(), program)


@pytest.mark.parametrize("name", list(ESCAPES))
def test_an_escape_attempt_raises(judge, outside, name):
    if "platform.machine" in ESCAPES[name] and os.uname().machine != "x86_64":
        pytest.skip("the numbers of its system calls are those of x86-64")
    secret, server = outside
    attempt = ESCAPES[name].replace("{port}", str(server.getsockname()[1])).replace("{pid}", str(os.getpid()))
    attempt = attempt.replace("{secret!r}", repr(str(secret)))
    body = "\n".join("    " + line for line in attempt.splitlines())
    report = reported(f"try:\n{body}\nexcept BaseException as error:\n    print('held')\nelse:\n    print('ESCAPED')\n")
    assert report["output"] == b"held\n", report
    with pytest.raises(BlockingIOError):
        server.accept()  # no program has connected
    assert secret.read_text() == SECRET


def test_a_program_cannot_read_the_users_environment(judge, outside):
    report = reported("import os; print(dict(os.environ), len(os.environb))")
    assert report["status"] == 0 and SECRET.encode() not in report["output"]
    names = reported("import os; print(*sorted(os.environ))")["output"].split()
    assert set(names) <= {b"PWD", b"LC_CTYPE", b"OLDPWD"}


def test_a_program_sees_only_the_processes_of_its_sandbox(judge):
    others = (
        "import os\nalive = []\nfor n in range(1, 5000):\n"
        "    try: os.kill(n, 0); alive.append(n)\n    except ProcessLookupError: pass\nprint(len(alive))"
    )
    # the first process, the harness (if it is another process), and itself
    assert int(reported(others)["output"]) <= 3


def test_the_file_system_contains_only_python_and_the_system(judge):
    seen = set(reported("import os; print(*os.listdir('/'))")["output"].decode().split())
    prefix = {Path(os.path.realpath(os.sys.base_prefix)).parts[1], Path(os.sys.base_prefix).parts[1]}
    assert seen <= {"usr", "bin", "lib", "lib32", "lib64", "etc", "dev", "tmp", "guest"} | prefix
    assert reported("import os; print(*sorted(os.listdir('/dev')))")["output"] == b"null random urandom zero\n"


@pytest.mark.parametrize("name", list(FLOODS))
def test_a_program_that_exceeds_a_limit_is_stopped(judge, hurried, name):
    program, printed = FLOODS[name]
    began = time.monotonic()
    judged = (hurried if "took longer" in printed else judge).verdict(program, InputOutput(("6 7\n",), ("42",)))
    assert not judged.passed and printed in judged.reason, judged
    assert time.monotonic() - began < 60  # one second of CPU time; the rest is for a busy machine
    assert judge.verdict("print(6 * 7)", InputOutput(("",), ("42",))).passed


def test_the_cpu_time_of_a_program_is_limited_to_that_of_all_its_tests(judge):
    program = "import resource\ndef f(): return resource.getrlimit(resource.RLIMIT_CPU)"
    assert judge.verdict(program, Calls("f", ([],), ([62, 62],))).passed  # SETTINGS.program_s, and 2 s to be killed


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_a_wrong_output_does_not_pass(judge, name):
    assert not judge.verdict(OUTPUTS[name], InputOutput(("6 7\n",), ("42\n",))).passed


FORMS = {
    "calls": Calls("f", ([7],), (14,)),
    "assertions": Checks("", "assert f(7) == 14\nassert f(7) - 14 == 0 and 13 < f(7) < 15", ("f",)),
    "close": Checks("import math", "assert abs(f(7) - 14) < 1e-6 and math.isclose(f(7), 14)", ("f",)),
    "check": Checks("def f(x):\n    pass", "def check(candidate):\n    assert candidate(7) == 14", ("f",), "f"),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_a_right_function_passes_all_forms_of_tests_and_a_wrong_one_none(judge, form):
    assert judge.verdict(DOUBLES, FORMS[form]).passed
    assert not judge.verdict("def f(x): return 2 * x + 1", FORMS[form]).passed


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CALLS))
def test_a_function_that_cheats_passes_no_form_of_tests(judge, hurried, name):
    forms = ["calls", "check"] if name in ENDLESS else list(FORMS)
    verdicts = {form: (hurried if name in ENDLESS else judge).verdict(CALLS[name], FORMS[form]) for form in forms}
    assert [form for form, found in verdicts.items() if found.passed] == []


@pytest.mark.parametrize("name", list(UNREADABLE))
def test_a_result_that_cannot_be_read_is_a_wrong_result_and_costs_no_time_outside(hurried, name):
    for form in ("calls", "check"):
        began = time.monotonic()
        assert not hurried.verdict(UNREADABLE[name], FORMS[form]).passed, form
        assert time.monotonic() - began < HURRIED.program_s + SANDBOX_START_S + 60  # the rest is for a busy machine


def test_a_function_cannot_end_a_loop_of_the_tests_early(judge):
    tests = Checks("", "for got, wanted in zip(map(f, [7, 8]), [14, 16]):\n    assert got == wanted", ("f",))
    assert judge.verdict(DOUBLES, tests).passed
    for ends in ("StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit"):
        assert not judge.verdict(f"def f(x): raise {ends}", tests).passed


MARK = "expected-" + "7e1f" * 3
SEARCH = """
def search():
    mark = "expec" + str("ted-")
    for seen in found():
        text = seen.decode("latin-1") if isinstance(seen, (bytes, bytearray)) else seen if isinstance(seen, str) else ""
        at = text.find(mark)
        while at >= 0:
            if text[at + 9 : at + 13] == "7" + "e1f": return text[at : at + 21]
            at = text.find(mark, at + 1)
"""


@pytest.mark.parametrize("name", list(SPIES))
def test_a_program_cannot_find_the_expected_values(judge, name):
    spy = f"{SPIES[name]}\n{SEARCH}\nf = lambda x: search()\n"
    for tests in (
        Calls("f", ([MARK],), (MARK,)),  # if the value is an argument, the search finds it
        Calls("f", (["question"],), (MARK,)),
        Checks("", f"assert f('question') == {MARK!r}", ("f",)),
        Checks("", f"def check(candidate):\n    wanted = {MARK!r}\n    assert candidate('q') == wanted", ("f",), "f"),
    ):
        judged = judge.verdict(spy, tests)
        if name == "stack" and isinstance(tests, Calls) and tests.arguments == ([MARK],):
            assert judged.passed, judged
        elif not (isinstance(tests, Calls) and tests.arguments == ([MARK],)):
            assert not judged.passed, judged
    on_input = f"{SPIES[name]}\n{SEARCH}\nprint(search())"
    assert not judge.verdict(on_input, InputOutput(("question\n",), (MARK,))).passed


def test_expected_values_never_enter_the_sandbox_of_a_program(judge, monkeypatch):
    """Searches all bytes sent to a program's process for the expected values."""
    sent = []
    send = Box.send
    monkeypatch.setattr(Box, "send", lambda self, *words: (sent.append((id(self), words[1])), send(self, *words))[1])
    wanted = "expected-7e1f"
    program = "print(input())"
    judge.verdict(program, InputOutput(("question",), (wanted,)))
    judge.verdict("def f(x): return x", Calls("f", (["question"],), (wanted,)))
    assert len(sent) >= 4 and all(wanted.encode() not in data for _, data in sent)
    sent.clear()
    judge.verdict("def f(x): return x", Checks("", f"assert f('question') == {wanted!r}", ("f",)))
    with_program = {box for box, data in sent if b"return x" in data}
    assert len(with_program) == 1
    told = [data for box, data in sent if box in with_program]
    assert any(b"question" in data for data in told) and all(wanted.encode() not in data for data in told)


@pytest.mark.slow
def test_no_process_of_a_program_outlives_it(hurried):
    before = _children()
    for name in ("spins", "ignores signals", "leaves a thread"):
        hurried.verdict(FLOODS[name][0], InputOutput(("",), ("42",)))
    deadline = time.monotonic() + 10
    while len(_children()) > len(before) + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(_children()) <= len(before) + 2  # two are started in advance for the next program


def _children():
    """Return the sandboxes of this process."""
    names = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = place.read_text()
        except OSError:
            continue
        if text.rpartition(")")[2].split()[1] == str(os.getpid()) and "(bwrap)" in text:
            names.append(place.parent.name)
    return names
