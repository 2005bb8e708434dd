import textwrap
import time

import pytest

from scalerl.config import read_config
from scalerl.config.base import ConfigError
from scalerl.tasks import math as math_task
from scalerl.tasks import scoring
from scalerl.tasks.scoring import (
    FunctionScorer,
    InlineScorer,
    PooledScorer,
    RewardError,
    Score,
    load_function,
    make_scorer,
)
from scalerl.types import Prompt


def prompt(reference="", **columns):
    return Prompt("0" * 16, "text", (1,), reference, "task", columns)


@pytest.mark.parametrize(
    ("completion", "answer", "passed"),
    [
        ("<think>maybe 7</think>The answer is \\boxed{\\frac{1}{2}}.", "0.5", True),
        ("<think>\\boxed{0.5}</think>I do not know", "0.5", False),
        ("it is \\boxed{2\\sqrt{3}}", "\\sqrt{12}", True),
        ("so $x = 3$", "3", True),
        ("\\boxed{4}", "$5$", False),
        ("", "3", False),
    ],
)
def test_math_is_judged_on_the_text_after_the_thinking(completion, answer, passed):
    assert math_task.verify(completion, answer) is passed


def test_the_pool_scores_in_order_and_survives_a_verifier_that_hangs_or_crashes(monkeypatch, tmp_path):
    module = tmp_path / "hanging_verifier.py"
    module.write_text(
        textwrap.dedent("""
        import os, time
        from scalerl.tasks import scoring
        def verify(completion, answer):
            if completion == "hang": time.sleep(60)
            if completion == "crash": os._exit(3)
            return completion == answer
        scoring.VERIFIERS["trap"] = verify
        def install(): pass
    """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import hanging_verifier

    monkeypatch.setattr(
        scoring, "_quiet", hanging_verifier.install
    )  # the pool's initialiser imports it in each process
    scorer = PooledScorer("trap", processes=2, timeout_s=1.5)
    try:
        began = time.perf_counter()
        scores = scorer.score([prompt("a")] * 4, ["a", "hang", "crash", "b"])
        assert [s.passed for s in scores] == [True, False, False, False]
        assert [s.reward for s in scores] == [1.0, -1.0, -1.0, -1.0]
        assert scorer.timeouts == 2 and time.perf_counter() - began < 15
        assert scorer.score([prompt("a")], ["a"]) == [Score(1.0, True)]
    finally:
        scorer.close()


def test_a_reward_function_gets_trls_arguments_and_its_rewards_pass_from_the_given_level_on():
    seen = {}

    def reward(prompts, completions, answer, level, **columns):
        seen.update(prompts=prompts, completions=completions, answer=answer, level=level, columns=columns)
        return [0.2, 0.7]

    scorer = FunctionScorer(reward, "here", pass_reward=0.5)
    items = [prompt("x", prompt="p1", answer="x", level=1), prompt("y", prompt="p2", answer="y", level=2)]
    assert scorer.score(items, ["c1", "c2"]) == [Score(0.2, False), Score(0.7, True)]
    assert seen == {
        "prompts": ["p1", "p2"],
        "completions": ["c1", "c2"],
        "answer": ["x", "y"],
        "level": [1, 2],
        "columns": {},
    }


def test_chat_prompts_get_chat_completions():
    got = []
    scorer = FunctionScorer(lambda prompts, completions: got.extend(completions) or [1], "here", 1.0)
    scorer.score([prompt(prompt=[{"role": "user", "content": "hi"}])], ["hello"])
    assert got == [[{"role": "assistant", "content": "hello"}]]


def broken(prompts, completions, **columns):
    raise KeyError("level")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (broken, r"reward function f raised KeyError: 'level' \(.*test_scoring.py:\d+\)"),
        (lambda prompts, completions: [1.0, 2.0], "returned 2 rewards for 1 completions"),
        (lambda prompts, completions: [None], "returned None; allowed: a finite number"),
        (lambda prompts, completions: [float("nan")], "returned nan; allowed: a finite number"),
    ],
)
def test_a_bad_reward_function_is_named_with_what_it_did(function, message):
    with pytest.raises(RewardError, match=message):
        FunctionScorer(function, "f", 1.0).score([prompt()], ["c"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nocolon", "got 'nocolon'; allowed: package.module:function"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("json:no_such_function", "json has no function 'no_such_function'"),
    ],
)
def test_a_reward_function_that_is_not_there_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        load_function(name)


def test_the_configuration_chooses_the_scorer(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text("def f(prompts, completions): return [3.0] * len(prompts)\n")
    monkeypatch.chdir(tmp_path)
    words = ["--model", "m", "--data", "d.jsonl", "--reward", "my_rewards:f"]
    assert make_scorer(read_config(None, words)).score([prompt()], ["c"]) == [Score(3.0, True)]
    assert isinstance(make_scorer(read_config(None, [])), InlineScorer)


def test_a_reward_module_is_that_of_the_current_directory_whatever_was_imported_before(tmp_path, monkeypatch):
    for place, reward in (("one", 1.0), ("two", 2.0)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "rewards_here.py").write_text(f"def f(prompts, completions): return [{reward}]\n")
        monkeypatch.chdir(tmp_path / place)
        assert load_function("rewards_here:f")([], []) == [reward]


def test_each_completion_is_judged_by_the_verifier_of_its_prompts_task():
    prompts = [Prompt("0" * 16, "q", (1,), "4", "arithmetic"), Prompt("1" * 16, "q", (1,), ",0:4,1:4", "programs")]
    scorer = make_scorer(read_config(None, ["--data.kind", "mixed"]))
    passed = [[s.passed for s in scorer.score(prompts, [text] * 2)] for text in ("</think>4", "</think>x*0+4")]
    assert passed == [[True, True], [False, True]]


def test_a_truncated_rollout_has_failed_whatever_it_says():
    assert InlineScorer().failed(Score(1.0, True)) == Score(-1.0, False)
    assert FunctionScorer(lambda prompts, completions: [], "f", 1.0).failed(Score(5.0, True)) == Score(5.0, False)
