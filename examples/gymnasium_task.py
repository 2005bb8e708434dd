"""A text environment of Gymnasium as a task: each reply replays the game from its seed. Needs the package gymnasium.

scalerl train --model MODEL --data.kind custom --data.function gymnasium_task:Replayed --data.params '{id = "Game-v0"}'
"""

import gymnasium


class Replayed:
    """A Gymnasium environment."""

    def __init__(self, id):
        self.id = id

    def rows(self, count):
        """Yield a row for each seed; prompts must differ."""
        for seed in range(count):
            text, _ = gymnasium.make(self.id).reset(seed=seed)
            yield {"prompt": f"Game {seed}: {text}", "seed": seed}

    def reply(self, row, messages):
        """Return the observation after the policy's actions and the last reward, or the rewards of all turns."""
        game, rewards = gymnasium.make(self.id), []
        game.reset(seed=row["seed"])
        for action in (one["content"] for one in messages if one["role"] == "assistant"):
            text, reward, terminated, truncated, _ = game.step(action.strip())
            rewards.append(reward)
        return {"rewards": rewards} if terminated or truncated else {"reply": text, "reward": rewards[-1]}
