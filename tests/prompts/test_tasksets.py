"""Environments of `verifiers` 0.4; tests that need it are skipped if the package is not installed."""

import json
import os
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import runs
from doc_pages import ROOT

from scalerl.core.types import AGENT, Prompt
from scalerl.training.config.data import EnvironmentTask
from scalerl.training.prompts.sources import environment_rows
from scalerl.training.rewards import tasksets
from scalerl.training.rewards.user_rewards import call_by_name
from scalerl.training.rewards.verifiers_environments import REWARD

TASKSET = """
import itertools
import verifiers.v1 as vf

__all__ = ["Sums"]


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def near(self, trace) -> float:
        return float(trace.last_reply in (self.data.answer, "0"))

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        assert trace.messages[0].content == "Answer with a number." and trace.num_turns == 1
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.TasksetConfig):
    most: int = 9
    endless: bool = False


class Sums(vf.Taskset[Sum, Config]):
    @property
    def bounded(self):
        return not self.config.endless

    def load(self):
        for n in itertools.count() if self.config.endless else range(self.config.most):
            data = Data(prompt=f"What is {n}+1?", system_prompt="Answer with a number.", answer=str(n + 1))
            yield Sum(data, self.config.task)
"""

BOXED = TASKSET.replace("async def near(self, trace)", "async def near(self, trace, runtime)")

TALK = (
    TASKSET.replace(" and trace.num_turns == 1", "").replace('__all__ = ["Sums"]', '__all__ = ["Sums", "Talk"]')
    + """

class TalkConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Talk(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and segment.last_reply != task.data.answer:
                segment = await interaction.turn(f"not {segment.last_reply}")
"""
)


LETTERS = """
import random
import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Letters", "Dialog"]


class Data(vf.TaskData):
    letters: list[str]


class Say(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        said = [one.content or "" for one in trace.messages if one.role == "assistant"]
        return sum(a[:1] == b for a, b in zip(said, self.data.letters)) / 2

    @vf.metric
    async def taken(self, trace) -> float:
        return float(trace.num_turns)


class Letters(vf.Taskset[Say, vf.TasksetConfig]):
    def load(self):
        rng = random.Random(0)
        for _ in range(20):
            letters = rng.choices("ab", k=2)
            prompt = "".join(rng.choices("ab", k=6)) + letters[0] + ">"
            yield Say(Data(prompt=prompt, letters=letters), self.config.task)


class Dialog(Harness[HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        messages, key = [{"role": "user", "content": data.prompt}], {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
            for letter in [*data.letters[1:], ""]:
                body = {"model": ctx.model, "messages": messages}
                reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=key)
                if reply.status_code != 200:
                    return ProgramResult(1, "", reply.text)
                messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": f"{letter}>"}]
        return ProgramResult(0, "", "")
"""
"""A taskset of two turns with a harness of its own, which needs no uv."""


@pytest.fixture
def taskset(tmp_path, monkeypatch):
    if not tasksets.installed():
        pytest.skip("verifiers 0.4 is not installed")
    for name, text in (("sums_taskset", TASKSET), ("boxed_taskset", BOXED), ("talk_taskset", TALK),
                       ("letters_taskset", LETTERS)):  # fmt: skip
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "sums-taskset"
    for name in ("sums_taskset", "boxed_taskset", "talk_taskset", "letters_taskset"):
        sys.modules.pop(name, None)


def test_prompts_are_tasks_and_rewards_are_those_of_the_task(taskset):
    task = EnvironmentTask(environment=taskset, arguments={"taskset": {"most": 5}})
    made, notes = environment_rows(task, 2)
    assert len(made) == 5 and notes == [] and [row.answer for row in made] == ["1", "2", "3", "4", "5"]
    assert made[3].prompt == [
        {"role": "system", "content": "Answer with a number."}, {"role": "user", "content": "What is 3+1?"}
    ]  # fmt: skip
    columns = {**json.loads(json.dumps(made[3].columns)), "prompt": made[3].prompt}  # they are sent to a process
    prompt = Prompt("0" * 16, "text", (1,), made[3].answer, taskset, columns)
    assert call_by_name(REWARD, prompt, ["4", "0", "7"]) == [1.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        ("sums-taskset", {"agent": {"harness": {"id": "bash"}}}),
        ("boxed-taskset", {}),
        ("talk-taskset", {}),
        ("letters-taskset", {}),
    ],
)
def test_what_cannot_be_scored_from_one_answer_is_an_episode(taskset, monkeypatch, environment, arguments):
    task = EnvironmentTask(environment=environment, arguments=arguments, turns=5, variables=("JUDGE_KEY",))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    made, _ = environment_rows(task, 2)
    assert len({row.id for row in made}) == len(made) >= 9
    columns = made[0].columns
    settings, row = columns[AGENT], columns["row"]
    assert settings["function"] == tasksets.EPISODE and settings["turns"] == 5 and settings["imported_once"]
    assert settings["environment"] == ("JUDGE_KEY",) and columns["pass_reward"] == 1.0
    assert row["environment"] == environment and row["turns"] == 5 and json.loads(json.dumps(row)) == row
    agents = tasksets.load(environment, arguments, 5).config
    assert [getattr(agents, name).max_turns for name in tasksets.roles(tasksets.load(environment, arguments))] == [5]


@pytest.mark.slow
def test_a_run_trains_on_the_episodes_of_an_environment(taskset, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = tmp_path / "model"
    sys.path.append(str(ROOT / "examples"))
    from tiny_model import tiny_model

    shutil.copytree(tiny_model("ab>"), model)
    path = tmp_path / "run"
    words = ["train", "--model", str(model), "--run-dir", str(path), "--trust", "--preset", "lab",
             "--data.kind", "verifiers", "--data.environment", "letters-taskset", "--data.max_prompt_tokens", "40",
             "--recipe.length", '{kind = "none", max_tokens = 3}', "--recipe.prompts_per_step", "2",
             "--recipe.generations_per_prompt", "4", "--recipe.retire_pass_rate", "none", "--evaluation.prompts", "2",
             "--evaluation.samples", "1", "--steps", "2"]  # fmt: skip
    text, _ = (process := runs.start(words)).communicate(timeout=500)
    assert process.returncode == 0, text
    rows = runs.rows(path, "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2] and all(row["reward_failures"] == 0 for row in rows)
    assert all(row["turns"] == row["environment/taken"] == 2 for row in rows)
    assert 'schedule = "eager"' in (path / "config.toml").read_text()


class Policy(BaseHTTPRequestHandler):
    """A policy that answers 1, 2, 3, ... to further turns of a conversation."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.headers["authorization"], body))
        text = str(sum(one["role"] == "assistant" for one in body["messages"]) + 1)
        choice = {"index": 0, "finish_reason": "stop"}
        shared = {"id": "1", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        if body.get("stream"):
            delta = {"role": "assistant", "content": text}
            chunk = {**shared, "object": "chat.completion.chunk", "choices": [{**choice, "delta": delta}]}
            out, kind = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream"
        else:
            message = {"role": "assistant", "content": text}
            whole = {**shared, "object": "chat.completion", "choices": [{**choice, "message": message}], "usage": usage}
            out, kind = json.dumps(whole), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out.encode())


@pytest.fixture
def policy():
    with ThreadingHTTPServer(("127.0.0.1", 0), Policy) as server:
        server.seen = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "number", "contents"),
    [("sums-taskset", 0, ["What is 0+1?"]), ("talk-taskset", 2, ["What is 2+1?", "1", "not 1", "2", "not 2"])],
)
def test_an_episode_calls_the_policy_and_returns_a_reward(taskset, policy, monkeypatch, environment, number, contents):
    if shutil.which("uv") is None:
        pytest.skip("uv, which starts the package's harnesses, is not installed")
    row = tasksets.rows(EnvironmentTask(environment=environment), 2)[number]
    monkeypatch.setitem(os.environ, tasksets.KEY, "")
    url = f"http://127.0.0.1:{policy.server_port}/v1"
    assert tasksets.episode(json.loads(json.dumps(row)), url, "key-7") == {"reward": 1.5, "length": 1.0}
    (*_, (key, body)) = policy.seen
    assert key == "Bearer key-7" and body["model"] == "policy"
    assert [one["content"] for one in body["messages"]] == ["Answer with a number.", *contents]
