"""Times training steps: one process compared with two ranks, on the lab's batch and on a model of 43M parameters.

    python benchmarks/ranks.py [--rounds 7]

The cases alternate, so that other load affects all of them; medians over the rounds. Every rank has one thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from scalerl.training.config import HuggingFaceModel, RunConfig
from scalerl.training.config.run import Hardware, LearnerSettings, Placement
from scalerl.training.learner.base import LearnerSpec
from scalerl.training.learner.batch import RolloutTensors, TrainBatch
from scalerl.training.learner.rank_processes import RankProcesses
from scalerl.training.learner.ranks import LearnerGroup
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.policy import load_policy
from scalerl.training.placement.choices import policy_spec

MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "lab (136k)": ({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32}, 256, 80),
    "43M": ({"hidden_size": 576, "num_hidden_layers": 12, "num_attention_heads": 9, "vocab_size": 512}, 64, 96),
}
"""Settings of a Qwen3, rollouts per batch, and tokens of the longest rollout, by name."""


def model_at(path: Path, settings: dict[str, Any]) -> str:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    width, heads = settings["hidden_size"], settings["num_attention_heads"]
    config = Qwen3Config(
        **settings,
        intermediate_size=(width * 4 if width < 100 else 1536),
        num_key_value_heads=heads if width < 100 else 3,
        head_dim=width // heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(path)
    return str(path)


def random_batch(rollouts: int, longest: int, vocabulary: int) -> TrainBatch:
    """Return rollouts from half of the longest to the longest; the first eighth of each is the prompt."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(longest // 2, longest + 1, (rollouts,), generator=draw)
    trained = (torch.arange(longest) >= longest // 8) & (torch.arange(longest) < lengths[:, None])
    tokens_BT = torch.randint(0, vocabulary, (rollouts, longest), generator=draw)
    behavior_BT = torch.full((rollouts, longest), -3.0)
    tensors = RolloutTensors.without_rewards(tokens_BT, lengths, behavior_BT=behavior_BT)
    return TrainBatch(tensors, torch.randn(rollouts, generator=draw), trained, trained / trained.sum())


def measure(name: str, rounds: int) -> None:
    shape, rollouts, longest = MODELS[name]
    batch = random_batch(rollouts, longest, shape["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        path = model_at(Path(folder) / "model", shape)
        config = RunConfig(
            model=HuggingFaceModel(path=path),
            hardware=Hardware(device="cpu", dtype="float32", trainer_threads=1, generator_threads=1),
            placement=Placement(trainer_ranks=2),
            learner=LearnerSettings(micro_batch_tokens=8192),
        )
        single = SingleLearner(load_policy(path), config.recipe, micro_batch_tokens=8192)
        model, settings = policy_spec(config, path), config.learner
        spec = LearnerSpec(model, config.recipe, settings, config.hardware, config.placement, ranks=2)
        ranks = RankProcesses.of([{}, {}], spec, [])
        learners: dict[str, Any] = {
            "one process, 1 thread": (1, single),
            "one process, 2 threads": (2, single),
            "two ranks, 1 thread each": (
                1,
                LearnerGroup(ranks, [], step_timeout_s=600, transfer_timeout_s=600),
            ),
        }
        seconds: dict[str, list[float]] = {key: [] for key in learners}
        for _ in range(rounds + 1):
            for key, (threads, learner) in learners.items():
                torch.set_num_threads(threads)
                began = time.perf_counter()
                learner.step(batch)
                seconds[key].append(time.perf_counter() - began)
        ranks.close()
    tokens = int(batch.rollouts.length_B.sum())
    first = seconds["one process, 1 thread"][1:]
    print(f"{name}: {rollouts} rollouts, {tokens} tokens, {sum(p.numel() for p in single._parameters):,} parameters")
    for key, values in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(first, values[1:], strict=True))
        print(f"  {key:<26} {statistics.median(values[1:]):7.3f} s   {ratio:.2f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    for model in MODELS:
        measure(model, chosen.rounds)
