"""A custom task: rows of prompts, and a score for each completion. A tiny random model trains on it.

python examples/own_task.py
scalerl train --model MODEL --data.kind custom --data.function own_task:Reverse --data.params '{length = 4}'
"""

import random

from tiny_model import QUICK, show, tiny_model

import scalerl

LETTERS = "abcd"


class Reverse:
    """A task to reverse a word; the score of a completion is the share of correct letters."""

    def __init__(self, length=4, seed=0):
        """Receive the parameters of the configuration."""
        self.length, self.seed = length, seed

    def rows(self, count):
        """Yield rows; every row needs `prompt`, and `score` receives the whole row."""
        rng = random.Random(self.seed)
        for _ in range(count):
            word = "".join(rng.choice(LETTERS) for _ in range(self.length))
            yield {"prompt": f"{word}>", "word": word}

    def score(self, row, completion):
        """Return a score from 0 to 1, and a reason."""
        wanted, given = row["word"][::-1], completion.strip()
        right = sum(a == b for a, b in zip(wanted, given, strict=False)) / len(wanted)
        return right, f"got {given[:20]!r}, expected {wanted!r}"


if __name__ == "__main__":
    run = scalerl.train(
        model=tiny_model(LETTERS + ">"),
        data={"kind": "custom", "function": "own_task:Reverse", "params": {"length": 3}, "prompts": 40},
        progress=False,
        **QUICK,
    )
    print("The reward is 2 x score - 1; a truncated completion counts as failed.")
    show(run, ["reward", "pass_rate", "truncation_rate"])
    print(run)
