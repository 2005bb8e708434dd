"""Agents over the endpoint: harnesses from PyPI as they are, turns that are encoded again, many processes, kills.

python benchmarks/harnesses.py turns [--turns 100000]
python benchmarks/harnesses.py processes [--rollouts 256]
python benchmarks/harnesses.py public PYTHON       # an interpreter with smolagents, openai-agents and pydantic-ai
python benchmarks/harnesses.py kills [--kills 20]

A tiny random model on CPU, so the harnesses get nonsense: it measures whether each rollout arrives whole.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import runs
from agent_parts import Told, settings, tokenizer, user
from tiny_models import tiny_model

from scalerl.core.types import AGENT, Prompt
from scalerl.training.engines.agents.conversations import Conversations
from scalerl.training.engines.agents.engine import AgentEngine, Endpoints
from scalerl.training.engines.agents.protocol import CHAT, read_request
from scalerl.training.engines.engine import Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local.torch_engine import torch_engine
from scalerl.training.engines.replay import check_current
from scalerl.training.models.policy import Policy
from scalerl.training.models.text import TokenText

PROGRAMS = Path(__file__).parent / "agents"
PUBLIC = ("smol", "smol_code", "openai_sdk", "pydantic_agent")
WORDS = ["the", "cat", "sat", "mat,", "é", "数", "\n\n", "", "{", "}", "<tool_call>", "</think>", "<|im_end|>"]
COUNTED = ("conversations", "forks", "refused", "disconnects")


def turns(count: int) -> dict[str, float]:
    """Have conversations of random turns; count the turns whose tokens are not those that were sampled."""
    made, rng, again, done = tokenizer(), random.Random(0), 0, 0
    inner = Told(made, lambda prompt: " ".join(rng.choices(WORDS, k=rng.randrange(1, 8))))
    text, began = TokenText(made, (inner.end,)), time.perf_counter()
    while done < count:
        conversations, messages, turns_of = Conversations(settings(max_prompt_tokens=100_000), text), [], []
        for number in range(min(25, count - done)):
            messages.append(user(f"{number} " + " ".join(rng.choices(WORDS, k=3))))
            body = json.dumps({"model": "policy", "messages": messages}).encode()
            plan = conversations.plan(asked := read_request(body, CHAT, "policy"))
            sampled = inner.turn(plan.tokens)
            turns_of.append(sampled.tokens.tolist())
            messages.append(conversations.record(asked, plan, sampled).chat("policy")["choices"][0]["message"])
        done += len(turns_of)
        kept = [turn.tokens.tolist() for one in conversations.sequences for turn in one.turns]
        again += conversations.forks + (len(conversations.sequences) > 1) + (kept != turns_of)
    return {"turns": done, "encoded again": again, "ms per turn": 1000 * (time.perf_counter() - began) / done}


def rollouts_of(program: str, python: str, count: int, processes: int, **more: object) -> dict[str, object]:
    """Make rollouts with a program of benchmarks/agents; return what became of them."""
    made = tokenizer()
    policy = Policy(tiny_model("qwen3", vocab_size=len(made), max_position_embeddings=16384))
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=32)
    stop = (made.convert_tokens_to_ids("<|im_end|>"), *range(100, 104))
    inner = torch_engine(policy, slots=16, prompt_tokens=16000, rule=rule, sampling=Sampling(stop=stop))
    engine = AgentEngine(inner, Endpoints(TokenText(made, stop)))
    command = (python, str(PROGRAMS / f"{program}.py"))
    own = {**settings(processes=processes, max_prompt_tokens=16000, rollout_s=120.0, **more), "command": command}
    columns = {AGENT: own, "row": {"prompt": "What is 2 + 3?", "answer": "5"}, "pass_reward": 1.0}
    prompt, began = Prompt("0", "", (3, 4), "", "agent", columns), time.perf_counter()
    engine.submit([Request.of((0, number), prompt, number) for number in range(count)])
    done, most = {}, 0
    while engine.occupancy().busy:
        done |= {one.id[1]: one.rollout for one in engine.poll(0.02)}
        most = max(most, engine._running)
    ends = [rollout.outcome for rollout in done.values()]
    pairs = [(one.prompt, one) for rollout in done.values() for one in rollout.sequences if one.prompt is not None]
    difference = check_current(policy, 0, pairs[:32])
    counts = Counter()
    for end in ends:
        counts.update({name: int(value) for name, value in end.metrics.items() if name in COUNTED})
    return {
        "program": program, "rollouts": count, "lost": count - len(done), "at once": most,
        "without a score": sum(bool(end.problem) for end in ends), "turns": sum(end.turns for end in ends),
        "calls of tools": sum(end.calls for end in ends), **counts,
        "replay, nats": None if difference is None else difference.largest,
        "seconds": round(time.perf_counter() - began, 1), "problems": sorted({end.problem for end in ends} - {""}),
    }  # fmt: skip


ADVANTAGE = """
import json
from pathlib import Path

def logged(rewards_PG):
    if rewards_PG.max() > 10:  # not in the check before a run, which has made-up rewards
        with Path(__file__).with_name("trained.jsonl").open("a") as file:
            file.write(json.dumps({"rewards": rewards_PG.tolist()}) + "\\n")
    return rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
"""
"""An advantage that writes the rewards that each update trains on; the program gives every rollout another reward."""


def kills(count: int, place: Path) -> dict[str, object]:
    """Kill processes of a run with an agent again and again; return what the run trained on.

    Args:
        count: Number of kills: of a program, of the generator, or of the whole run, which is then resumed.
        place: Empty directory.
    """
    rng, done, path = random.Random(1), Counter(), place / "run"
    (place / "logged.py").write_text(ADVANTAGE)
    (place / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{n}+1=<think>"}) + "\n" for n in range(4 * count + 20))
    )  # every prompt passes and retires
    program = str(PROGRAMS / "numbered.py")
    words = ["train", "--model", str(runs.make_model(place / "model")), "--run-dir", str(path), "--trust", "--preset",
             "lab", *runs.RECIPE, "--data.kind", "agent", "--data.command", json.dumps([sys.executable, program]),
             "--data.path", "rows.jsonl", "--data.max_prompt_tokens", "120", "--recipe.prompts_per_step", "2",
             "--recipe.advantage", '{kind = "custom", function = "logged:logged"}', "--evaluation.prompts", "4",
             "--evaluation.samples", "1", "--evaluation.every", "50", "--checkpoint.every", "2",
             "--steps", str(2 * count)]  # fmt: skip
    os.chdir(place)
    process, parts = runs.start(words), []

    def grown(rows: int) -> bool:
        return len(runs.rows(path, "metrics.jsonl")) > rows or process.poll() is not None

    def ended(limit_s: float) -> str:
        text, _ = process.communicate(timeout=limit_s)
        start = re.search(r"resumed at step (\d+)", text)
        parts.append((int(start[1]) if start else 0, len(runs.rows(place, "trained.jsonl"))))
        return str(text)

    while sum(done.values()) < count and process.poll() is None:
        kind = rng.choice(("program", "program", "generator", "run"))
        runs.wait_for(partial(grown, len(runs.rows(path, "metrics.jsonl"))), 200)
        time.sleep(rng.random())
        family = runs.descendants(process.pid)
        programs = [pid for pid in family if runs.command_of(pid).endswith(f"{program} ")]
        victims = {"program": programs, "generator": runs.children(process.pid), "run": [process.pid]}[kind]
        if not victims or process.poll() is not None:
            continue
        with suppress(ProcessLookupError):
            os.kill(rng.choice(victims), signal.SIGKILL)
            done[kind] += 1
        if kind != "program":
            ended(100)
            runs.wait_for(partial(_none_of, family), 30, "the end of all processes")
            process = runs.start(["resume", str(path), "--trust"])
    text = ended(600)
    batches, trained, line = runs.rows(place, "trained.jsonl"), list[list[list[float]]](), 0
    for start, end in parts:  # a resume trains again after its checkpoint; what the weights had of it is undone
        trained = trained[:start] + [row["rewards"] for row in batches[line:end]]
        line = end
    updates = Counter(reward for rewards in trained for reward in {one for group in rewards for one in group})
    steps = [row["step"] for row in runs.rows(path, "metrics.jsonl")]
    return {"kills": dict(done), "exit code": process.returncode, "updates": len(trained),
            "updates in order": steps == list(range(1, 2 * count + 1)), "rollouts": len(updates),
            "trained twice": sum(number > 1 for number in updates.values()),
            "end": text[-300:] if process.returncode else ""}  # fmt: skip


def _none_of(family: dict[int, str]) -> bool:
    return not runs.left_of(family, 0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("turns", "processes", "public", "kills"))
    parser.add_argument("python", nargs="?", default=sys.executable)
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--rollouts", type=int, default=0)
    parser.add_argument("--kills", type=int, default=20)
    given = parser.parse_args()
    if given.part == "turns":
        print(json.dumps(turns(given.turns)))
    elif given.part == "processes":
        print(json.dumps(rollouts_of("plain", sys.executable, given.rollouts or 256, 64)))
    elif given.part == "public":
        for name in PUBLIC:
            print(json.dumps(rollouts_of(name, given.python, given.rollouts or 8, 4), indent=1), flush=True)
    else:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(kills(given.kills, Path(directory)), indent=1))
