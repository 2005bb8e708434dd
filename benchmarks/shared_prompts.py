"""Times forward and backward passes over the rollouts of a few prompts: padded, packed, and with shared prompts.

    python benchmarks/shared_prompts.py [--size 3.3M] [--rounds 5] [--out shared_prompts.json]

The cases alternate. Times are CPU seconds of the single thread; medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

ROLLOUTS, COMPLETION = 8, 64
CASES = ((16, 8), (64, 4), (256, 1), (512, 1))
"""(tokens per prompt, number of prompts)."""
BUDGET = 2048
"""Tokens per micro-batch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="3.3M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("shared_prompts.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from scalerl.core.packages import prepare_environment

    prepare_environment()
    from work import machine, random_qwen3

    from scalerl.training.config.recipe import Recipe
    from scalerl.training.learner.single import SingleLearner
    from scalerl.training.models.policy import Policy

    learners = {
        kind: SingleLearner(
            Policy(random_qwen3(options.size)), Recipe(), packing=kind,
            micro_batch_tokens=BUDGET,
        )
        for kind in ("padded", "packed", "shared")
    }  # fmt: skip
    found = [measure(learners, *case, options.rounds) for case in CASES]
    options.out.write_text(json.dumps({"size": options.size, "cases": found, "machine": machine()}, indent=1) + "\n")


def measure(learners: dict[str, Any], prompt: int, prompts: int, rounds: int) -> dict[str, Any]:
    """Return the median time of each layout, and the speedup of the shared one over the better of the others."""
    batch = batch_of(prompt, prompts)
    seconds: dict[str, list[float]] = {kind: [] for kind in learners}
    for round_ in range(rounds + 1):
        for kind, learner in learners.items():
            began = time.thread_time()
            learner._add_gradients(batch)
            took = time.thread_time() - began
            learner._discard_gradient()
            if round_:  # the first is a warm-up
                seconds[kind].append(took)
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    ratio = min(medians["padded"], medians["packed"]) / medians["shared"]
    tokens = int(batch.length_B.sum())
    print(f"prompt {prompt:4d}, {prompts} prompts: {batch.shared_tokens():6,} of {tokens:6,} tokens  "
          + "  ".join(f"{kind} {value:.3f} s" for kind, value in medians.items()) + f"  ratio {ratio:.2f}",
          flush=True)  # fmt: skip
    return {"prompt": prompt, "prompts": prompts, "tokens": tokens, "shared_tokens": batch.shared_tokens(),
            "seconds": medians, "ratio": ratio}  # fmt: skip


def batch_of(prompt: int, prompts: int) -> Any:
    """Return a batch of rollouts of equal length, in groups that share their prompts."""
    import torch
    from work import VOCABULARY

    from scalerl.training.learner.batch import RolloutTensors, TrainBatch

    torch.manual_seed(0)
    rows, width = prompts * ROLLOUTS, prompt + COMPLETION
    tokens_PGT = torch.randint(2, VOCABULARY, (prompts, ROLLOUTS, width))
    tokens_PGT[:, :, :prompt] = tokens_PGT[:, :1, :prompt]
    trained_BT = (torch.arange(width) >= prompt).expand(rows, width).clone()
    rollouts = RolloutTensors.without_rewards(
        tokens_PGT.flatten(0, 1),
        torch.full((rows,), width),
        behavior_BT=-6.2 * trained_BT,
        prompt_B=torch.arange(prompts).repeat_interleave(ROLLOUTS),
        prompt_length_B=torch.full((rows,), prompt),
    )
    return TrainBatch(rollouts, torch.randn(rows), trained_BT, trained_BT / trained_BT.sum())


if __name__ == "__main__":
    main()
