"""The states of a rollout (truncated, interrupted, failed, stopped) reach columns and filters on every path."""

import time
from concurrent.futures import Future
from dataclasses import replace

import pytest
from agent_parts import Told, chat, settings, tokenizer, user

from scalerl.core.plugins import PluginError
from scalerl.core.types import AGENT, TURNS, Group, Prompt, Score, ScoredGroup, Visit
from scalerl.training.config import LAB
from scalerl.training.config.placement import Placement
from scalerl.training.engines.agents.engine import AgentEngine, Endpoints
from scalerl.training.engines.engine import Request
from scalerl.training.engines.hosted import HostedEngines
from scalerl.training.engines.served import Restarter
from scalerl.training.engines.turns import TurnEngine
from scalerl.training.learner.batch import collate
from scalerl.training.loop.evaluation import eval_point
from scalerl.training.loop.evaluator import Snapshot
from scalerl.training.loop.loop import loss_tokens
from scalerl.training.loop.metrics import batch_row
from scalerl.training.loop.rollout_rows import rollout_row as row_of_file
from scalerl.training.models.text import TokenText
from scalerl.training.rewards.agents.harness import ProgramEnd
from scalerl.training.rewards.turns import Reply

STATES = ("stopped", "truncated", "interrupted", "failed")
"""One rollout of each, in this order; the policy is told which by its key."""

TURN_LIMITS = {"turns": 2, "reply_tokens": 8, "reply_s": 5.0, "reply_threads": 1, "reply_ticks": 1,
               "chat_template": "never"}  # fmt: skip


class Ending(Told):
    """An engine whose first turn of a rollout ends in the state that its key tells."""

    def turn_of(self, request):
        rollout = self.turn(request.prompt)
        state = STATES[request.key % len(STATES)]
        return replace(rollout, truncated=state == "truncated", interrupted=state == "interrupted")

    def begin(self):
        pass

    def poll(self, timeout_s=0.0):
        requests = {id: entry[1] for id, entry in self.under_way.items()}
        return [replace(one, rollout=self.turn_of(requests[one.id])) for one in super().poll(timeout_s)]


def inner():
    made = tokenizer()
    return Ending(made, lambda prompt: "ab")


def single_turn():
    return inner(), {}


def served():
    restarter = Restarter(lambda: HostedEngines([inner(), inner()]), "generator", 4, Placement(), print)
    restarter.pair()
    restarter.engines[0].swap(0)
    return restarter.engines[0], {}


def environment():
    def ask(prompt, said):
        future = Future()
        if prompt.columns["state"] == "failed":
            future.set_exception(PluginError("out of order"))
        else:
            future.set_result(Reply((), 1.0))
        return future

    engine = inner()
    return TurnEngine(engine, ask, TokenText(engine.tokenizer, (engine.end,))), {TURNS: TURN_LIMITS, "function": "own"}


def agent():
    engine = inner()

    def run(settings, row, base_url, key, own_s, stopped):
        chat(base_url, key, [user("one")])
        return ProgramEnd(0.0, problem="out of order") if row["state"] == "failed" else ProgramEnd(1.0)

    made = AgentEngine(engine, Endpoints(TokenText(engine.tokenizer, (engine.end,))), run=run)
    return made, {AGENT: settings(), "pass_reward": 1.0}


PATHS = {path.__name__: path for path in (single_turn, served, environment, agent)}


ENDED = {
    "single_turn": ["stop", "tokens", "stop", "stop"],
    "served": ["stop", "tokens", "stop", "stop"],
    "environment": ["environment", "tokens", "environment", "problem"],
    "agent": ["environment", "environment", "environment", "problem"],
}


def group_of(path):
    """Return a group with one rollout of each state, as a path made them and as they are scored."""
    engine, columns = PATHS[path]()
    prompts = [Prompt("0", "", (3, 4), "", "t", {**columns, "state": s, "row": {"state": s}}) for s in STATES]
    engine.submit([Request.of((0, number), prompt, number) for number, prompt in enumerate(prompts)])
    done, until = {}, time.monotonic() + 60
    while len(done) < len(STATES):
        assert time.monotonic() < until, f"only {list(done)} ended"
        done |= {one.id[1]: one.rollout for one in engine.poll(0.02)}
    rollouts = tuple(done[number] for number in range(len(STATES)))
    failed = [bool(r.outcome and r.outcome.problem) or (not columns and STATES[n] == "failed")
              for n, r in enumerate(rollouts)]  # fmt: skip
    scores = tuple(
        Score.missing("out of order") if lost else Score(1.0, not rollout.incomplete)
        for lost, rollout in zip(failed, rollouts, strict=True)
    )
    return ScoredGroup(Group(Visit(prompts[0], 0, 0), rollouts, 0), scores)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_has_the_same_columns_and_trained_tokens(path):
    scored = group_of(path)
    batch = collate([scored])
    row = batch_row(batch, batch.rewards_PG, batch.counted_PG.any(dim=1))
    # one of four each; of the three with a reward, the truncated one counts as wrong unless a program scored it after
    assert (row["truncation_rate"], row["interruption_rate"]) == (0.25, 0.25)
    assert batch.counted_PG.tolist() == [[True, True, True, False]]
    assert row["pass_rate"] == pytest.approx(1.0 if path == "agent" else 2 / 3)
    for truncated, trained in (("exclude", [True, False, True, False]), ("keep", [True, True, True, False])):
        recipe = replace_recipe(truncated)
        assert loss_tokens(batch, recipe, 0).any(dim=1).tolist() == trained
    point = eval_point([scored], Snapshot(1, 0.0, 0.0, 0), eval_s=0.0)
    assert (point.truncated, point.failed) == (0.25, 0.25)
    text = TokenText(tokenizer(), ())
    states = [row_of_file(text, 1, scored, sample) for sample in range(4)]
    assert [one["truncated"] for one in states] == [False, True, False, False]
    assert [one["interrupted"] for one in states] == [False, False, True, False]
    assert [one["ended"] for one in states] == ENDED[path]
    assert [one["reward"] is None for one in states] == [False, False, False, True]


def replace_recipe(truncated):
    return LAB.recipe.model_copy(update={"truncated": truncated})
