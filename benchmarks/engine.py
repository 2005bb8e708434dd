"""Compares the torch engine with transformers' `generate`; measures refill with mixed lengths and the weight swap.

    python benchmarks/engine.py [--size 3.3M] [--device cpu] [--threads 1] [--repeats 5] [--out engine.json]

Each repeat measures all cases in turn, so that the ratios are measured under the same conditions; medians are printed.
The engine returns log-probabilities (with an FP32 head) and versions; `generate` does not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

SEQUENCES, PROMPT, NEW = 64, 32, 128
STOP = (2, 3, 4, 5)
"""Stop tokens that end a random sequence after 128 tokens on average; cut at 128, the mean length is about 80."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="3.3M")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("engine.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    from scalerl.core.packages import prepare_environment

    prepare_environment()
    import torch

    torch.set_num_threads(options.threads)
    from work import machine, random_qwen3

    from scalerl.training.models.policy import Policy

    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    plain = random_qwen3(options.size).to(options.device, dtype)
    policy = Policy(random_qwen3(options.size).to(options.device, dtype))
    measures = {
        "generate": lambda: generate(plain),
        "engine": lambda: engine(policy, SEQUENCES, share=1),
        "engine, 8 rollouts a prompt": lambda: engine(policy, SEQUENCES, share=8),
        "engine, mixed lengths with refill": lambda: engine(policy, 8 * SEQUENCES, share=1, stop=STOP),
        "weight swap, ms": lambda: swap(policy),
    }
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for repeat in range(options.repeats + 1):
        for name, measure in measures.items():
            value = measure()
            if repeat:  # the first is a warm-up
                figures[name].append(value)
    report(figures, options, machine())


def report(figures: dict[str, list[float]], options: argparse.Namespace, where: dict[str, Any]) -> None:
    """Print medians and ratios, write JSON."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    ratios = {name: statistics.median(a / b for a, b in zip(values, figures["generate"], strict=True))
              for name, values in figures.items() if "swap" not in name}  # fmt: skip
    refill = [m / e for m, e in zip(figures["engine, mixed lengths with refill"], figures["engine"], strict=True)]
    print(f"{options.size} Qwen3, {SEQUENCES} x ({PROMPT} + {NEW}) tokens, {options.device}, {options.threads} threads")
    for name, median in medians.items():
        unit = "" if "swap" in name else f" tok/s   {ratios[name]:.2f}x generate"
        print(f"  {name:36s} {median:9.2f}" if not unit else f"  {name:36s} {median:9,.0f}{unit}")
    print(f"  mixed lengths against equal lengths  {statistics.median(refill):.0%}")
    found = {
        "machine": where,
        "options": {k: str(v) for k, v in vars(options).items() if k != "out"},
        "figures": figures,
    }
    options.out.write_text(json.dumps(found | {"medians": medians, "ratios": ratios}, indent=1) + "\n")


def generate(model: Any) -> float:
    """Measure the tokens per second of transformers' sampling loop."""
    import torch

    x = torch.randint(2, model.config.vocab_size, (SEQUENCES, PROMPT), device=model.device)
    model.generation_config.eos_token_id = None
    began = now()
    with torch.inference_mode():
        out = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=NEW, min_new_tokens=NEW,
                             do_sample=True, top_k=0, pad_token_id=0)  # fmt: skip
    assert out.shape == (SEQUENCES, PROMPT + NEW)
    return SEQUENCES * NEW / (now() - began)


def engine(policy: Any, sequences: int, share: int, stop: tuple[int, ...] = ()) -> float:
    """Measure the tokens per second over 64 slots.

    Args:
        policy: Policy with random weights.
        sequences: Number of sequences.
        share: Sequences per prompt, such as the rollouts of a group.
        stop: Token ids that end a sequence; fewer ids make longer sequences.
    """
    import numpy as np

    from scalerl.core.rng import stream_key
    from scalerl.training.engines.engine import Request, Sampling, step
    from scalerl.training.engines.interrupt import NEVER, LengthRule
    from scalerl.training.engines.local.torch_engine import torch_engine

    rule, sampling = LengthRule(None, NEVER, NEW), Sampling(stop=stop)
    made = torch_engine(policy, slots=SEQUENCES, prompt_tokens=PROMPT, rule=rule, sampling=sampling)
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(2, policy.vocab_size, PROMPT).tolist()) for _ in range(sequences // share)]
    began = now()
    made.submit([Request((i, 0), prompts[i // share], stream_key(i)) for i in range(sequences)])
    finished = []
    while made.occupancy().busy:
        finished += step(made)
    seconds = now() - began
    assert len(finished) == sequences and (stop or all(len(f.rollout.tokens) == NEW for f in finished))
    return sum(len(f.rollout.tokens) for f in finished) / seconds


def swap(policy: Any) -> float:
    """Measure the milliseconds of one weight swap, from a flat block as in shared memory."""
    import torch

    from scalerl.training.models.weights import WeightLayout

    layout = WeightLayout.of(policy.weights())
    views = layout.views(torch.zeros(layout.total, dtype=torch.uint8))
    for name, tensor in policy.weights():
        views[name].copy_(tensor)
    began = now()
    policy.load_weights(policy.version + 1, views)
    return 1e3 * (now() - began)


def now() -> float:
    """Time in seconds, after the device has finished its work."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
