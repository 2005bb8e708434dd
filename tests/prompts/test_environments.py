"""Environments of the `verifiers` package; tests that need it are skipped if 0.1.x is not installed."""

import json
import sys

import numpy as np
import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.core.types import Group, Outcome, Prompt, Rollout, Visit
from scalerl.training.config.data import EnvironmentTask
from scalerl.training.prompts.sources import environment_rows as rows
from scalerl.training.rewards.scoring import _outcomes
from scalerl.training.rewards.turns import Reply, reply_to
from scalerl.training.rewards.user_rewards import Failures, call_by_name
from scalerl.training.rewards.verifiers_environments import REWARD, load_environment

ENVIRONMENT = '''
import time
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
                state["asked"] = state.get("asked", 0) + 1
                if messages[-1].content == "0":
                    state["final_env_response"] = [{"role": "user", "content": "no"}]
                    return state["final_env_response"]
                if messages[-1].content == "other":
                    return [{"role": "user", "content": str(time.time())}]
                return [{"role": "user", "content": f"again, {state['asked']}"}]

        return Talk(dataset=data, rubric=rubric, max_turns=turns)
    if turns < 0:
        def add(a: int, b: int = 1) -> int:
            """Add two numbers.

            Args:
                a: The first.
                b: The second.
            """
            return a + b

        def called(completion, **kwargs):
            return float(len(completion[-1].get("tool_calls", [])))

        rubric.add_metric(called)
        return vf.ToolEnv(dataset=data, rubric=rubric, tools=[add], max_turns=3 if turns == -1 else 1)
    return vf.SingleTurnEnv(dataset=data, rubric=rubric, system_prompt="Answer with a number.")
'''


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
    assert call_by_name(REWARD, prompt, ["1", "0", "7"]) == [1.5, 0.5, 0.0]


def test_an_unusable_environment_is_refused(environment):
    with pytest.raises(ConfigError, match="'no': 1"):
        load_environment(environment, {"no": 1})
    with pytest.raises(ConfigError, match=r"cannot load 'nowhere-to-be-found'"):
        load_environment("nowhere-to-be-found", {})


def asked(environment, turns):
    made, _ = rows(EnvironmentTask(environment=environment, arguments={"turns": turns}, pass_reward=1.5), 2)
    columns = {**json.loads(json.dumps(made[2].columns)), "prompt": made[2].prompt}  # What is 2+1?
    return Prompt("0" * 16, "text", (1,), "3", environment, columns)


def test_an_environment_of_turns_runs_its_own_replies_and_stop_conditions(environment):
    prompt, said = asked(environment, 3), []
    for number, text in enumerate(("7", "8")):
        said.append({"role": "assistant", "content": text})
        reply = reply_to(prompt, said)
        assert reply.messages == ({"role": "user", "content": f"again, {number + 1}"},)
        said += reply.messages
    end = reply_to(prompt, [*said, {"role": "assistant", "content": "3"}])  # its max_turns
    assert end == Reply((), 1.5, {"right": 1.0, "near": 1.0, "num_turns": 3.0})
    stopped = reply_to(prompt, [{"role": "assistant", "content": "0"}])  # its final response
    assert not stopped.messages and stopped.score == 0
    other = [{"role": "assistant", "content": "other"}]
    with pytest.raises(PluginError, match="cannot be replayed"):
        reply_to(prompt, [*other, *reply_to(prompt, other).messages, {"role": "assistant", "content": "7"}])
    for score in _outcomes(Group(Visit(prompt, 0, 0), tuple(rollout(end.score) for _ in "ab"), 0), Failures("it")):
        assert score.reward == 1.5 and score.passed


def rollout(score):
    empty = np.empty(0, np.int32)
    return Rollout(empty, empty, empty, empty, False, False, outcome=Outcome(3, "environment", score, "", {}))


def test_an_environment_with_tools_gets_calls_and_answers_them(environment):
    prompt = asked(environment, -1)
    (tool,) = prompt.columns["tools"]
    assert tool["type"] == "function" and tool["function"]["name"] == "add"
    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    said = [{"role": "assistant", "content": f"{call}<tool_call>add</tool_call>"}]
    result, wrong = reply_to(prompt, said).messages
    assert (
        result == {"role": "tool", "content": "3"} and wrong["role"] == "tool" and "Expecting value" in wrong["content"]
    )
    end = reply_to(prompt, [*said, result, wrong, {"role": "assistant", "content": "3"}])
    assert end.score == 1.5 and end.metrics["add_calls"] == 1


@pytest.mark.parametrize(
    ("text", "called"), [("3", 0), (2 * '<tool_call>{"name": "add", "arguments": {}}</tool_call>', 2)]
)
def test_an_environment_with_tools_and_one_turn_shows_them_and_its_rubric_sees_the_calls(environment, text, called):
    prompt = asked(environment, -2)
    assert [tool["function"]["name"] for tool in prompt.columns["tools"]] == ["add"]
    end = reply_to(prompt, [{"role": "assistant", "content": text}])
    assert not end.messages and end.metrics["called"] == called
