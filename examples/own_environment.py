"""An environment: it replies to the policy, so that a rollout has turns. A tiny random model learns to use it.

python examples/own_environment.py
scalerl train --model MODEL --data.kind custom --data.function own_environment:Lookups --data.params '{hops = 1}'
"""

import random

from tiny_model import QUICK, show, tiny_model

import scalerl

LETTERS = "abcd"


class Lookups:
    """Follow a chain through a table that only the environment sees: "dab>" with b -> e has the answer "=e"."""

    def __init__(self, hops=1, seed=0):
        """Receive the parameters of the configuration."""
        self.hops, self.seed = hops, seed

    def rows(self, count):
        """Yield rows; every row needs `prompt`, and `reply` receives the whole row."""
        rng = random.Random(self.seed)
        for _ in range(count):
            chain, name = rng.sample(LETTERS, self.hops + 1), "".join(rng.choices(LETTERS, k=4))
            yield {"prompt": f"{name}{chain[0]}>", "chain": chain}

    def reply(self, row, messages):
        """Return the next letter of the chain, or the score of an answer.

        Args:
            row: The row.
            messages: All messages so far, with role and content; the last one is the policy's.
        """
        chain, said = row["chain"], [one["content"] for one in messages if one["role"] == "assistant"]
        asked = sum(letter in said for letter in chain[:-1]) / self.hops
        if said[-1].startswith("="):
            return {"score": 0.5 * asked + 0.5 * (said[-1] == f"={chain[-1]}"), "lookups": len(said) - 1}
        if said[-1] in chain[:-1]:
            return chain[chain.index(said[-1]) + 1] + ">"
        return ">"  # no such entry


if __name__ == "__main__":
    run = scalerl.train(
        model=tiny_model(LETTERS + ">="),
        data={"kind": "custom", "function": "own_environment:Lookups", "prompts": 200, "turns": 3, "reply_tokens": 2},
        progress=False,
        **QUICK | {"recipe__length": {"kind": "none", "max_tokens": 3}, "recipe__truncated": "keep", "steps": 120},
    )
    show(run, ["reward", "pass_rate", "truncation_rate"])
    print(run)
