"""Times forward and backward passes over a batch: padded compared with packed rows, for several spreads of lengths.

    python benchmarks/packing.py [--rounds 7] [--out packing.json]

Both layouts alternate. Times are CPU seconds of the single thread, so that other load matters less. Prints medians over
the rounds, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from ranks import MODELS, model_at
from torch import Tensor
from work import machine

from scalerl.training.config.recipe import Recipe
from scalerl.training.learner.batch import RolloutTensors, TrainBatch
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.policy import load_policy

SPREADS = ("equal", "uniform", "long-tailed")
BUDGETS = (2048, 16_384)
"""Tokens per micro-batch; the second is the default, which is the whole batch here."""


def lengths_of(spread: str, rollouts: int, longest: int) -> Tensor:
    """Return the lengths of a batch: equal, uniform from half of the longest on, or lognormal with sigma 1."""
    draw = torch.Generator().manual_seed(0)
    if spread == "equal":
        return torch.full((rollouts,), longest)
    if spread == "uniform":
        return torch.randint(longest // 2, longest + 1, (rollouts,), generator=draw)
    tail_B = (torch.randn(rollouts, generator=draw).exp() * longest / 6).long()
    return tail_B.clamp(min=8, max=longest)


def batch_of(lengths: Tensor, vocabulary: int) -> TrainBatch:
    """Return a batch of random tokens; the first four of each rollout are its prompt."""
    draw = torch.Generator().manual_seed(1)
    shape = (len(lengths), int(lengths.max()))
    trained = (torch.arange(shape[1]) >= 4) & (torch.arange(shape[1]) < lengths[:, None])
    tokens_BT = torch.randint(0, vocabulary, shape, generator=draw)
    rollouts = RolloutTensors.without_rewards(tokens_BT, lengths, behavior_BT=torch.full(shape, -3.0) * trained)
    return TrainBatch(rollouts, torch.randn(len(lengths), generator=draw), trained, trained / trained.sum())


def measure(name: str, spread: str, budget: int, rounds: int) -> dict[str, Any]:
    settings, rollouts, longest = MODELS[name]
    batch = batch_of(lengths_of(spread, rollouts, longest), settings["vocab_size"])
    seconds: dict[str, list[float]] = {"padded": [], "packed": []}
    with tempfile.TemporaryDirectory() as folder:
        path = model_at(Path(folder) / "model", settings)
        learners = {
            kind: SingleLearner(load_policy(path), Recipe(), micro_batch_tokens=budget, packing=kind)
            for kind in seconds
        }
        for round_ in range(rounds + 1):
            for kind, learner in learners.items():
                began = time.process_time()
                learner._add_gradients(batch)
                learner._discard_gradient()
                if round_:  # the first is a warm-up
                    seconds[kind].append(time.process_time() - began)
    padded = sum(len(rows) * width for rows, width in batch.micro_batches(budget))
    tokens = int(batch.rollouts.length_B.sum())
    ratio = statistics.median(a / b for a, b in zip(seconds["padded"], seconds["packed"], strict=True))
    medians = {f"{kind}_s": statistics.median(values) for kind, values in seconds.items()}
    return {"model": name, "lengths": spread, "budget": budget, "padding": 1 - tokens / padded, **medians,
            "ratio": ratio}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--spreads", nargs="*", default=list(SPREADS))
    parser.add_argument("--budgets", nargs="*", type=int, default=list(BUDGETS))
    parser.add_argument("--out", type=Path, default=Path("packing.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'model':12} {'lengths':12} {'budget':>7} {'padding':>8} {'padded':>9} {'packed':>9} {'ratio':>6}")
    for name in options.models:
        for spread in options.spreads:
            for budget in options.budgets:
                row = measure(name, spread, budget, options.rounds)
                rows.append(row)
                print(f"{name:12} {spread:12} {budget:7,} {row['padding']:8.0%} {row['padded_s']:7.3f} s "
                      f"{row['packed_s']:7.3f} s {row['ratio']:6.2f}", flush=True)  # fmt: skip
    options.out.write_text(json.dumps({"threads": 1, "cases": rows, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
