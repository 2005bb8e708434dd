"""Measures the memory of a trainer on CPU with and without the trims of its heap (learner/cpu.py).

    python benchmarks/heap.py --updates 20

Each arm is a new process: a model of 135M parameters (the sizes of SmolLM2-135M, random weights) is updated on batches
of random lengths. Prints the resident memory after each update and the largest, the seconds per update, and how much a
trim returns at the end.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time


def train(updates: int, trims: bool, tokens: int) -> None:
    """Run one arm."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from scalerl.config.recipe import SCALERL
    from scalerl.learner.batch import RolloutTensors, TrainBatch
    from scalerl.learner.cpu import HeapTrim, resident_bytes
    from scalerl.learner.single import SingleLearner
    from scalerl.models.policy import Policy

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, tie_word_embeddings=True,
    )  # fmt: skip
    policy = Policy(LlamaForCausalLM(config))
    learner = SingleLearner(policy, SCALERL, micro_batch_tokens=tokens, packing="padded")
    trimmed = []

    def count() -> None:
        trimmed.append(None)
        ordinary()

    trim = HeapTrim()
    ordinary, trim._trim = trim._trim, count
    learner._trim_heap = trim if trims else (lambda: None)  # type: ignore[assignment]
    draw, began, largest = random.Random(0), time.perf_counter(), 0
    for number in range(updates):
        length_B = torch.tensor([draw.randint(tokens // 8, tokens // 2) for _ in range(6)])
        width = int(length_B.max())
        trained_BT = (torch.arange(width) >= 8) & (torch.arange(width) < length_B[:, None])
        weights_BT = trained_BT / trained_BT.sum()
        tokens_BT = torch.randint(0, 49152, trained_BT.shape)
        logp_BT = torch.full(trained_BT.shape, -10.8)  # the logarithm of 1 / 49152
        rollouts = RolloutTensors.without_rewards(tokens_BT, length_B, behavior_BT=logp_BT)
        learner.step(TrainBatch(rollouts, torch.randn(6), trained_BT, weights_BT))
        largest = max(largest, resident_bytes())
        print(f"{'trims' if trims else 'none '} update {number + 1}: {resident_bytes() / 1e9:.2f} GB", flush=True)
    before = resident_bytes()
    HeapTrim()()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    took_s = (time.perf_counter() - began) / updates
    print(
        f"{'trims' if trims else 'none '} after an update at most {largest / 1e9:.2f} GB, "
        f"within one {peak / 1e9:.2f} GB; {len(trimmed)} trims; {took_s:.1f} s per update; "
        f"a last trim returns {(before - resident_bytes()) / 1e9:.2f} GB",
        flush=True,
    )


def main() -> None:
    """Run both arms one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=512, help="tokens per micro-batch")
    parser.add_argument("--arm", choices=("trims", "none"), help="run one arm in this process")
    given = parser.parse_args()
    if given.arm:
        train(given.updates, given.arm == "trims", given.tokens)
        return
    for arm in ("none", "trims"):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--arm", arm], check=True)


if __name__ == "__main__":
    main()
