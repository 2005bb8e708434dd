"""Measures time and memory of updates of a random Qwen3: all weights compared with adapters.

    python benchmarks/lora.py [--width 512] [--layers 12] [--rank 16]

Each arm runs in a separate process, because the peak of resident memory is per process. Prints one line per arm.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("width", 512), ("layers", 12), ("rank", 16), ("vocabulary", 16_384), ("updates", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    settings = vars(parser.parse_args())
    spawn = multiprocessing.get_context("spawn")
    for adapters in (False, True):
        with spawn.Pool(1) as pool:
            print(json.dumps(pool.apply(measure, (adapters, settings))), flush=True)


def measure(adapters: bool, settings: dict[str, int]) -> dict[str, Any]:
    """Return the memory in bytes and the time in seconds of one arm: updates of 512 tokens in FP32 on CPU."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from scalerl.training.config import Lora
    from scalerl.training.config.recipe import AdamW, Recipe, Reinforce
    from scalerl.training.learner.batch import RolloutTensors, TrainBatch
    from scalerl.training.learner.policy_learner import batch_flops
    from scalerl.training.learner.single import SingleLearner
    from scalerl.training.models.lora import LoraPolicy
    from scalerl.training.models.policy import Policy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=settings["vocabulary"], hidden_size=settings["width"], intermediate_size=3 * settings["width"],
        num_hidden_layers=settings["layers"], num_attention_heads=8, num_key_value_heads=4,
        head_dim=settings["width"] // 8, tie_word_embeddings=True,
    )  # fmt: skip
    policy = Policy(Qwen3ForCausalLM(config))
    if adapters:
        policy = LoraPolicy(policy, Lora(rank=settings["rank"]), seed=0)
    learner = SingleLearner(
        policy, Recipe(optimizer=AdamW(learning_rate=1e-4), loss=Reinforce()), micro_batch_tokens=256
    )
    rows, width = 4, 128
    trained_BT = (torch.arange(width) >= 32).expand(rows, -1)
    tokens_BT = torch.randint(0, settings["vocabulary"], (rows, width))
    rollouts = RolloutTensors.without_rewards(tokens_BT, torch.full((rows,), width))
    batch = TrainBatch(rollouts, torch.ones(rows), trained_BT, trained_BT / trained_BT.sum())
    seconds = []
    for _ in range(settings["updates"]):
        began = time.perf_counter()
        learner.step(batch)
        seconds.append(round(time.perf_counter() - began, 2))
    trained = [parameter for _, parameter in policy.trained()]
    began = time.perf_counter()
    sent = sum(weight.nbytes for _, weight in policy.weights())
    state = [tensor for kept in learner._optimizer.state.values() for tensor in kept.values()]
    return {
        "arm": f"rank {settings['rank']}" if adapters else "all weights",
        "weights_mb": round(sent / 1e6, 1),
        "trained_entries": sum(p.numel() for p in trained),
        "gradient_mb": round(sum(p.nbytes for p in trained) / 1e6, 1),
        "optimizer_mb": round(sum(tensor.nbytes for tensor in state) / 1e6, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "merge_s": round(time.perf_counter() - began, 2),
        "update_s": seconds,
        "gflops_an_update": round(batch_flops(learner.policy.sizes, batch, checkpointing=False) / 1e9),
    }


if __name__ == "__main__":
    main()
