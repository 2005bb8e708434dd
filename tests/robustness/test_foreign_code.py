"""All kinds of plug-ins with all faults: each gives one message with the cause, the allowed values and the place."""

import concurrent.futures
import os
import random
import re
import signal
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import torch

from robustness.faulty_code import IMPORTS, MODULE
from scalerl.config import Scoring
from scalerl.config.base import replace
from scalerl.config.data import CustomTask, RewardFunction
from scalerl.config.recipe import SCALERL, Custom
from scalerl.core import plugins
from scalerl.core.errors import ConfigError
from scalerl.learn.custom import check_functions
from scalerl.rollouts.custom import make_engine
from scalerl.tasks import checks, custom, user_rewards
from scalerl.tasks.checks import check_reward
from scalerl.types import Prompt

ROW = Prompt("0" * 16, "2+2=", (1,), "4", "math", {"answer": "4"}, where="prompts.jsonl, line 1")


@pytest.fixture(autouse=True)
def module(user_code, monkeypatch):
    user_code("faulty_functions", MODULE)
    for name, text in IMPORTS.items():
        user_code(name, text)
    monkeypatch.setenv("SCALERL_IMPORT_S", "2")
    monkeypatch.setattr(checks, "FunctionScorer", here)
    yield
    for name in ("faulty_functions", *IMPORTS):
        sys.modules.pop(name, None)


def here(function, pass_reward, settings, params):
    """Call a reward function in this process; tests/tasks/test_reward_check.py tests separate processes."""

    def rewards(prompt, completions):
        return user_rewards.call_by_name(function, [prompt] * len(completions), completions, params)

    return SimpleNamespace(rewards=rewards, close=lambda: None)


def check(kind, name):
    """Check a plug-in like the start of a run."""
    if kind == "task":
        custom.rows(CustomTask(function=name), 4)
    elif kind == "reward":
        check_reward(RewardFunction(function=name), ROW, Scoring())
    elif kind == "engine":
        make_engine(Custom(function=name), None)
    else:
        check_functions(replace(SCALERL, **{kind: Custom(function=name)}))


FIELDS = {
    "loss": "recipe.loss.function",
    "advantage": "recipe.advantage.function",
    "aggregation": "recipe.aggregation.function",
    "task": "data.function",
    "reward": "data.reward",
    "engine": "placement.engine.function",
}
NAMES = [
    ("faulty_functions", "got 'faulty_functions'; allowed: package.module:function"),
    (
        "no_such_module:f",
        r"cannot import 'no_such_module' from .* \(No module named .*; allowed: a module in the",
    ),
    ("no_python:f", r"cannot import 'no_python' from .* \(invalid syntax .*\(/.*no_python.py:1\)"),
    ("no_indent:f", r"expected an indented block .*\(/.*no_indent.py:2\)"),
    ("needs_more:f", r"No module named 'a_module_that_is_not_there' \(/.*needs_more.py:2\)"),
    ("needs_name:f", r"raised ImportError: cannot import name 'no_such_name'.*needs_name.py:1\)"),
    ("at_import_exits:f", r"it calls sys.exit\(0\) \(/.*at_import_exits.py:2\)"),
    ("at_import_leaves:f", r"called os._exit\(0\) \(/.*at_import_leaves.py:2\)"),
    ("at_import_raises:f", r"raised KeyError: 'limit' \(/.*at_import_raises.py:1\)"),
    ("at_import_odd:f", r"raised Odd: odd \(/.*at_import_odd.py:2\)"),
    ("faulty_functions:exit", r"has no function 'exit' \(did you mean 'exits'\?\)"),
    ("faulty_functions:number", "faulty_functions:number is 3; allowed: a function or a class"),
]


@pytest.mark.parametrize(
    ("kind", "name", "pattern"), [*(("loss", *case) for case in NAMES), *((kind, *NAMES[1]) for kind in FIELDS)]
)
def test_a_missing_function_is_refused_with_its_field(kind, name, pattern):
    with pytest.raises(ConfigError, match=f"{FIELDS[kind]}: .*{pattern}"):
        check(kind, name)


HERE = r"\(.*faulty_functions.py:\d+\)"
EXPECTED = {
    "loss": "expected loss_BT, or \\(loss_BT, clipped_BT\\), of the shape of logp_BT, \\(6, 5\\)",
    "advantage": "expected finite advantages_PG of the shape of rewards_PG, \\(2, 3\\), in floating point",
    "aggregation": "expected weights_BT of the shape of mask_BT, \\(6, 5\\)",
}
FAULTS = [
    ("loss", "other_arguments", r"must take \(logp_BT, behavior_BT, advantages_B, mask_BT\); too many positional"),
    ("advantage", "other_arguments", r"must take \(rewards_PG\); missing a required argument: 'wanted_2'"),
    ("aggregation", "other_arguments", r"must take \(mask_BT, prompt_B\); missing a required .*'wanted_3'"),
    ("reward", "other_arguments", r"must take \(prompts, completions, \*\*columns\) by name; missing a required"),
    ("task", "TaskOfOtherRows", r"TaskOfOtherRows.rows must take \(count\); too many positional"),
    ("task", "TaskOfOtherScore", r"TaskOfOtherScore.score must take \(row, completion\); too many positional"),
    *((kind, "raises", f"faulty_functions:raises raised KeyError: 'gone' {HERE}") for kind in FIELDS if kind != "task"),
    ("loss", "raises_in_torch", f"raised RuntimeError: .* {HERE}"),
    ("loss", "exits", f"raised SystemExit: 0 {HERE}"),
    ("loss", "leaves", rf"called os._exit\(0\) {HERE}"),
    ("loss", "leaves_posix", rf"called os._exit\(0\) {HERE}"),
    ("loss", "endless", f"raised RecursionError: .* {HERE}"),
    ("loss", "own_base", f"raised Odd: odd {HERE}"),
    ("loss", "unsaid", rf"raised Unsaid: \(its __str__ raises KeyError\) {HERE}"),
    ("loss", "interrupted_text", rf"raised ValueError: one twox+\.\.\. {HERE}"),
    ("loss", "hidden", r"a Hidden \(its repr raises KeyError\)"),
    ("task", "TaskOfText", "returned '1'; allowed: a number from 0 to 1"),
    ("task", "TaskExits", f"TaskExits.score raised SystemExit: 0 {HERE}"),
    ("task", "TaskLeaves", rf"TaskLeaves.rows called os._exit\(0\) {HERE}"),
    ("task", "TaskOfLambdas", "a row that cannot be sent to other processes .*; allowed: rows of plain values"),
    ("task", "TaskOfHalves", "row 0 of .* allowed: a dict with `prompt`, text or"),
    ("task", "TaskOfOne", "made 1 distinct prompts; allowed: at least 4"),
    *(
        ("reward", name, "allowed: a list with a number for each completion")
        for name in ("a_dict", "column", "an_array_scalar")
    ),
    *(
        ("reward", name, "allowed: a finite number for each completion")
        for name in ("huge_integer", "infinite", "nested", "texts")
    ),
    ("reward", "huge", r"returned 1e\+300; allowed: numbers from -1e\+09 to 1e\+09; scale them"),
    ("reward", "too_few", "returned 1 rewards for 2 completions"),
    ("reward", "counts", "returned 3 or more rewards for 2 completions"),
    ("reward", "raises_late", f"raises_late raised KeyError: 'gone' {HERE}"),
    ("task", "TaskRaisesMade", f"TaskRaisesMade raised KeyError: 'gone' {HERE}"),
    ("task", "TaskRaisesRow", f"TaskRaisesRow.rows raised KeyError: 'gone' {HERE}"),
    ("task", "TaskRaisesScore", f"TaskRaisesScore.score raised KeyError: 'gone' {HERE}"),
    *((kind, "none", f"returned None; {pattern}") for kind, pattern in EXPECTED.items()),
    ("loss", "text", f"returned '0.5'; {EXPECTED['loss']}"),
    ("loss", "a_list", f"returned \\[\\[0.0, 0.0, 0.0\\], .*; {EXPECTED['loss']}"),
    ("loss", "one_entry", f"\\(torch.float32\\) of shape \\(1,\\); {EXPECTED['loss']}"),
    ("reward", "none", "returned None; allowed: a list with a number for each completion"),
    ("reward", "nan", "returned nan; allowed: a finite number for each completion"),
    ("task", "TaskNone", "TaskNone.rows returned None; allowed: rows, each a dict with `prompt`"),
    ("task", "TaskNoneScore", "TaskNoneScore.score returned None; allowed: a number from 0 to 1"),
    ("task", "TaskNan", "returned nan; allowed: a number from 0 to 1"),
    ("loss", "nan", "returned a loss that is not finite"),
    ("advantage", "nan", r"\(torch.float32, 6 entries not finite\) of shape \(2, 3\); expected finite"),
    ("aggregation", "nan", "weights that sum to nan"),
    ("aggregation", "negative", "at least 0, zero outside the mask"),
    ("loss", "whole_numbers", "returned a loss_BT of torch.int64 and a clipped_BT of torch.bool; expected a floating"),
    ("loss", "float_capped", "a clipped_BT of torch.float32; expected a floating-point loss_BT and a clipped_BT of"),
    ("advantage", "whole_numbers", r"\(torch.int64\) of shape \(2, 3\); expected finite .*, in floating point"),
    ("aggregation", "whole_numbers", r"\(torch.int64\) of shape \(6, 5\); expected weights_BT"),
]


@pytest.mark.parametrize(("kind", "name", "pattern"), FAULTS)
def test_a_faulty_plug_in_is_refused_at_the_start_with_the_expected_value(kind, name, pattern):
    with pytest.raises(ConfigError, match=pattern):
        check(kind, f"faulty_functions:{name}")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("task", "Task"),
        ("task", "TaskOfNumpy"),
        ("task", "TaskWrites"),
        *(("reward", name) for name in ("truths", "numpy_scalars", "an_array", "a_tensor", "generated")),
        ("engine", "Engine"),
    ],
)
def test_a_correct_plug_in_passes(kind, name):
    check(kind, f"faulty_functions:{name}")


@pytest.mark.parametrize("name", ["at_import_loops", "at_import_sleeps"])
@pytest.mark.parametrize("seconds", ["0.2"])
def test_an_import_that_does_not_end_is_refused_after_its_limit(name, seconds, monkeypatch):
    monkeypatch.setenv("SCALERL_IMPORT_S", seconds)
    with pytest.raises(
        ConfigError, match=rf"the import took longer than 0.2 s \(/.*{name}.py:\d\); SCALERL_IMPORT_S=N"
    ):
        plugins.load_function(f"{name}:f", "recipe.loss.function")


@pytest.mark.parametrize("kind", ["loss", "advantage", "aggregation"])
def test_a_function_that_does_not_return_on_the_made_up_batch_is_refused(kind, monkeypatch):
    monkeypatch.setattr("scalerl.learn.custom.START_S", 0.2)
    with pytest.raises(ConfigError, match=f"faulty_functions:loops took longer than 0.2 s {HERE}"):
        check(kind, "faulty_functions:loops")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Engine", f"Engine.poll raised KeyError: 'slot' {HERE}"),
        ("EngineLeaves", rf"EngineLeaves.poll called os._exit\(0\) {HERE}"),
        ("EngineExits", f"EngineExits.poll raised SystemExit: 0 {HERE}"),
        ("EngineLoops", f"EngineLoops.poll raised RecursionError: .* {HERE}"),
    ],
)
def test_a_failing_method_of_an_engine_is_reported_with_its_line(name, pattern):
    engine = make_engine(Custom(function=f"faulty_functions:{name}"), None)
    with pytest.raises(plugins.PluginError, match=pattern):
        engine.poll(0.0)


def state():
    """Return the state of this process that the user's code must not change."""
    return (
        os.getcwd(), sys.stdout, sys.stderr, signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM),
        random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), sys.getrecursionlimit(),
        torch.get_default_dtype(), torch.is_grad_enabled(), threading.Thread.start, os._exit,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("loss", "faulty_functions:disturbing_loss"),
        ("advantage", "faulty_functions:disturbing_advantage"),
        ("aggregation", "faulty_functions:disturbing_aggregation"),
        ("reward", "faulty_functions:disturbing_reward"),
        ("task", "faulty_functions:Disturbing"),
        ("engine", "faulty_functions:DisturbingEngine"),
        ("task", "at_import_disturbs:Task"),
        ("reward", "at_import_disturbs:disturbing_reward"),
    ],
)
def test_user_code_does_not_change_the_process_and_its_threads_do_not_keep_it_alive(kind, name):
    before, threads = state(), set(threading.enumerate())
    check(kind, name)
    assert state() == before
    started = set(threading.enumerate()) - threads
    assert len(started) >= 3 and all(thread.daemon for thread in started)
    assert not started & set(concurrent.futures.thread._threads_queues)


@pytest.mark.parametrize("kind", ["loss", "advantage", "aggregation"])
def test_a_function_that_changes_its_arguments_changes_a_copy(kind):
    from scalerl.learn.advantages import advantages
    from scalerl.learn.aggregate import token_weights
    from scalerl.learn.losses import custom as custom_loss

    choice = Custom(function=f"faulty_functions:writing_{kind}")
    given = {
        "loss": (-torch.rand(2, 3), -torch.rand(2, 3), torch.tensor([1.0, -1.0]), torch.ones(2, 3, dtype=torch.bool)),
        "advantage": (torch.tensor([[1.0, 0.0]]),),
        "aggregation": (torch.ones(2, 3, dtype=torch.bool), torch.tensor([0, 1])),
    }[kind]
    before = [tensor.clone() for tensor in given]
    {"loss": custom_loss, "advantage": advantages, "aggregation": token_weights}[kind](choice, *given)
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True)) and before


def test_user_code_has_separate_random_streams_that_continue_between_calls():
    random.seed(3)
    expected = random.getstate()
    drawn = [user_rewards.call_by_name("faulty_functions:draws", [ROW] * 2, ["a", "b"]) for _ in range(3)]
    assert len({value for pair in drawn for value in pair}) == 6 and random.getstate() == expected


def test_a_time_limit_restores_an_earlier_timer():
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *given: heard.append(time.monotonic()))
    old = signal.setitimer(signal.ITIMER_REAL, 0.5)
    began = time.monotonic()
    try:
        with pytest.raises(plugins.PluginError, match=r"took longer than 0\.1 s"):
            plugins.call(lambda: time.sleep(30), "here", limit_s=0.1)
        assert not heard
        time.sleep(0.6)
        assert len(heard) == 1 and heard[0] - began > 0.4
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *old)


LATE = """
    import os, threading, time

    calls = 0

    def leaves(logp_BT, behavior_BT, advantages_B, mask_BT):
        global calls
        calls += 1
        if calls == 1:
            threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
        if calls > 3:
            os.chdir("/")
            os._exit(0)
        return -logp_BT * advantages_B[:, None]

    class Engine:
        def __init__(self, parts): self.inner, self.polls = parts.torch_engine(), 0
        def __getattr__(self, name): return getattr(self.inner, name)
        def poll(self, timeout_s=0.0):
            self.polls += 1
            if self.polls > 40: raise KeyError("slot")
            return self.inner.poll(timeout_s)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (
            ["--recipe.loss", '{kind = "custom", function = "late:leaves"}'],
            r"late:leaves called os._exit\(0\) \(.*late.py:13",
        ),
        (
            ["--placement.engine", '{kind = "custom", function = "late:Engine"}'],
            r"late:Engine.poll raised KeyError: 'slot' \(.*late.py:21\)",
        ),
    ],
)
def test_code_that_ends_a_run_ends_it_with_a_message_and_an_exit_code(lab_model, tmp_path, monkeypatch, words, pattern):
    (tmp_path / "late.py").write_text(textwrap.dedent(LATE))
    monkeypatch.chdir(tmp_path)
    given = [*runs.SMALL, "--model", str(lab_model), "--run-dir", "run", *words]
    code, text = runs.call("train", *given, timeout=200)
    assert code == 1 and re.search(pattern, text), text
    assert "Traceback" not in text and "continue with: scalerl resume" in text
