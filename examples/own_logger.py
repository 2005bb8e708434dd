"""A logger of your own: it writes every number of a run to a file of JSON lines. A tiny run uses it.

python examples/own_logger.py
scalerl train --loggers '[{kind = "custom", function = "own_logger:Lines", params = {file = "log.jsonl"}}]'
"""

import json
from pathlib import Path

from tiny_model import QUICK, show, tiny_model, words

import scalerl

LETTERS = "abcd"


class Lines:
    """A file of JSON lines."""

    def __init__(self, file):
        """Receive the parameters of the configuration."""
        self.file = file

    def start(self, config, run):
        """Begin, and return an id; a resume gets it back as run.id. `run` has name, path, id, resumed_step and part."""
        return self.file

    def log(self, metrics, step):
        """Log numbers by name."""
        with open(self.file, "a") as out:
            out.write(json.dumps({"step": step, **metrics}) + "\n")

    def figure(self, name, png, step):
        """Receive the path of a picture; copy it, because it is removed afterwards."""

    def finish(self, state):
        """End; the state is finished, stopped or failed."""


if __name__ == "__main__":
    run = scalerl.train(
        model=tiny_model(LETTERS + ">"),
        data=words(LETTERS, 100),
        reward={"function": "own_reward:letters", "params": {"letter": "b"}},
        loggers=[{"kind": "custom", "function": "own_logger:Lines", "params": {"file": "log.jsonl"}}],
        progress=False,
        **QUICK,
    )
    print(len(Path("log.jsonl").read_text().splitlines()), "lines in log.jsonl")
    show(run, ["reward", "pass_rate", "truncation_rate"])
    print(run)
