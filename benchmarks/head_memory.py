"""Measures the peak memory of the LM head: log-probabilities of 16,384 tokens over 151,936 words, with gradients.

    python benchmarks/head_memory.py [--tokens 16384] [--vocabulary 151936] [--width 1024] [--out head_memory.json]

Each case runs in a separate process. The printed number is the peak resident memory in addition to the weights and
hidden states, including the gradients of both. "at once" is the usual method with all logits in memory. Its number is
calculated: the logits, their log-softmax and their gradient are 3 x tokens x vocabulary x 4 bytes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES = ("bfloat16", "float32")
"""Types of the weights; the product is FP32 in both."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("head_memory.json"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return
    rows = []
    for dtype in CASES:
        command = [sys.executable, __file__, "--measure", dtype, "--threads", str(options.threads)]
        command += [f"--{name}={getattr(options, name)}" for name in ("tokens", "vocabulary", "width")]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    report(rows, options)


def measure(dtype: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the peak above weights and hidden states in MB, and the time in seconds; runs in a separate process."""
    import torch

    from scalerl.training.models.head import token_logprobs

    torch.set_num_threads(options.threads)
    draw = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    weight_VD = torch.empty(options.vocabulary, options.width, dtype=kind).normal_(0, 0.02, generator=draw)
    hidden_ND = torch.empty(options.tokens, options.width, dtype=kind).normal_(generator=draw)
    targets_N = torch.randint(0, options.vocabulary, (options.tokens,), generator=draw)
    warm_ND = hidden_ND[:64].clone().requires_grad_()  # loads the kernels, whose code counts as memory
    token_logprobs(warm_ND, weight_VD[:512].clone().requires_grad_(), None, targets_N[:64] % 512)[0].sum().backward()
    del warm_ND
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current resident size
    before, began = high_water(), time.perf_counter()
    logp_N, _ = token_logprobs(hidden_ND.requires_grad_(), weight_VD.requires_grad_(), None, targets_N)
    forward, forward_s = high_water() - before, time.perf_counter() - began
    logp_N.mean().backward()
    both, seconds = high_water() - before, time.perf_counter() - began
    gradient = weight_VD.numel() * weight_VD.element_size()
    return {
        "weights": dtype,
        "forward_mb": forward / 1e6,
        "forward_and_backward_mb": both / 1e6,
        "of_it_the_weights_gradient_mb": gradient / 1e6,
        "forward_s": forward_s,
        "seconds": seconds,
    }


def high_water() -> int:
    """Return the peak resident size in bytes since the last reset (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the table and write it."""
    from work import machine

    at_once = 3 * 4 * options.tokens * options.vocabulary / 1e6
    print(f"{options.tokens:,} tokens, vocabulary {options.vocabulary:,}, width {options.width}")
    print(f"{'weights':10} {'forward':>10} {'both':>10} {'gradient':>10} {'at once':>10} {'seconds':>8}")
    for row in rows:
        sizes = [row[key] for key in ("forward_mb", "forward_and_backward_mb", "of_it_the_weights_gradient_mb")]
        print(f"{row['weights']:10} " + " ".join(f"{size:7,.0f} MB" for size in [*sizes, at_once]), end=" ")
        print(f"{row['seconds']:8.1f}")
    sizes = {name: getattr(options, name) for name in ("tokens", "vocabulary", "width", "threads")}
    options.out.write_text(json.dumps({**sizes, "at_once_mb": at_once, "cases": rows, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
