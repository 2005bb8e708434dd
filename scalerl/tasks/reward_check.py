"""Check of the user's reward functions on made-up completions before training."""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.config import RunConfig
from scalerl.config.base import replace
from scalerl.config.data import PromptFile, RewardFunction
from scalerl.config.run import Scoring
from scalerl.core.errors import ConfigError
from scalerl.core.plugins import check_arguments
from scalerl.tasks.scoring import FunctionScorer
from scalerl.tasks.user_rewards import columns_taken, load_reward
from scalerl.types import Prompt

MADE_UP = ("I do not know.", "The answer is 4.")
"""Completions for which any reward function must return a number."""


def check_rewards(config: RunConfig, prompts: Sequence[Prompt]) -> None:
    """Call the reward function of each task that has one on made-up completions of the task's first prompt.

    Args:
        config: Configuration of the run.
        prompts: Prompts of all tasks.

    Raises:
        ConfigError: A function takes other arguments, raises, exits, hangs, or does not return numbers.
    """
    for task in config.data:
        first = next((prompt for prompt in prompts if prompt.task == task.curve), None)
        if isinstance(task, PromptFile) and task.reward is not None and first is not None:
            check_reward(task.reward, first, config.scoring)


def check_reward(reward: RewardFunction, prompt: Prompt, settings: Scoring) -> None:
    """Call one reward function on made-up completions of a prompt, in a separate process.

    Raises:
        ConfigError: See `check_rewards`.
    """
    function = load_reward(reward.function)
    columns = columns_taken(function, [prompt])
    given = {"prompts": [prompt.text], "completions": [MADE_UP[0]]}
    try:
        check_arguments(function, reward.function, "data.reward", (), {**given, **columns, **reward.params})
    except ConfigError as error:
        reason = str(error).rpartition("; ")[2]
        params = "".join(f", {name}={value!r}" for name, value in reward.params.items())
        raise ConfigError(
            f"data.reward: {reward.function} must take (prompts, completions, **columns{params}) by name; {reason}. "
            f"Columns of the rows: {', '.join(sorted({*prompt.columns} - {'prompt'})) or 'none'}"
        ) from None
    scorer = FunctionScorer(reward.function, 1.0, replace(settings, workers=1), params=reward.params)
    try:
        found = scorer.rewards(prompt, MADE_UP)
    finally:
        scorer.close()
    problems = [given for given in found if isinstance(given, str)]
    if problems:
        raise ConfigError(
            f"data.reward: on {len(MADE_UP)} made-up completions of {prompt.where or 'the first prompt'}, {problems[0]}"
        )
