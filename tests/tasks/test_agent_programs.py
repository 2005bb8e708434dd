"""Programs of agents: rewards, failures, time limits, what they may see, and that nothing outlives them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import runs

from scalerl.core.errors import ConfigError
from scalerl.core.types import AGENT, Prompt
from scalerl.training.config.data import AgentTask
from scalerl.training.config.overrides import build
from scalerl.training.config.run import RunConfig
from scalerl.training.prompts.sources import agent_rows
from scalerl.training.rewards import checks
from scalerl.training.rewards.agents import harness, launcher

KEY = "sk-of-this-rollout"


def run(*command, row=None, stopped=lambda: False, **changes):
    given = {"command": command} if command else {}
    settings = AgentTask(path="rows.jsonl", **given, **{"rollout_s": 20.0, **changes}).settings
    began = time.monotonic()
    return harness.run(settings, row or {}, "http://127.0.0.1:1/v1", KEY, lambda: time.monotonic() - began, stopped)


def python(code, **more):
    return run(sys.executable, "-c", code, **more)


def test_the_last_json_line_of_the_output_is_the_reward():
    report = python("print('{\"reward\": 0}'); print('{\"reward\": 0.5, \"steps\": 3}'); print('bye')")
    assert report == harness.ProgramEnd(0.5, {"steps": 3.0})


REWARDS = {
    '{"reward": -2, "won": true}': harness.ProgramEnd(-2.0, {"won": 1.0}),
    '[1]\n{"reward": 1}\nnot {json': harness.ProgramEnd(1.0),
    '{"reward": 0.25}\n\n  \n': harness.ProgramEnd(0.25),
    '{"rewards": [0, 0.25, 0.5], "steps": 3}': harness.ProgramEnd(0.75, {"steps": 3.0}, "", (0.0, 0.25, 0.5)),
    '{"rewards": [0.5, true], "reward": 4}': harness.ProgramEnd(4.0, {}, "", (0.5, 1.0)),
    '{"rewards": [], "reward": 4}': harness.ProgramEnd(4.0),
    '{"rewards": {"chatcmpl-3": 1, "cmpl-1": -0.5}}': harness.ProgramEnd(0.5, {}, "", {2: 1.0, 0: -0.5}),
}


@pytest.mark.parametrize("output", REWARDS)
def test_output_with_a_reward(output):
    assert harness.read_report(output, "agent") == REWARDS[output]


@pytest.mark.parametrize(
    "output",
    [
        "",
        '{"score": 1}',
        '{"reward": "high"}',
        '{"reward": NaN}',
        '{"reward": 1, "name": "x"}',
        '{"reward": 1, "reward": 2}',
        '{"rewards": []}',
        '{"rewards": null, "reward": 1}',
        '{"rewards": [1, [2]]}',
        '{"rewards": {"0": 1}}',
        '{"rewards": {"chatcmpl-1": "x"}}',
        '{"rewards": {"call_1_0": 1}, "reward": 1}',
        '{"rewards": {"chatcmpl-1": 1, "cmpl-1": 1}}',
    ],
)
def test_output_without_a_reward_says_what_is_allowed(output):
    report = harness.read_report(output, "agent")
    assert report.reward == 0 and "agent printed" in report.problem and '{"reward": 0.5}' in report.problem


def test_a_late_program_is_killed():
    report = python("import time; time.sleep(600)", rollout_s=0.5)
    assert "longer than data.rollout_s = 0.5 s" in report.problem
    report = python("import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: print('x' * 999)", rollout_s=0.5)
    assert "longer than" in report.problem


def test_a_rollout_that_is_no_longer_needed_ends_its_program():
    began = time.monotonic()
    python("import time; time.sleep(600)", stopped=lambda: time.monotonic() - began > 0.5)
    assert time.monotonic() - began < 300


SLEEP = f"time.sleep(99.{os.getpid()})"  # found by its text, so that tests may run several times at once
ESCAPES = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; SLEEP'], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        for fd in range(3): os.close(fd)
        os.execv(sys.executable, [sys.executable, '-c', 'import time; SLEEP'])
    os._exit(0)
print('{"reward": 1}', flush=True)
""".replace("SLEEP", SLEEP)


def sleepers():
    return [pid for pid in runs.everyone() if SLEEP in runs.command_of(pid)]


@pytest.fixture(params=[launcher.CONTAINED, launcher.SUPERVISED])
def kind(request, monkeypatch):
    """Run programs in a namespace, and as children."""
    if request.param == launcher.CONTAINED and harness.uncontained():
        pytest.skip(harness.uncontained())
    monkeypatch.setattr(harness, "kind_of_launcher", lambda: request.param)


@pytest.mark.usefixtures("kind")
def test_no_process_of_a_program_outlives_it():
    assert python(ESCAPES).reward == 1
    assert sleepers() == []
    assert "longer" in python(ESCAPES + "time.sleep(60)", rollout_s=1.5).problem
    assert sleepers() == []


ATTACKS = {
    "kills its parent": "os.kill(os.getppid(), 9)",
    "stops its parent": "os.kill(os.getppid(), 19)",
    "kills its parent after its reward": "print('{\"reward\": 1}', flush=True); os.kill(os.getppid(), 9)",
    "kills all that it may": "os.kill(-1, 9)",
    "adopts": "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.kill(os.getppid(), 9)",
}


@pytest.mark.skipif(bool(harness.uncontained()), reason=harness.uncontained())
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_program_in_a_namespace_cannot_end_what_supervises_it(attack):
    report = python(f"{ESCAPES}\n{attack}\n{SLEEP}", rollout_s=1.0)
    assert "longer than data.rollout_s = 1 s" in report.problem and sleepers() == []


@pytest.mark.skipif(bool(harness.uncontained()), reason=harness.uncontained())
def test_programs_in_namespaces_have_numbers_and_files_of_their_own_machine():
    code = """
import json, os
own = int(os.readlink('/proc/self'))
print(json.dumps({'reward': own == os.getpid(), 'seen': sum(n.isdecimal() for n in os.listdir('/proc')),
                  'user': os.getuid(), 'id': own, 'files': os.path.exists(os.getcwd())}))
"""
    one, two = python(code), python(code)
    assert (one.reward, one.metrics["seen"], one.metrics["user"], one.metrics["files"]) == (1, 2, os.getuid(), 1)
    assert one.metrics["id"] != two.metrics["id"]


def test_the_first_lines_of_a_run_say_that_programs_are_not_contained(monkeypatch):
    prompt = Prompt("0", "", (1,), "", "agent", {AGENT: {}})
    monkeypatch.setattr(checks, "uncontained", lambda: "no namespace of processes: Operation not permitted")
    (note,) = checks.containment_notes([prompt])
    assert "Operation not permitted" in note and "leaves its processes running" in note
    assert checks.containment_notes([Prompt("0", "", (1,), "", "agent", {})]) == []
    monkeypatch.setattr(checks, "uncontained", lambda: "")
    assert checks.containment_notes([prompt]) == []


@pytest.mark.usefixtures("kind")
def test_programs_end_when_the_process_that_runs_them_is_killed():
    paths = [os.path.dirname(runs.__file__), os.path.dirname(__file__)]
    code = f"import sys; sys.path[:0] = {paths!r}; import test_agent_programs as t;"
    code += f"t.run({sys.executable!r}, '-c', {ESCAPES + SLEEP!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    runs.wait_for(lambda: len(sleepers()) >= 3, what="the program")
    process.send_signal(signal.SIGKILL)
    process.wait()
    runs.wait_for(lambda: not sleepers(), what="the end of its processes")


def test_a_program_gets_no_variable_of_the_run_but_those_that_the_task_lists(monkeypatch):
    for name in ("WANDB_API_KEY", "HF_TOKEN", "MY_TOOL", "OPENAI_ORG_ID"):
        monkeypatch.setenv(name, "secret-of-the-trainer")
    code = "import os; print(sum(v == 'secret-of-the-trainer' for v in os.environ.values()));"
    code += "print('{\"reward\": ' + str(sum(v == 'secret-of-the-trainer' for v in os.environ.values())) + '}')"
    assert python(code).reward == 0
    assert python(code, environment=("MY_TOOL", "ABSENT")).reward == 1
    report = python("import os; assert os.environ['OPENAI_MODEL'] == 'mine'; print('{\"reward\": 1}')", model="mine")
    assert report.reward == 1


@pytest.fixture
def nurseries():
    """Yield the processes that have imported functions, by key; they end with the test."""
    yield harness._NURSERIES
    while harness._NURSERIES:
        _, nursery = harness._NURSERIES.popitem()
        nursery.close()
        nursery._process.wait()


def once(function, row=None, **changes):
    """Run a function of a process that has imported it, as episodes of verifiers are."""
    given = AgentTask(path="rows.jsonl", function=function, **{"rollout_s": 20.0, **changes}).settings
    began, settings = time.monotonic(), {**given, "imported_once": True}
    own_s = lambda: time.monotonic() - began  # noqa: E731
    return harness.run(settings, row or {}, "http://127.0.0.1:1/v1", KEY, own_s, lambda: False)


@pytest.mark.usefixtures("kind")
def test_a_function_that_is_imported_once_is_called_in_processes_of_its_own(user_code, nurseries):
    user_code(
        "warm_agent",
        """
        import os, random, sys, time
        imported, kept = os.getpid(), []
        def prepare(row):
            kept.append(row["number"])
        def run(row, base_url, api_key):
            assert base_url.endswith("/v1") and api_key == os.environ["OPENAI_API_KEY"] == row["key"]
            kept.append("of this call")
            values = {"same": imported % 1000003, "own": os.getpid(), "drawn": random.random(), "kept": len(kept)}
            return {"reward": row["number"], **values}
        run.prepare = prepare
        def broken(row, base_url, api_key):
            return {}["missing"]
        def leaves(row, base_url, api_key):
            os._exit(3)
        def dies(row, base_url, api_key):
            os.kill(os.getpid(), 11)
        def slow(row, base_url, api_key):
            time.sleep(60)
        def escapes(row, base_url, api_key):
            exec(row["code"])
            return 1
        """,
    )
    reports = [once("warm_agent:run", row={"number": number, "key": KEY}) for number in (1, 2, 3)]
    assert [report.reward for report in reports] == [1, 2, 3], reports
    seen = {name: {report.metrics[name] for report in reports} for name in ("same", "own", "drawn", "kept")}
    assert {name: len(values) for name, values in seen.items()} == {"same": 1, "own": 3, "drawn": 3, "kept": 3}
    assert "KeyError: 'missing'" in once("warm_agent:broken").problem
    assert "exit code 3" in once("warm_agent:leaves").problem
    assert "exit code 139" in once("warm_agent:dies").problem
    assert "has no function or class 'no'" in once("warm_agent:no").problem
    assert "longer than data.rollout_s = 0.5 s" in once("warm_agent:slow", rollout_s=0.5).problem
    assert once("warm_agent:escapes", row={"code": ESCAPES}).problem == "" and sleepers() == []


def test_the_process_of_an_imported_function_is_replaced_when_it_dies(user_code, nurseries):
    user_code("mortal_agent", "import os\ndef run(row, base_url, api_key):\n    return os.getppid() > 0\n")
    assert once("mortal_agent:run").reward == 1
    (first,) = nurseries.values()
    os.kill(first._process.pid, signal.SIGKILL)
    first._process.wait()
    assert once("mortal_agent:run").reward == 1 and [*nurseries.values()] != [first]


def test_rows_are_those_of_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "a", "n": 1}, {"prompt": "a", "n": 2}, {"task": "fix it"}, {"prompt": "a", "n": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, notes = agent_rows(AgentTask(command=("true",), path=str(path)), 0)
    assert [row.columns["row"] for row in found] == rows[:3] and len({row.id for row in found}) == 3
    assert found[0].prompt == "a" and "fix it" in found[2].prompt and "dropped 1 duplicate" in notes[0]
    with pytest.raises(ConfigError, match="no program 'no-such-agent'"):
        agent_rows(AgentTask(command=("no-such-agent",), path=str(path)), 0)
    path.write_text("")
    with pytest.raises(ConfigError, match=r"empty|no rows"):
        agent_rows(AgentTask(command=("true",), path=str(path)), 0)


def agent(**fields):
    return {"data": {"kind": "agent", "path": "rows.jsonl", **fields}, "model": {"kind": "hf", "path": "x"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "allowed: one of them"),
        ({"command": ["a"], "function": "b:c"}, "allowed: one of them"),
        ({"command": ["a"], "rollout_s": 0}, "rollout_s"),
        ({"command": ["a"], "model": ""}, "model"),
    ],
)
def test_bad_settings_are_errors(fields, words):
    with pytest.raises(ConfigError, match=words):
        build(RunConfig, agent(**fields), "a test")


def test_a_run_with_an_agent_takes_weights_on_arrival():
    from scalerl.training.placement.choices import schedule_name

    assert schedule_name(build(RunConfig, agent(command=["a"]), "a test")) == "eager"


def test_names_of_curves_are_those_of_the_programs():
    def name(**given):
        return AgentTask(path="x", **given).curve

    assert name(command=("python", "agents/solve.py", "--fast")) == "solve"
    assert name(command=("/usr/bin/agent",)) == "agent" and name(function="a.b:run") == "run"
    assert name(command=("a",), name="mine") == "mine"
