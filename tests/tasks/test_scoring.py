import json
import re
import textwrap
from concurrent.futures import Future

import pytest
from texts import decode, group

from scalerl.core.types import Prompt, Score
from scalerl.training.config import Scoring, read_config
from scalerl.training.rewards import math as math_task
from scalerl.training.rewards import scoring
from scalerl.training.rewards.base import Verdict, Verifier, verdict
from scalerl.training.rewards.pool import ProcessEnded
from scalerl.training.rewards.scoring import FunctionScorer, ProcessScorer, ScoringService, ThreadScorer, make_scorers
from scalerl.training.rewards.user_rewards import Failures, RewardError, call_reward

SETTINGS = Scoring(workers=1)


def prompt(reference="", task="task", **columns):
    return Prompt("0" * 16, "text", (1,), reference, task, columns)


def score(scorer, asked, completions):
    pending = scorer.submit(asked, completions)
    return pending.finish(pending.futures)


@pytest.fixture
def rewards_here(tmp_path, monkeypatch):
    """Write a module of reward functions into the current directory; return a scorer of one of them, by name."""
    scorers = []

    def make(text, name, pass_reward=1.0, **settings):
        (tmp_path / "my_rewards.py").write_text(textwrap.dedent(text))
        settings = Scoring(**{"workers": 1, **settings})
        scorers.append(FunctionScorer(f"my_rewards:{name}", pass_reward, settings))
        return scorers[-1]

    monkeypatch.chdir(tmp_path)
    yield make
    for scorer in scorers:
        scorer.close()


class Odd:
    """A value whose every use raises."""

    def _raise(self, *_):
        raise KeyError("odd")

    __float__ = __repr__ = _raise
    shape = property(_raise)


def test_a_reward_that_raises_when_it_is_read_is_a_failure_of_one_completion():
    first, second = call_reward(lambda prompts, completions: [1.0, Odd()], "f", prompt(), ["a", "b"])
    assert first == 1.0 and second.startswith("reward function f returned a Odd; allowed: a finite number")


def test_a_reward_function_gets_trls_arguments():
    seen = {}

    def reward(prompts, completions, answer, level, **columns):
        seen.update(prompts=prompts, completions=completions, answer=answer, level=level, columns=columns)
        return [0.2, 0.7]

    asked = prompt("x", prompt="p1", answer="x", level=1)
    assert call_reward(reward, "here", asked, ["c1", "c2"]) == [0.2, 0.7]
    texts = {"prompts": ["p1", "p1"], "completions": ["c1", "c2"], "answer": ["x", "x"]}
    assert seen == {**texts, "level": [1, 1], "columns": {}}


def test_rewards_of_at_least_pass_reward_pass(rewards_here):
    text = """
        def f(prompts, completions, answer, **columns):
            assert prompts == ["p1"] * len(completions) and answer == ["x"] * len(completions), (prompts, answer)
            return [float(text) for text in completions]
    """
    scorer = rewards_here(text, "f", pass_reward=0.5)
    asked = prompt("x", prompt="p1", answer="x")
    assert score(scorer, asked, ["0.2", "0.7"]) == [Score(0.2, False), Score(0.7, True)]
    assert score(scorer, asked, ["0.5", "0.49"]) == [Score(0.5, True), Score(0.49, False)]


def test_chat_prompts_get_chat_completions():
    got = []
    chat = prompt(prompt=[{"role": "user", "content": "hi"}])
    call_reward(lambda prompts, completions: got.extend(completions) or [1], "here", chat, ["hello"])
    assert got == [[{"role": "assistant", "content": "hello"}]]


ASYNCHRONOUS = """
    import asyncio

    async def judged(prompts, completions, answer, **columns):
        async def one(text, right):
            await asyncio.sleep(0.01)
            return float(text == right)
        return await asyncio.gather(*(one(text, right) for text, right in zip(completions, answer)))

    async def cancelled(prompts, completions): raise asyncio.CancelledError

    async def short(prompts, completions): return [1.0]

    async def sleeps(prompts, completions): await asyncio.sleep(60)
"""


def test_an_asynchronous_reward_function_is_run(rewards_here):
    scorer = rewards_here(ASYNCHRONOUS, "judged")
    assert score(scorer, prompt("x", answer="x"), ["x", "y"]) == [Score(1.0, True), Score(0.0, False)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cancelled", "its coroutine was cancelled"),
        ("short", "returned 1 rewards for 2 completions"),
        ("sleeps", "my_rewards:sleeps took longer"),
    ],
)
def test_a_failing_asynchronous_reward_function_is_counted(rewards_here, name, message, monkeypatch):
    monkeypatch.setattr(scoring, "REWARD_S", 1.0 if name == "sleeps" else 60.0)
    scorer = rewards_here(ASYNCHRONOUS, name)
    scores = score(scorer, prompt(), ["c", "d"])
    assert all(re.search(message, given.reason) for given in scores) and scorer.failures.failed == 2


BAD = """
    import os, time

    def raises(prompts, completions, **columns):
        raise KeyError("level")

    def sleeps(prompts, completions, **columns):
        time.sleep(60)

    def vanishes(prompts, completions, **columns):
        os._exit(7)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"reward function my_rewards:raises raised KeyError: 'level' \(.*my_rewards.py:\d+\)"),
        ("sleeps", r"my_rewards:sleeps took longer"),
        ("vanishes", r"my_rewards:vanishes .*exit code 7"),
    ],
)
def test_a_failing_reward_function_is_counted_and_does_not_end_the_run(rewards_here, name, message, monkeypatch):
    monkeypatch.setattr(scoring, "REWARD_S", 1.0 if name == "sleeps" else 60.0)
    scorer = rewards_here(BAD, name)
    first, second = score(scorer, prompt(), ["c", "d"])
    assert first == second == Score.missing("") and re.search(message, first.reason)
    assert scorer.failures.failed == 2
    (output,) = scorer.failures.news()
    assert re.search(message, output) and output.endswith("counted as failed (2 of 2 completions)")
    assert scorer.failures.news() == []


def test_the_run_ends_if_more_than_5_percent_of_100_completions_have_no_reward():
    few = Failures("reward function f")
    few.count(99, ["bad"] * 99)  # too few completions for the limit
    counted = Failures("reward function f")
    counted.count(100, ["bad"] * 5)
    counted.count(20, ["bad"])  # 6 of 120 are 5%
    with pytest.raises(RewardError, match="8 of 121"):
        counted.count(1, ["bad", "worse"])
    with pytest.raises(RewardError, match="100 of 100 completions"):
        few.count(1, ["bad"])


def test_the_limit_and_the_last_cause_survive_a_resume():
    before = Failures("reward function f")
    before.count(40, ["first", "second"])
    before.count(50, [])
    after = Failures("reward function f")
    after.load_state(json.loads(json.dumps(before.state())))  # through the format of a checkpoint
    for failures in (before, after):
        failures.count(10, ["third"] * 3)  # 5 of 100
        assert (failures.completions, failures.failed) == (100, 5)
    again = Failures("reward function f")
    again.load_state(json.loads(json.dumps(after.state())))
    assert again.state()["last"] == "third"
    with pytest.raises(RewardError, match=r"6 of 101 .*the last failure: fourth$"):
        again.count(1, ["fourth"])
    mended = Failures("reward function f")
    mended.load_state({"completions": 102, "failed": 52, "last": "early"})
    mended.count(100, [])  # the function was mended before the resume: no new failure
    with pytest.raises(RewardError, match="53 of 203"):
        mended.count(1, ["late"])


def test_the_counters_of_every_task_are_restored():
    def service():
        verifier = Verifier(lambda prompt, text: verdict(True, ""))
        return ScoringService({name: ThreadScorer(name, verifier, SETTINGS) for name in "ab"}, decode)

    before, after = service(), service()
    before._scorers["a"].timeouts = 3
    before._scorers["b"].failures.count(9, ["bad", "worse"])
    after.load_state(json.loads(json.dumps(before.state())))
    assert (after.timeouts, after.failures) == (3, 2) and after.state() == before.state()
    before.close()
    after.close()


def test_a_failing_verifier_affects_only_its_completion_and_is_counted():
    answers = {"a": verdict(True, ""), "b": Verdict(False, 0.5, "")}
    scorer = ThreadScorer("odd", Verifier(lambda prompt, text: answers[text]), SETTINGS)
    try:
        scores = score(scorer, prompt(), ["a", "b", "missing"])
        assert scores == [Score(1.0, True), Score(0.0, False), Score.missing("")]
        assert "raised KeyError: 'missing'" in scores[2].reason
        assert scorer.failures.failed == 1 and scorer.failures.completions == 3
    finally:
        scorer.close()


@pytest.mark.slow
def test_a_comparison_that_hangs_does_not_affect_other_completions():
    scorer = ProcessScorer("math", scoring.VERIFIERS["math"], Scoring(workers=1, timeout_s=2.0))
    try:
        scores = score(scorer, prompt("2"), ["\\boxed{2}", "\\boxed{x^{9^{9^{9}}} + 9^{9^{9^{9}}} x}", "\\boxed{2}"])
        assert [s.passed for s in scores] == [True, False, True]
        assert scores[1].reason == "the verifier took longer than 2 s" and scorer.timeouts == 1
    finally:
        scorer.close()


def test_a_comparison_that_ends_its_process_fails_its_completion(monkeypatch):
    scorer, call = ProcessScorer("math", scoring.VERIFIERS["math"], SETTINGS), Future()
    call.set_exception(ProcessEnded("3 times (exit code 3)"))
    monkeypatch.setattr(scorer._pool, "schedule", lambda *words, limit_s: call)
    (judged,) = score(scorer, prompt("2"), ["\\boxed{2}"])
    scorer.close()
    assert (judged.passed, judged.reward, scorer.timeouts) == (False, -1.0, 1)
    assert judged.reason == "the verifier's process ended 3 times (exit code 3)"


def scored(config, asked, *texts, truncated=()):
    """Score one group with the scoring of a configuration."""
    given = group(asked, *texts, truncated=truncated)
    service = ScoringService(make_scorers(config.data, config.scoring), decode)
    try:
        pending = service.submit(given)
        while not pending.wait(0.1):
            pass
        result = pending.result()
        assert result.group is given
        return list(result.scores)
    finally:
        service.close()


def test_a_truncated_rollout_never_passes(rewards_here):
    text = "</think>4"
    scores = scored(read_config(None, []), prompt("4", task="arithmetic"), text, text, truncated=(1,))
    assert scores == [Score(1.0, True), Score(-1.0, False)]
    function = rewards_here("def f(prompts, completions, **columns): return [5.0] * len(prompts)", "f")
    words = ["--model", "m", "--data", "d.jsonl", "--reward", "my_rewards:f"]
    for most, given in ((None, 0.0), ("-1", -1.0), ("none", 5.0)):
        chosen = words if most is None else [*words, "--data.truncated_reward", most]
        scores = scored(read_config(None, chosen), prompt(task="my_rewards:f"), text, text, truncated=(0,))
        assert scores == [Score(given, False), Score(5.0, True)]
    verifier = ProcessScorer("math", Verifier(math_task.verify, killable=True), SETTINGS)
    for scorer, failed in ((verifier, Score(-1.0, False)), (function, Score(0.0, False))):
        assert scorer.truncated(Score(1.0, True)) == failed
    assert verifier.truncated(Score.missing("")) == Score(-1.0, False)  # wrong, whatever the verifier would say
    assert function.truncated(Score.missing("")) == Score.missing("")  # its reward would be 0 or less
    verifier.close()
