"""A complete engine without a model: it draws every token uniformly, and shows each method of the contract.

python examples/uniform_engine.py
"""

import numpy as np

from scalerl.core.rng import uniforms
from scalerl.core.types import Rollout
from scalerl.training.engines.engine import Finished, Occupancy, Request, Work, step


class UniformEngine:
    """An ExactEngine: token 0 ends a sequence; every token has probability 1 / vocabulary."""

    def __init__(self, slots, vocabulary, longest, receive):
        self.slots, self.vocabulary, self.longest, self.receive = slots, vocabulary, longest, receive
        self.version, self.work, self.finished = 0, Work(), []
        self.queue = {}  # id -> (request, tokens so far, their versions)

    def occupancy(self):
        """Return how many sequences run and wait, and how many more would keep the slots filled."""
        running = min(self.slots, len(self.queue))
        return Occupancy(self.slots, running, len(self.queue) - running, room=self.slots - len(self.queue))

    def submit(self, requests):
        """Queue sequences."""
        self.queue |= {request.id: (request, [], []) for request in requests}

    def cancel(self, ids):
        """Drop sequences."""
        self.queue = {id: entry for id, entry in self.queue.items() if id not in ids}

    def begin(self):
        """Decode one step."""
        running = list(self.queue.values())[: self.slots]
        for request, tokens, versions in running:
            draw = uniforms(np.asarray([request.key], np.uint64), np.asarray([len(tokens)]))[0]
            tokens.append(int(draw * self.vocabulary))
            versions.append(self.version)
            if tokens[-1] == 0 or len(tokens) == self.longest:
                self.finished.append(Finished(request.id, self.rollout(tokens, versions)))
                del self.queue[request.id]
        self.work += Work(steps=1, tokens=len(running), slot_steps=self.slots)

    def poll(self, timeout_s=0.0):
        """Return what has finished."""
        finished, self.finished = self.finished, []
        return finished

    def rollout(self, tokens, versions):
        """Return a finished sequence with the log-probability and the version of each token."""
        logps = np.full(len(tokens), -np.log(self.vocabulary), np.float32)
        sampled, truncated = np.ones(len(tokens), np.bool_), tokens[-1] != 0
        return Rollout(np.asarray(tokens), logps, np.asarray(versions), sampled, truncated, interrupted=False)

    def swap(self, version):
        """Receive weights, and use them for all further tokens."""
        self.weights, self.version = self.receive(version), version

    def state(self):
        """Return the sequences under way as plain values; a resumed run continues with them."""
        work = [self.work.steps, self.work.tokens, self.work.slot_steps]
        return {"work": work, "queue": [[[*r.id], [*r.prompt], r.key, *kept] for r, *kept in self.queue.values()]}

    def load_state(self, state):
        """Restore what `state` returned."""
        self.work = Work(*state["work"])
        for id, prompt, key, tokens, versions in state["queue"]:
            self.queue[tuple(id)] = Request(tuple(id), tuple(prompt), key), tokens, versions


if __name__ == "__main__":
    engine = UniformEngine(slots=2, vocabulary=8, longest=20, receive=lambda version: {})
    engine.swap(0)
    engine.submit([Request(id=(0, number), prompt=(3, 5), key=number) for number in range(4)])
    done = []
    while len(done) < 4:
        done += step(engine)
    for one in done:
        print(one.id, one.rollout.tokens.tolist(), "truncated" if one.rollout.truncated else "")
