"""Parts of tests of agents: a policy that says what a test tells it, a client of plain HTTP, and a program for runs."""

import json
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import runs
from tiny_tokenizers import byte_level

from scalerl.core.types import AGENT, Prompt, Rollout
from scalerl.training.config.data import AgentTask
from scalerl.training.engines.agents.engine import AgentEngine, Endpoints
from scalerl.training.engines.engine import Finished, Occupancy, Request, Work
from scalerl.training.models.text import TokenText
from scalerl.training.rewards.agents.harness import ProgramEnd

CHATML = (
    "{% if tools %}{{ '<|im_start|>system\nTools: ' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer(template=CHATML):
    made = byte_level()
    made.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    made.chat_template = template
    return made


class Told:
    """An engine whose turns are what a function of the prompt's text returns; each ends with <|im_end|>."""

    def __init__(self, tokenizer, say, polls=1):
        self.tokenizer, self.say, self.polls, self.version, self.work = tokenizer, say, polls, 0, Work()
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.under_way, self.prompts, self.cancelled = {}, [], []

    def occupancy(self):
        return Occupancy(4, len(self.under_way), 0, 4 - len(self.under_way))

    def submit(self, requests):
        for request in requests:
            self.prompts.append(request.prompt)
            self.under_way[request.id] = [self.polls, request]

    def cancel(self, ids):
        for id in ids:
            self.cancelled += [id] if self.under_way.pop(id, None) else []

    def swap(self, version):
        self.version = version

    def poll(self, timeout_s=0.0):
        done = []
        for id, entry in list(self.under_way.items()):
            entry[0] -= 1
            if entry[0] <= 0:
                done.append(Finished(id, self.turn(entry[1].prompt)))
                del self.under_way[id]
        return done

    def turn(self, prompt):
        said = self.say(self.tokenizer.decode(list(prompt)))
        tokens = [*self.tokenizer(said, add_special_tokens=False)["input_ids"], self.end]
        count = len(tokens)
        return Rollout(
            np.asarray(tokens, np.int32), -np.arange(1, count + 1, dtype=np.float32) / 100,
            np.full(count, self.version, np.int32), np.ones(count, np.bool_), False, False,
        )  # fmt: skip


def settings(**changes):
    return AgentTask(command=("true",), path="rows.jsonl", **changes).settings


def engine_of(say, run, template=CHATML, polls=1, **changes):
    """Return an engine over one that says what `say` returns, whose programs are calls of `run(url, key, row)`."""
    made = tokenizer(template)
    inner = Told(made, say, polls)

    def call(settings, row, base_url, key, own_s, stopped):
        returned = run(base_url, key, row)
        return returned if isinstance(returned, ProgramEnd) else ProgramEnd(returned)

    engine = AgentEngine(inner, Endpoints(TokenText(made, (inner.end,))), run=call)
    engine.settings = settings(**changes)
    return engine


def submit(engine, count=1, row=None, first=0):
    columns = {AGENT: engine.settings, "row": row or {}, "pass_reward": 1.0}
    prompt = Prompt("0", "", (3, 4), "", "agent", columns)
    engine.submit([Request.of((0, number), prompt, number) for number in range(first, first + count)])


def finish(engine, seconds=60.0):
    """Poll until nothing is under way; return the rollouts by number."""
    done, until = {}, time.monotonic() + seconds
    while engine.occupancy().busy:
        assert time.monotonic() < until, "rollouts are still under way"
        for one in engine.poll(0.02):
            done[one.id[1]] = one.rollout
    return done


def rollout_of(say, run, **changes):
    """Return the rollout of one program, which is a call of `run(url, key, row)`."""
    engine = engine_of(say, run, **changes)
    submit(engine)
    return finish(engine)[0], engine


def post(url, key, body, path="/chat/completions"):
    """Return (status, JSON) of a request; a body that is bytes is sent as it is."""
    data = body if isinstance(body, bytes) else json.dumps({"model": "policy", **body}).encode()
    request = urllib.request.Request(
        url + path, data, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def chat(url, key, messages, **more):
    """Return the policy's message."""
    status, answer = post(url, key, {"messages": messages, **more})
    assert status == 200, answer
    return answer["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


@contextmanager
def refusal(url, key, body, status=400, path="/chat/completions"):
    """Yield the message of a request that must be refused."""
    got, answer = post(url, key, body, path)
    assert got == status, answer
    yield answer["error"]["message"]


PROGRAM = """
import json, os, sys, urllib.request
row = json.load(sys.stdin)
def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]
if row["fails"]:
    sys.exit("the site is away")
messages = [{"role": "user", "content": row["prompt"]}]
messages += [ask(messages), {"role": "user", "content": "3+4=<think>"}]
messages += [ask(messages)]
ask([{"role": "user", "content": "1+1=<think>"}])
print(json.dumps({"reward": len(messages[-1]["content"]) % 5 / 4, "length": len(messages[-1]["content"])}))
"""


def words(place, fails=0, steps=6):
    """Write a program of three turns in two conversations, and its rows; return the words of a run that uses it."""
    (place / "agent.py").write_text(PROGRAM)
    rows = [{"prompt": f"{a}+{b}=<think>", "fails": a < fails} for a in range(10) for b in range(6)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = json.dumps([sys.executable, str(place / "agent.py")])
    return [
        "--preset", "lab", *runs.RECIPE, "--data.kind", "agent", "--data.command", command,
        "--data.path", str(place / "rows.jsonl"), "--data.max_prompt_tokens", "120", "--recipe.generations_per_prompt",
        "2", "--evaluation.prompts", "8", "--evaluation.samples", "1", "--evaluation.every", "3", "--checkpoint.every",
        "2", "--steps", str(steps),
    ]  # fmt: skip
