"""A custom engine: a wrapper around the built-in one that counts tokens. A tiny run samples with it.

python examples/own_engine.py
scalerl train --model MODEL --data FILE --placement.engine '{kind = "custom", function = "own_engine:Counting"}'
"""

from tiny_model import QUICK, show, tiny_model, words

import scalerl
from scalerl.training.engines.engine import EngineWrapper
from scalerl.training.engines.testing import check_engine

LETTERS = "abcd"


class Counting(EngineWrapper):
    """An engine that forwards all calls to the built-in one, and counts finished sequences and tokens."""

    def __init__(self, parts, every=200):
        """Receive the parts (`EngineParts` of scalerl.training.engines.testing), then the configured parameters."""
        super().__init__(parts.torch_engine())
        self.every, self.evaluating = every, parts.evaluating
        self.sequences = self.tokens = 0

    def poll(self, timeout_s=0.0):
        """Return finished sequences, and count them."""
        finished = self.inner.poll(timeout_s)
        before = self.sequences // self.every
        self.sequences += len(finished)
        self.tokens += sum(len(one.rollout) for one in finished)
        if self.sequences // self.every > before:
            kind = "evaluation" if self.evaluating else "training"
            print(f"version {self.version:3d}: {self.sequences} sequences, {self.tokens} tokens for {kind}", flush=True)
        return finished


if __name__ == "__main__":
    model = tiny_model(LETTERS + ">")
    check_engine("own_engine:Counting", str(model))
    print("the engine fulfills the contract")
    run = scalerl.train(
        model=model,
        data=words(LETTERS, 100),
        reward={"function": "own_reward:letters", "params": {"letter": "b"}},
        placement__engine={"kind": "custom", "function": "own_engine:Counting", "params": {"every": 300}},
        progress=False,
        **QUICK,
    )
    show(run, ["reward", "occupancy", "replay_difference"])
    print(run)
