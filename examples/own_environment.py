"""An environment: it replies to the policy, so that a rollout has turns. A tiny random model learns to use it.

python examples/own_environment.py [STEPS]     # 200 steps learn it in minutes
scalerl train --model MODEL --data.kind custom --data.function own_environment:Lookups --data.params '{hops = 1}'
"""

import random
import sys

from tiny_model import QUICK, show, tiny_model

import scalerl

LETTERS = "abcd"


class Lookups:
    """Follow a chain through a table that only the environment sees: "dab>" with b -> c is solved by b, then c."""

    def __init__(self, hops=1, seed=0, fails=0.0):
        """Receive the parameters of the configuration; `fails` is the share of replies that raise an error."""
        self.hops, self.seed, self.fails = hops, seed, fails

    def rows(self, count):
        """Yield rows; every row needs `prompt`, and `reply` receives the whole row."""
        rng = random.Random(self.seed)
        for _ in range(count):
            chain, name = rng.sample(LETTERS, self.hops + 1), "".join(rng.choices(LETTERS, k=4))
            yield {"prompt": f"{name}{chain[0]}>", "chain": chain}

    def reply(self, row, messages):
        """Return the entry of the letter that the policy asked for; after a mistake or the last letter, the end.

        Every right turn has a reward. Their sum is the score.

        Args:
            row: The row.
            messages: All messages so far, with role and content; the last one is the policy's.
        """
        if random.Random(str(messages)).random() < self.fails:  # the same reply fails again after a kill
            raise ConnectionError("the table is away")
        said = [one["content"] for one in messages if one["role"] == "assistant"]
        rewards = [(a == b) / (self.hops + 1) for a, b in zip(said, row["chain"], strict=False)]
        if all(rewards) and len(said) <= self.hops:
            return {"reply": row["chain"][len(said)] + ">", "reward": rewards[-1]}
        return {"rewards": rewards, "lookups": len(said) - 1}


SETTINGS = {
    "recipe__prompts_per_step": 16,
    "recipe__generations_per_prompt": 16,
    "recipe__length": {"kind": "none", "max_tokens": 3},  # of each turn
    "recipe__truncated": "keep",  # so that the model learns to end its turns
    "recipe__optimizer": {"learning_rate": 4e-3, "warmup_steps": 5},
}

if __name__ == "__main__":
    steps = {"steps": int(sys.argv[1])} if len(sys.argv) > 1 else {}
    run = scalerl.train(
        model=tiny_model(LETTERS + ">"),
        data={"kind": "custom", "function": "own_environment:Lookups", "prompts": 200, "turns": 3, "reply_tokens": 2},
        progress=False,
        **QUICK | SETTINGS | steps,
    )
    print("The score is the share of right turns. The model first learns to end a turn, then to copy the entries.")
    show(run, ["reward", "pass_rate", "truncation_rate"])
    print(run)
