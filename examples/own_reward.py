"""A custom reward function with parameters: write a letter a number of times. A tiny random model learns it.

python examples/own_reward.py
scalerl train --model MODEL --data FILE --reward own_reward:letters --data.reward.params '{letter = "b"}'
"""

from tiny_model import QUICK, show, tiny_model, words

import scalerl

LETTERS = "abcd"


def letters(prompts, completions, letter="a", times=1, **columns):
    """Return a reward per completion, as in TRL: 1 for exactly `times` copies of the letter, less otherwise."""
    wrong = [abs(text.count(letter) - times) + len(text) - text.count(letter) for text in completions]
    return [max(0.0, 1 - count / times) for count in wrong]


if __name__ == "__main__":
    run = scalerl.train(
        model=tiny_model(LETTERS + ">"),
        data=words(LETTERS, 100),
        reward={"function": "own_reward:letters", "params": {"letter": "b"}},
        progress=False,
        **QUICK,
    )
    show(run, ["reward", "pass_rate", "truncation_rate"])
    print(run)
