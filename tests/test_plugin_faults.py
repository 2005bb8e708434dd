"""Every kind of plug-in with every fault: one message that says what was got, what is allowed, and where."""

import textwrap
from types import SimpleNamespace

import pytest

from scalerl import plugins
from scalerl.config import Scoring
from scalerl.config.base import ConfigError, replace
from scalerl.config.data import CustomTask, RewardFunction
from scalerl.config.recipe import SCALERL, Custom
from scalerl.learn.custom import check_functions
from scalerl.tasks import custom, reward_check, user_rewards
from scalerl.tasks.reward_check import check_reward
from scalerl.types import Prompt

MODULE = """
    import torch

    class Task:
        '''A task that works; the others change one method.'''
        def rows(self, count): return [{"prompt": str(n)} for n in range(count)]
        def score(self, row, completion): return 0.5
    class TaskOfOtherRows(Task):
        def rows(self): return []
    class TaskOfOtherScore(Task):
        def score(self, completion): return 0.5
    class TaskRaisesMade(Task):
        def __init__(self): raise KeyError("gone")
    class TaskRaisesRow(Task):
        def rows(self, count):
            yield {"prompt": "0"}
            raise KeyError("gone")
    class TaskRaisesScore(Task):
        def score(self, row, completion): raise KeyError("gone")
    class TaskNone(Task):
        def rows(self, count): return None
    class TaskNoneScore(Task):
        def score(self, row, completion): return None
    class TaskNan(Task):
        def score(self, row, completion): return float("nan")
    class TaskTensor(Task):
        def score(self, row, completion): return torch.ones(1)

    def other_arguments(wanted_1, wanted_2, *, wanted_3): pass
    def raises(*given, **named):
        raise KeyError("gone")
    def raises_in_torch(*given, **named):
        return torch.ones(2) @ torch.ones(3)
    def exits(*given, **named): raise SystemExit(0)
    def none(*given, **named): return None
    def text(*given, **named): return "0.5"
    def a_list(*given, **named): return [[0.0] * 3] * 2
    def one_entry(first=None, *given, **named): return torch.ones(1)
    def nan(first=None, *given, completions=(), **named):
        if first is None: return [float("nan")] * len(completions)
        return first * float("nan")
    def whole_numbers(first, *given): return torch.zeros(first.shape, dtype=torch.long)
    def float_capped(logp_BT, behavior_BT, advantages_B, mask_BT): return logp_BT, mask_BT.float()
    def negative(mask_BT, prompt_B):
        weights_BT = mask_BT / mask_BT.sum()
        weights_BT[0, 0] = -weights_BT[0, 0]
        return weights_BT
    number = 3
"""
ROW = Prompt("0" * 16, "2+2=", (1,), "4", "math", {"answer": "4"}, where="prompts.jsonl, line 1")


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "faulty_functions.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "no_python.py").write_text("def f(:\n")
    (tmp_path / "needs_more.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(reward_check, "FunctionScorer", here)
    yield
    plugins.loaded.cache_clear()
    user_rewards._loaded.cache_clear()


def here(function, pass_reward, settings, params):
    """Call a reward function in this process; tests/tasks/test_reward_check.py has those of its own."""

    def rewards(prompt, completions):
        return user_rewards.call_by_name(function, [prompt] * len(completions), completions, params)

    return SimpleNamespace(rewards=rewards, close=lambda: None)


def check(kind, name):
    """Do what the start of a run does with a plug-in."""
    if kind == "task":
        custom.rows(CustomTask(function=name), 4)
    elif kind == "reward":
        check_reward(RewardFunction(function=name), ROW, Scoring())
    else:
        check_functions(replace(SCALERL, **{kind: Custom(function=name)}))


FIELDS = {
    "loss": "recipe.loss.function",
    "advantage": "recipe.advantage.function",
    "aggregation": "recipe.aggregation.function",
    "task": "data.function",
    "reward": "data.reward",
}
NAMES = [
    ("faulty_functions", "got 'faulty_functions'; allowed: package.module:function"),
    (
        "no_such_module:f",
        r"cannot import 'no_such_module' from .* \(No module named .*; allowed: a module of the",
    ),
    ("no_python:f", r"cannot import 'no_python' from .* \(invalid syntax"),
    ("needs_more:f", "No module named 'a_module_that_is_not_there'"),
    ("faulty_functions:exit", r"has no function 'exit' \(did you mean 'exits'\?\)"),
    ("faulty_functions:number", "faulty_functions:number is 3; allowed: a function or a class"),
]


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize(("name", "said"), NAMES)
def test_a_name_that_leads_nowhere_is_refused_with_its_field(kind, name, said):
    with pytest.raises(ConfigError, match=f"{FIELDS[kind]}: .*{said}"):
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
    *((kind, "raises_in_torch", f"raised RuntimeError: .* {HERE}") for kind in EXPECTED),
    *((kind, "exits", f"raised SystemExit: 0 {HERE}") for kind in FIELDS if kind != "task"),
    ("task", "TaskRaisesMade", f"TaskRaisesMade raised KeyError: 'gone' {HERE}"),
    ("task", "TaskRaisesRow", f"TaskRaisesRow.rows raised KeyError: 'gone' {HERE}"),
    ("task", "TaskRaisesScore", f"TaskRaisesScore.score raised KeyError: 'gone' {HERE}"),
    *((kind, "none", f"returned None; {said}") for kind, said in EXPECTED.items()),
    *((kind, "text", f"returned '0.5'; {said}") for kind, said in EXPECTED.items()),
    *((kind, "a_list", f"returned \\[\\[0.0, 0.0, 0.0\\], .*; {said}") for kind, said in EXPECTED.items()),
    *((kind, "one_entry", f"\\(torch.float32\\) of shape \\(1,\\); {said}") for kind, said in EXPECTED.items()),
    ("reward", "none", "returned None; allowed: a list with a number for each completion"),
    ("reward", "text", "returned '0.5'; allowed: a list with a number for each completion"),
    ("reward", "a_list", r"returned \[0.0, 0.0, 0.0\]; allowed: a finite number for each completion"),
    ("reward", "one_entry", "returned 1 rewards for 2 completions"),
    ("reward", "nan", "returned nan; allowed: a finite number for each completion"),
    ("task", "TaskNone", "TaskNone.rows returned None; allowed: rows, each a dict with `prompt`"),
    ("task", "TaskNoneScore", "TaskNoneScore.score returned None; allowed: a number from 0 to 1"),
    ("task", "TaskNan", "returned nan; allowed: a number from 0 to 1"),
    ("task", "TaskTensor", r"returned a Tensor \(torch.float32\) of shape \(1,\); allowed: a number from 0 to 1"),
    ("loss", "nan", "returned a loss that is not finite"),
    ("advantage", "nan", r"\(torch.float32, 6 entries not finite\) of shape \(2, 3\); expected finite"),
    ("aggregation", "nan", "weights that sum to nan"),
    ("aggregation", "negative", "at least 0, zero off the mask"),
    ("loss", "whole_numbers", "returned a loss_BT of torch.int64 and a clipped_BT of torch.bool; expected a floating"),
    ("loss", "float_capped", "a clipped_BT of torch.float32; expected a floating-point loss_BT and a clipped_BT of"),
    ("advantage", "whole_numbers", r"\(torch.int64\) of shape \(2, 3\); expected finite .*, in floating point"),
    ("aggregation", "whole_numbers", r"\(torch.int64\) of shape \(6, 5\); expected weights_BT"),
]


@pytest.mark.parametrize(("kind", "name", "said"), FAULTS)
def test_a_plug_in_with_a_fault_is_refused_at_start_with_what_was_expected(kind, name, said):
    with pytest.raises(ConfigError, match=said):
        check(kind, f"faulty_functions:{name}")


def test_a_task_without_a_fault_passes():
    check("task", "faulty_functions:Task")
