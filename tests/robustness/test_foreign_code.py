"""All kinds of plug-ins with all faults: each gives one message with the cause, the allowed values and the place."""

import re
import sys
from pathlib import Path

import pytest
import runs
import torch

from robustness.faulty_code import IMPORTS, MODULE
from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config import Scoring
from scalerl.training.config.base import replace
from scalerl.training.config.data import CustomTask, RewardFunction
from scalerl.training.config.recipe import SCALERL, Custom, CustomLoss
from scalerl.training.engines.custom import make_engine
from scalerl.training.recipe.custom import check_functions
from scalerl.training.rewards import custom
from scalerl.training.rewards.checks import check_reward

ROW = Prompt("0" * 16, "2+2=", (1,), "4", "math", {"answer": "4"}, where="prompts.jsonl, line 1")


@pytest.fixture(autouse=True)
def module(user_code, scored_here):
    user_code("faulty_functions", MODULE)
    for name, text in IMPORTS.items():
        user_code(name, text)
    yield
    for name in ("faulty_functions", *IMPORTS):
        sys.modules.pop(name, None)


def check(kind, name):
    """Check a plug-in like the start of a run."""
    if kind == "task":
        custom.rows(CustomTask(function=name), 4)
    elif kind == "reward":
        check_reward(RewardFunction(function=name), ROW, Scoring())
    elif kind == "engine":
        make_engine(Custom(function=name), None)
    else:
        check_functions(replace(SCALERL, **{kind: (CustomLoss if kind == "loss" else Custom)(function=name)}))


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
    ("no_such_module:f", r"cannot import 'no_such_module' .*No module named .*; allowed: a module in the"),
    ("no_python:f", r"cannot import 'no_python' .*invalid syntax \(/.*no_python.py:1\)"),
    ("needs_more:f", r"No module named 'a_module_that_is_not_there' \(/.*needs_more.py:2\)"),
    ("at_import_raises:f", r"raised KeyError: 'limit' \(/.*at_import_raises.py:1\)"),
    ("faulty_functions:exit", r"has no function or class 'exit' \(did you mean 'exits'\?\)"),
    ("faulty_functions:number", "has no function or class 'number'"),
]


@pytest.mark.parametrize(("name", "pattern"), NAMES)
def test_a_missing_function_is_refused_with_the_reason(name, pattern):
    with pytest.raises(ConfigError, match=f"recipe.loss.function: .*{pattern}"):
        check("loss", name)


@pytest.mark.parametrize("kind", FIELDS)
def test_every_kind_of_plug_in_names_its_field(kind):
    with pytest.raises(ConfigError, match=f"{FIELDS[kind]}: .*cannot import 'no_such_module'"):
        check(kind, "no_such_module:f")


HERE = r"\(.*faulty_functions.py:\d+\)"
EXPECTED = {
    "loss": "expected loss_BT, or \\(loss_BT, clipped_BT\\), of the shape of logp_BT, \\(6, 5\\)",
    "advantage": "expected finite advantages_PG of the shape of rewards_PG, \\(2, 3\\), in floating point",
    "aggregation": "expected weights_BT of the shape of mask_BT, \\(6, 5\\)",
}
FAULTS = [
    ("loss", "other_arguments", r"must take \(logp_BT, behavior_BT, advantages_B, mask_BT\); too many positional"),
    ("reward", "other_arguments", r"got an unexpected keyword argument 'prompts'; columns of the rows: answer"),
    *((kind, "raises", f"faulty_functions:raises raised KeyError: 'gone' {HERE}") for kind in FIELDS if kind != "task"),
    ("task", "TaskOfNoScore", "no attribute 'score'"),
    ("task", "TaskOfNoPrompt", "row 0 of"),
    ("task", "TaskExits", f"TaskExits.score raised SystemExit: 0 {HERE}"),
    ("task", "TaskOfOne", "made 1 distinct prompts; allowed: at least 4"),
    *(("reward", name, "allowed: a finite number for each completion") for name in ("texts", "none_first")),
    ("reward", "huge", r"returned 1e\+300; allowed: .* from -1e\+09 to 1e\+09"),
    ("reward", "a_dict", "allowed: a list with a number for each of 2 completions"),
    ("reward", "too_few", "returned 1 rewards for 2 completions"),
    ("reward", "raises_late", f"raises_late raised KeyError: 'gone' {HERE}"),
    *((kind, "none", f"returned None; {pattern}") for kind, pattern in EXPECTED.items()),
    ("reward", "nan", "returned nan; allowed: a finite number for each completion"),
    ("task", "TaskNan", "TaskNan.score returned nan; allowed: a number from 0 to 1"),
    ("loss", "nan", "returned a loss that is not finite"),
    ("advantage", "nan", r"\(torch.float32, 6 entries not finite\) of shape \(2, 3\); expected finite"),
    ("advantage", "flat", "shape"),
    ("loss", "detached", "gradient"),
    ("aggregation", "negative", "at least 0, zero outside the mask"),
    ("aggregation", "sums_to_two", "sum to 2"),
    ("aggregation", "off_mask", "outside the mask"),
    ("loss", "whole_numbers", "returned a loss_BT of torch.int64 and a clipped_BT of torch.bool; expected a floating"),
]


@pytest.mark.parametrize(("kind", "name", "pattern"), FAULTS)
def test_a_faulty_plug_in_is_refused_at_the_start_with_the_expected_value(kind, name, pattern):
    with pytest.raises(ConfigError, match=pattern):
        check(kind, f"faulty_functions:{name}")


@pytest.mark.parametrize("kind", ["loss", "advantage", "aggregation"])
def test_a_function_that_changes_its_arguments_changes_a_copy(kind):
    from scalerl.training.recipe.advantages import advantages
    from scalerl.training.recipe.aggregate import token_weights
    from scalerl.training.recipe.losses import custom as custom_loss

    choice = Custom(function=f"faulty_functions:writing_{kind}")
    given = {
        "loss": (-torch.rand(2, 3), -torch.rand(2, 3), torch.tensor([1.0, -1.0]), torch.ones(2, 3, dtype=torch.bool)),
        "advantage": (torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, dtype=torch.bool)),
        "aggregation": (torch.ones(2, 3, dtype=torch.bool), torch.tensor([0, 1])),
    }[kind]
    before = [tensor.clone() for tensor in given]
    {"loss": custom_loss, "advantage": advantages, "aggregation": token_weights}[kind](choice, *given)
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True)) and before


LATE = """
    calls = 0
    def exits(logp_BT, behavior_BT, advantages_B, mask_BT):
        global calls
        calls += 1
        if calls > 3: raise SystemExit(0)
        return -logp_BT * advantages_B[:, None]
"""


@pytest.mark.slow
def test_code_that_ends_a_run_leaves_a_message_and_a_traceback(user_code, lab_model):
    user_code("late", LATE)
    loss = ["--recipe.loss", '{kind = "custom", function = "late:exits"}']
    words = ["--model", str(lab_model), "--run-dir", "run", *loss]
    code, text = runs.call("train", *runs.SMALL, *words, timeout=200)
    assert code == 1 and re.search(r"late:exits raised SystemExit: 0 \(.*late.py:6\)", text), text
    assert "Traceback" not in text and "continue with: scalerl resume" in text
    assert re.search("late.py.*, line ", Path("run/errors.log").read_text())
