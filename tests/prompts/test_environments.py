"""Environments of the `verifiers` package; tests that need it are skipped if 0.1.x is not installed."""

import json
import sys

import pytest

from scalerl.config.data import EnvironmentTask
from scalerl.core.errors import ConfigError
from scalerl.prompts.sources import environment_rows as rows
from scalerl.tasks.environments import REWARD, load
from scalerl.tasks.user_rewards import call_by_name
from scalerl.types import Prompt

ENVIRONMENT = """
import verifiers as vf
from datasets import Dataset


def load_environment(most=9, turns=1):
    data = Dataset.from_dict({
        "question": [f"What is {a}+1?" for a in range(most)],
        "answer": [str(a + 1) for a in range(most)],
        "info": [{"low": a} for a in range(most)],
    })

    def right(completion, answer, **kwargs):
        return float(completion[-1].content.strip() == answer)

    async def near(completion, info, prompt, **kwargs):
        return float(completion[-1]["content"].strip() in (str(info["low"]), str(info["low"] + 1)))

    rubric = vf.Rubric(funcs=[right, near], weights=[1.0, 0.5])
    if turns > 1:
        class Talk(vf.MultiTurnEnv):
            async def env_response(self, messages, state, **kwargs):
                return []

        return Talk(dataset=data, rubric=rubric, max_turns=turns)
    return vf.SingleTurnEnv(dataset=data, rubric=rubric, system_prompt="Answer with a number.")
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    verifiers = pytest.importorskip("verifiers", reason="verifiers is not installed")
    if not hasattr(verifiers, "load_environment"):
        pytest.skip(f"verifiers {verifiers.__version__} has another interface than 0.1.x")
    (tmp_path / "sums_for_tests.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "sums-for-tests"
    sys.modules.pop("sums_for_tests", None)


def test_prompts_come_from_the_data_set_and_rewards_from_the_rubric(environment):
    made, notes = rows(EnvironmentTask(environment=environment, arguments={"most": 5}), 2)
    assert len(made) == 5 and notes == [] and [row.answer for row in made] == ["1", "2", "3", "4", "5"]
    first = made[0]
    assert [message["role"] for message in first.prompt] == ["system", "user"]
    assert first.prompt[1]["content"] == "What is 0+1?"
    columns = {**json.loads(json.dumps(first.columns)), "prompt": first.prompt}  # they are sent to another process
    prompt = Prompt("0" * 16, "text", (1,), first.answer, environment, columns)
    assert call_by_name(REWARD, [prompt] * 3, ["1", "0", "7"]) == [1.5, 0.5, 0.0]


def test_an_unusable_environment_is_refused(environment):
    with pytest.raises(ConfigError, match="several turns"):
        load(environment, {"turns": 3})
    with pytest.raises(ConfigError, match="'no': 1"):
        load(environment, {"no": 1})
    with pytest.raises(ConfigError, match=r"cannot load 'nowhere-to-be-found'"):
        load("nowhere-to-be-found", {})
