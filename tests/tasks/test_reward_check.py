"""Custom reward functions: their parameters, and the check before a run."""

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config import Scoring, read_config, to_toml
from scalerl.training.config.data import RewardFunction
from scalerl.training.rewards.checks import check_reward, check_rewards
from scalerl.training.rewards.scoring import make_scorers

MODULE = """
    def length(prompts, completions, limit=100, **columns):
        return [min(len(text), limit) / limit for text in completions]

    def level(prompts, completions, level):
        return [float(level[0])] * len(completions)

    def none(prompts, completions): return [None, 1.0]
"""
ROW = Prompt("0" * 16, "2+2=", (1,), "4", "math", {"answer": "4", "level": 3}, where="prompts.jsonl, line 1")


@pytest.fixture(autouse=True)
def module(user_code):
    user_code("checked_rewards", MODULE)


def reward(name, **params):
    return RewardFunction(function=f"checked_rewards:{name}", params=params)


def test_options_override_reward_parameters_and_a_new_function_drops_them(tmp_path):
    (tmp_path / "run.toml").write_text(
        '[model]\nkind = "hf"\npath = "m"\n[data]\nkind = "file"\npath = "d.jsonl"\nreward = "checked_rewards:length"\n'
    )
    config = read_config(tmp_path / "run.toml", ["--data.reward.params", "{limit = 8}"])
    assert config.data[0].reward == reward("length", limit=8)
    (tmp_path / "saved.toml").write_text(to_toml(config))
    again = read_config(tmp_path / "saved.toml", ["--reward", "checked_rewards:level"])
    assert again.data[0].reward == reward("level")


def test_parameters_reach_the_function_in_the_process_that_calls_it():
    words = ["--model", "m", "--data", "d.jsonl", "--reward", "checked_rewards:length"]
    config = read_config(None, [*words, "--data.reward.params", "{limit = 8}"])
    (scorer,) = make_scorers(config.data, config.scoring).values()
    try:
        pending = scorer.submit(ROW, ["", "four", "twelve chars"])
        assert [score.reward for score in pending.finish(pending.futures)] == [0.0, 0.5, 1.0]
    finally:
        scorer.close()


def test_a_parameter_replaces_the_column_of_its_name(scored_here):
    # float("7"); the column's list [3] would also be converted
    check_reward(reward("level", level="7"), ROW, Scoring())
    for params in ({"level": "x"}, {"limit": 8}):
        with pytest.raises(ConfigError, match=r"'(x|limit)'"):
            check_reward(reward("level", **params), ROW, Scoring())


def test_the_reward_of_each_task_is_tried_on_a_prompt_of_the_task(scored_here):
    words = ["--model", "m", "--data", "d.jsonl", "--reward", "checked_rewards:none", "--data.name", "mine"]
    config = read_config(None, words)
    check_rewards(config.data, config.scoring, [ROW])  # of another task
    mine = Prompt("1" * 16, "2+3=", (1,), "5", "mine", {"answer": "5"})
    with pytest.raises(ConfigError, match="first prompt"):
        check_rewards(config.data, config.scoring, [ROW, mine])
