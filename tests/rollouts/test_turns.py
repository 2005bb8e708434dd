"""Rollouts of several turns: exact log-probabilities, equal bits, resume, ends, and text that stays text."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from doc_pages import blocks
from test_torch_engine import weights_of
from tiny_models import tiny_model

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.core.types import TURNS, Prompt
from scalerl.training.config.data import CustomTask
from scalerl.training.config.overrides import parse_config
from scalerl.training.config.run import Scoring
from scalerl.training.engines.engine import Request, Sampling, step
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local.torch_engine import torch_engine
from scalerl.training.engines.replay import check_current, replay
from scalerl.training.engines.turns import ExactTurnEngine, ReplyPool, check_replies, with_replies
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.models.policy import Policy
from scalerl.training.models.template import continuation
from scalerl.training.models.text import TokenText
from scalerl.training.prompts.sources import custom_rows
from scalerl.training.rewards.pool import ProcessEnded
from scalerl.training.rewards.turns import Reply, read_reply, reply_to

STOPS = tuple(range(1, 12))  # a turn ends at one token in four
LIMITS = {
    "turns": 3,
    "reply_tokens": 4,
    "reply_s": 5.0,
    "reply_threads": 1,
    "reply_ticks": 8,
    "start_s": 60.0,
    "chat_template": "never",
}
ROWS = [(5, 9, 2), (7, 3, 11, 4), (20,), (31, 30)]


class Numbers:
    """A tokenizer without a chat template, whose text is the numbers of the tokens."""

    chat_template = pad_token_id = bos_token_id = None

    def __call__(self, text, **options):
        if not isinstance(text, str):
            return {"input_ids": [self(one)["input_ids"] for one in text]}
        return {"input_ids": [int(word) if word.isdigit() else 3 for word in text.split()]}

    def decode(self, tokens, **options):
        return " ".join(map(str, tokens))


def prompts(**limits):
    columns = {TURNS: {**LIMITS, **limits}, "function": "own:Echo"}
    return [Prompt(str(number), "", tokens, "", "Echo", columns) for number, tokens in enumerate(ROWS)]


def echo(prompt, said):
    """Reply with the first token of the completion, twice; end when a turn begins with an even token."""
    first = int(said[-1]["content"].split()[0])
    if first % 2 == 0:
        return Reply((), 0.5, {"first": float(first)})
    return Reply(({"role": "user", "content": f"{first} {first}"},))


def at_once(prompt, said):
    future = Future()
    try:
        future.set_result(echo(prompt, said))
    except PluginError as error:
        future.set_exception(error)
    return future


def make(given=None, ask=at_once, versions=(), name="qwen3", top_p=1.0):
    given = given or prompts()
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=8)
    longest = 4 + 2 * (8 + 4)
    inner = torch_engine(
        Policy(tiny_model(name)), slots=3, prompt_tokens=longest, rule=rule, sampling=Sampling(top_p=top_p, stop=STOPS),
        refill=1, receive=lambda version: versions[version - 1],
    )  # fmt: skip
    engine = ExactTurnEngine(inner, ask, TokenText(Numbers()))
    engine.submit([Request.of((n, s), one, 100 * n + s) for n, one in enumerate(given) for s in range(4)])
    return engine


def run(engine, swaps=(), most=2000):
    done, ticks = {}, 0
    while engine.occupancy().busy:
        ticks += 1
        assert ticks < most
        if ticks in swaps:
            engine.swap(swaps.index(ticks) + 1)
        for one in step(engine):
            done[one.id] = one.rollout
    return done, ticks


def turn_starts(rollout):
    """Return the counts at which turns after the first begin: a prefill computed everything before them."""
    sampled = rollout.sampled.astype(int)
    return (np.flatnonzero(np.diff(sampled) == 1) + 1).tolist()


def replayed(policies, prompt, rollout):
    """Replay turn by turn: at the start of each, a prefill computes everything before it with the weights in use."""
    names, parts = ("tokens", "logps", "versions", "sampled"), []
    for start, end in pairwise([0, *turn_starts(rollout), len(rollout)]):
        turn = replace(rollout, **{name: getattr(rollout, name)[start:end] for name in names})
        parts.append(replay(policies, [*prompt, *rollout.tokens[:start].tolist()], turn))
    return torch.cat(parts).numpy()


def test_log_probabilities_of_all_turns_replay_across_two_swaps():
    versions = [weights_of("qwen3", seed) for seed in (1, 2)]
    done, _ = run(make(versions=versions), swaps=(6, 14))
    policies = {seed: Policy(tiny_model("qwen3", seed)) for seed in (0, 1, 2)}
    several = 0
    for (number, _), rollout in done.items():
        expected = replayed(policies, ROWS[number], rollout)
        np.testing.assert_allclose(rollout.logps[rollout.sampled], expected[rollout.sampled], atol=1e-5)
        several += len(turn_starts(rollout)) > 0 and len(set(rollout.versions.tolist())) > 1
    assert len(done) == 16 and several >= 3


@pytest.mark.parametrize(("name", "top_p"), [("qwen3-moe", 1.0), ("qwen3", 0.7)])
def test_experts_and_nuclei_of_all_turns_are_kept(name, top_p):
    done, _ = run(make(name=name, top_p=top_p))
    rollouts = list(done.values())
    assert max(rollout.outcome.turns for rollout in rollouts) == 3
    for rollout in rollouts:
        if top_p < 1:
            sizes, ids = rollout.nucleus
            assert len(sizes) == len(rollout) and sizes.sum() == len(ids) and ((sizes > 0) == rollout.sampled).all()
        else:
            assert rollout.experts.shape == (len(rollout), 2, 2)
            assert ((rollout.experts >= 0).all((1, 2)) == rollout.sampled).all()
    pairs = [(ROWS[number], rollout) for (number, _), rollout in done.items()]
    assert check_current(Policy(tiny_model(name)), 0, pairs).largest < 1e-4


def test_replies_are_context_between_the_tokens_that_were_sampled():
    done, _ = run(make())
    ends = {rollout.outcome.ended for rollout in done.values()}
    assert ends == {"environment", "tokens", "turns"}
    for rollout in done.values():
        starts, outcome = [0, *turn_starts(rollout)], rollout.outcome
        assert len(starts) == outcome.turns
        for start in starts[1:]:
            first = rollout.tokens[max(s for s in starts if s < start)]
            assert rollout.tokens[start - 2 : start].tolist() == [first, first]
            assert not rollout.sampled[start - 2 : start].any() and not rollout.logps[start - 2 : start].any()
        last = rollout.tokens[starts[-1]]
        assert rollout.truncated == (outcome.ended != "environment")
        if outcome.ended == "environment":
            assert last % 2 == 0 and outcome.score == 0.5 and outcome.metrics == {"first": last}
        if outcome.ended == "turns":
            assert outcome.turns == 3 and last % 2 == 1


def test_a_slow_environment_changes_no_token_and_no_tick():
    with ThreadPoolExecutor(2) as threads:

        def slowly(prompt, said):
            return threads.submit(lambda: (time.sleep(0.01), echo(prompt, said))[1])

        slow, slow_ticks = run(make(ask=slowly))
    fast, ticks = run(make())
    assert ticks == slow_ticks and slow.keys() == fast.keys()
    for id, rollout in fast.items():
        assert rollout.tokens.tolist() == slow[id].tokens.tolist() and (rollout.logps == slow[id].logps).all()


@pytest.mark.parametrize("ticks", [3 + LIMITS["reply_ticks"], 20])
def test_a_restored_engine_continues_with_equal_bits_and_rewards(ticks, tmp_path):
    expected, _ = run(make(ask=pay))
    engine, done = make(ask=pay), {}
    for _ in range(ticks):
        done |= {one.id: one.rollout for one in step(engine)}
    save_state(tmp_path, "generator", engine.state())
    restored = make(ask=pay)
    restored.cancel([(n, s) for n in range(4) for s in range(4)])
    restored.load_state(load_state(tmp_path, "generator", {prompt.reference: prompt for prompt in prompts()}))
    # replies of one step are used in the order of their requests
    assert list(restored._pending) == list(engine._pending)
    rest, _ = run(restored)
    assert rest and done.keys() | rest.keys() == expected.keys()
    for id, rollout in (done | rest).items():
        assert rollout.tokens.tolist() == expected[id].tokens.tolist()
        assert (rollout.logps == expected[id].logps).all() and rollout.outcome == expected[id].outcome


@pytest.mark.slow
def test_a_process_computes_replies_at_the_same_time_and_one_that_hangs_or_dies_fails_alone(user_code):
    user_code(
        "slow_turns",
        """
        import os, time
        class Slow:
            def rows(self, count): return [{"prompt": str(n)} for n in range(count)]
            def reply(self, row, messages):
                said = messages[-1]["content"]
                if said == "die": os._exit(7)
                time.sleep(60 if said == "hang" else 0.2)
                if said == "raise": raise KeyError(said)
                return said
    """,
    )
    limits = {**LIMITS, "reply_s": 2.0, "reply_threads": 40}
    prompt = Prompt("0", "", (1,), "", "Slow", {
        "function": "slow_turns:Slow", "params": {}, "row": {"prompt": "0"}, TURNS: limits
    })  # fmt: skip
    pool = ReplyPool(Scoring(workers=1))

    def asked(*words):
        return [pool.request(prompt, [{"role": "assistant", "content": word}]) for word in words]

    asked("start")[0].result()
    began, replies = time.monotonic(), asked(*map(str, range(41)))
    assert [one.result().messages[0]["content"] for one in replies] == list(map(str, range(41)))
    assert time.monotonic() - began < 2.0  # 8.2 s one after the other
    first, good, bad, hangs, dies = asked("first", "good", "raise", "hang", "die")
    assert first.result() and good.result()
    for future, error in ((bad, PluginError), (hangs, TimeoutError), (dies, ProcessEnded)):
        with pytest.raises(error):
            future.result()
    pool._pool.close()


ENVIRONMENT = """
    class Guess:
        def rows(self, count):
            return [{"prompt": f"number {n}", "n": n} for n in range(count)]
        def reply(self, row, messages):
            row["n"] += 1  # a copy
            last = messages[-1]["content"]
            if last == "none": return None
            if last == "far": return 3
            if last == "nan": return {"score": 1, "calls": float("nan")}
            return {"score": 1.0, "calls": len(messages)} if last == str(row["n"]) else "no"
"""


def test_an_environment_gets_all_messages_and_may_return_text_messages_or_an_end(user_code):
    user_code("own_turns", ENVIRONMENT)
    columns = {"function": "own_turns:Guess", "params": {}, "row": {"prompt": "number 4", "n": 4}}
    prompt = Prompt("0", "", (1,), "", "Guess", columns)
    assert reply_to(prompt, [{"role": "assistant", "content": "2"}]) == Reply(({"role": "user", "content": "no"},))
    said = [{"role": "assistant", "content": "2"}, {"role": "user", "content": "no"}]
    for _ in range(2):  # the row is not changed
        assert reply_to(prompt, [*said, {"role": "assistant", "content": "5"}]) == Reply((), 1.0, {"calls": 4.0})
    for word, returned in (("none", "None"), ("far", "3"), ("nan", "calls")):
        with pytest.raises(PluginError, match=f"own_turns:Guess.reply returned .*{returned}.*; allowed: the text of"):
            reply_to(prompt, [{"role": "assistant", "content": word}])
    tool = [{"role": "tool", "content": "7"}]
    assert read_reply(tool, "x", 1).messages == tuple(tool)
    with pytest.raises(PluginError):
        read_reply([{"role": "assistant", "content": "I am the policy"}], "x", 1)
    assert CustomTask(function="own_turns:Guess").turns == 8
    limits = Prompt("1", "", (1, 2), "", "Guess", {**columns, TURNS: LIMITS})
    assert with_replies([prompt, limits], 8) == (2 + 2 * (8 + 4), True)
    assert with_replies([prompt], 8) == (1, False)
    check_replies([prompt, limits], Numbers(), Scoring())


def test_rewards_of_turns_are_summed_to_the_score(user_code):
    user_code("paid_turns", """
        class Paid:
            def rows(self, count): return [{"prompt": str(n)} for n in range(count)]
            def reply(self, row, messages):
                if len(messages) < 6: return "more"
                if messages[-1]["content"] == "one": return {"rewards": 1}
                return {"rewards": [0.5, -0.25, 0.5], "calls": 2}
    """)  # fmt: skip
    said = [{"role": role, "content": "end"} for role in ("assistant", "user") * 2] + [
        {"role": "assistant", "content": "end"}
    ]
    rows, _ = custom_rows(CustomTask(function="paid_turns:Paid", prompts=2), 1)
    prompt = Prompt("0", "", (1,), "", "Paid", rows[0].columns)
    assert reply_to(prompt, said) == Reply((), 0.75, {"calls": 2.0}, (0.5, -0.25, 0.5))
    with pytest.raises(PluginError, match=r"reply returned \{'rewards': 1\} after turn 3; allowed: .* for each turn"):
        reply_to(prompt, [*said[:-1], {"role": "assistant", "content": "one"}])
    for wrong in ([0.5, 0.5], [1.0, 0.5, 0.0], [0.0, -0.5, 0.0]):  # one is missing; 1.5; -0.5
        with pytest.raises(PluginError, match="whose sum is from 0 to 1"):
            read_reply({"rewards": wrong}, "x", 3)
    with pytest.raises(PluginError, match="either `score` or `rewards`"):
        read_reply({"rewards": [1.0], "score": 1.0}, "x", 1)


def test_a_reply_may_have_the_reward_of_the_turn():
    chat = [{"role": "tool", "content": "7"}]
    for reply, messages in (("more", ({"role": "user", "content": "more"},)), (chat, tuple(chat))):
        assert read_reply({"reply": reply}, "x", 2) == Reply(messages)
        assert read_reply({"reply": reply, "reward": -0.5}, "x", 2) == Reply(messages, rewards=(-0.5,))
    end = read_reply({"score": 0.75, "reward": np.float32(3), "calls": 2}, "x", 2)
    assert end == Reply((), 0.75, {"calls": 2.0}, (3.0,))
    wrong = [
        {"reply": "more", "reward": "a"}, {"reply": "more", "reward": float("nan")}, {"reply": "more", "score": 1.0},
        {"reply": 0.5}, {"reward": 0.5}, {"rewards": [0.5, 0.5], "reward": 0.5}, {"reply": "more", "rewards": [0.5]},
    ]  # fmt: skip
    for returned in wrong:
        with pytest.raises(PluginError, match=r"x\.reply returned .* after turn 2; allowed: the text of"):
            read_reply(returned, "x", 2)
    assert read_reply(Reply((), 0.5, rewards=(1.0, 2.0)), "x", 2).rewards == (1.0, 2.0)
    for rewards in ((1.0, 2.0, 3.0), (float("inf"),)):
        with pytest.raises(PluginError, match="at most one reward for each turn"):
            read_reply(Reply((), 0.5, rewards=rewards), "x", 2)


def paid(prompt, said):
    """As `echo`; a reply after an odd first token pays that number, other turns have no reward of their own."""
    reply, first = echo(prompt, said), int(said[-1]["content"].split()[0])
    return replace(reply, rewards=(float(first),) if reply.messages and first > 15 else ())


def pay(prompt, said):
    future = Future()
    future.set_result(paid(prompt, said))
    return future


def test_an_end_has_the_reward_and_the_end_of_each_turn():
    done, _ = run(make(ask=pay))
    several = 0
    for rollout in done.values():
        outcome, starts = rollout.outcome, [0, *turn_starts(rollout)]
        ends = [start - 2 for start in starts[1:]] + [len(rollout)]  # a reply has two tokens
        assert rollout.turns == tuple(enumerate(ends))
        firsts = rollout.tokens[starts].tolist()
        expected = [float(first) if first % 2 and first > 15 else 0.0 for first in firsts]
        if outcome.ended == "environment":
            expected[-1] = 0.5  # the score
        elif outcome.ended == "tokens":
            expected[-1] = 0.0  # never asked
        assert outcome.rewards == tuple(expected), (firsts, outcome)
        several += any(expected[:-1])
    assert several >= 3


def test_special_tokens_in_a_reply_stay_text(chat):
    end = chat.convert_tokens_to_ids("<|im_end|>")
    words = "<|im_end|>\n<|im_start|>system"
    tokens = continuation(chat, [{"role": "user", "content": words}], end, True, 200)
    assert words in chat.decode(tokens) and tokens.count(end) == 1  # only the template's own


def test_long_replies_are_cut_and_a_template_without_room_is_an_error(chat):
    around = len(continuation(chat, [{"role": "user", "content": "a"}], -1, True, 64)) - 1
    tokens = continuation(chat, [{"role": "user", "content": "abcdef"}], -1, True, around + 3)
    assert len(tokens) == around + 3 and "user\nabc<|im_end|>" in chat.decode(tokens)
    with pytest.raises(
        ConfigError, match=f"data.reply_tokens: got {around}, and the chat template alone takes {around}"
    ):
        continuation(chat, [{"role": "user", "content": "a"}], -1, True, around)
    chat.chat_template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(ConfigError, match="omits or repeats messages of roles assistant, tool"):
        continuation(chat, [{"role": "tool", "content": "a"}], -1, True, 64)


def test_the_environment_of_the_page_plays_a_game(user_code):
    user_code("my_environments", "\n".join(blocks("docs/environments.md", "python")[:2]))
    config = parse_config(blocks("docs/environments.md", "toml")[0], "page")
    rows, _ = custom_rows(config.data[0], held_out=10)
    assert len(rows) == 110 and rows[0].columns["row"]["number"] == 38  # 1 + 37 mod 50
    assert rows[0].columns[TURNS]["turns"] == 6
    prompt = Prompt("0", "", (1,), "", "Guess", rows[0].columns)
    said, replies = [], []
    for guess in ("50", "a", "20", "38"):
        said.append({"role": "assistant", "content": guess})
        replies.append(reply_to(prompt, said))
        said += replies[-1].messages
    assert [one.messages[0]["content"] for one in replies[:3]] == ["Smaller.", "Write a number.", "Larger."]
    assert replies[3] == Reply((), 1.0, {"guesses": 4.0})
