"""How long a decode step and an update take: a roofline from FLOPs and bytes, or what was measured.

The roofline's peaks are those of data sheets, its efficiencies are assumptions, and everything that prints a figure
made from them says so.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.placement.memory import BF16, FP32, cache_bytes_per_token
from scalerl.placement.shape import DecoderShape

Lengths = npt.NDArray[np.int64]
StepSeconds = Callable[[float, float], float]
"""(running sequences, tokens in their caches together) -> seconds of one decode step of one engine."""
UpdateSeconds = Callable[[Lengths], float]
"""Lengths of a batch's completions -> seconds of one update, weights not yet sent."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its data sheet.

    Example: Gpu("H100", flops=989e12, bytes_per_s=3.35e12, link=450e9)
    """

    name: str
    flops: float
    """Dense BF16 operations a second."""
    bytes_per_s: float
    """Of its memory."""
    link: float
    """Bytes a second and direction between GPUs of one node."""


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", 312e12, 2.04e12, 300e9),
        Gpu("H100", 989e12, 3.35e12, 450e9),
        Gpu("H200", 989e12, 4.8e12, 450e9),
        Gpu("B200", 2250e12, 8.0e12, 900e9),
        Gpu("RTX4090", 165e12, 1.01e12, 32e9),
    )
}
"""SXM versions (A100: 80 GB), PCIe 4.0 x16 for the RTX 4090; NVIDIA's data sheets, without sparsity."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the roofline takes for granted.

    Example: Assumptions(gpu=GPUS["H100"], training_share=0.35, decode_share=0.6)
    """

    gpu: Gpu
    training_share: float = 0.35
    """Share of the peak FLOPs that training reaches."""
    decode_share: float = 0.6
    """Share of the memory's speed, and of the peak FLOPs, that decoding reaches."""
    step_overhead_s: float = 0.002
    """Seconds of a decode step that are neither: scheduling, sampling, launches."""
    network: float = 40e9
    """Bytes a second and GPU between nodes: 80% of 400 Gbit/s."""
    disk: float = 2e9
    """Bytes a second of the file system, for `rollouts.weights = "directory"`."""
    node: int = 8
    """GPUs of a node."""

    @property
    def line(self) -> str:
        """Say it in words."""
        gpu = self.gpu
        return (
            f"{gpu.name}: {gpu.flops / 1e12:,.0f} TFLOP/s BF16, {gpu.bytes_per_s / 1e12:.2f} TB/s; training reaches "
            f"{self.training_share:.0%} of the peak, decoding {self.decode_share:.0%} of both and "
            f"{1e3 * self.step_overhead_s:g} ms a step besides; {self.network / 1e9:g} GB/s a GPU between nodes of "
            f"{self.node}"
        )


# --------------------------------------------------------------------------------------------------------- generation


def weight_bytes_read(shape: DecoderShape, running: float) -> float:
    """Return the bytes of weights that a decode step of n sequences reads, BF16.

    All matrices but the embedding; of E experts, of which a token uses a, those that any sequence uses:
    E (1 - (1 - a / E)^n), as if they were drawn at random.
    """
    if not shape.experts:
        return float(BF16 * shape.matmul_params)
    untouched = shape.experts * math.pow(1 - shape.active_experts / shape.experts, running)
    used = shape.experts - untouched - shape.active_experts
    return BF16 * (shape.matmul_params + max(0.0, used) * shape.moe_layers * shape.expert_params)


def decode_roofline(shape: DecoderShape, assumed: Assumptions, tensor_parallel: int = 1) -> StepSeconds:
    """Return the seconds of a decode step: the longer of its bytes and its FLOPs, and the overhead.

    overhead + max((weights + cache) / bandwidth, (2 x matrices x n + 4 x heads x layers x context) / peak), each over
    the GPUs of the engine and the efficiency.
    """
    cache, share = cache_bytes_per_token(shape), assumed.decode_share * tensor_parallel
    bandwidth, peak = share * assumed.gpu.bytes_per_s, share * assumed.gpu.flops
    a_token, a_context = 2.0 * shape.matmul_params, 4.0 * shape.heads * shape.head_dim * shape.layers
    read: dict[float, float] = {}  # asked for a million times, for few numbers of sequences

    def seconds(running: float, context: float) -> float:
        weights = read.get(running)
        if weights is None:
            weights = read[running] = weight_bytes_read(shape, running)
        moved = (weights + cache * context) / bandwidth
        return assumed.step_overhead_s + max(moved, (a_token * running + a_context * context) / peak)

    return seconds


def steps_from_rates(rates: Sequence[tuple[float, float]]) -> StepSeconds:
    """Return the seconds of a decode step from measured (running sequences, tokens/s of one engine).

    A step of n sequences takes n / rate. Between two points the seconds are interpolated, below the first they stay,
    above the last the last slope goes on (one point alone: the seconds stay).
    """
    points = sorted((running, running / rate) for running, rate in rates)
    at, took = [p[0] for p in points], [p[1] for p in points]
    if len(points) == 1:
        return lambda running, context: took[0]

    def seconds(running: float, context: float) -> float:
        if running <= at[0]:
            return took[0]
        i = min(max(1, bisect_left(at, running)), len(at) - 1)
        slope = (took[i] - took[i - 1]) / (at[i] - at[i - 1])
        return max(took[i - 1] + slope * (running - at[i - 1]), 1e-9)

    return seconds


def steps_from_line(base: float, slope: float) -> StepSeconds:
    """Return the seconds of a decode step of n sequences as base + slope x n."""
    return lambda running, context: base + slope * running


# ----------------------------------------------------------------------------------------------------------- training


def update_flops(shape: DecoderShape, lengths: Lengths, prompt: float, checkpointing: bool) -> float:
    """Return the FLOPs of an update: three forward passes for each sequence, four where activations are recomputed.

    A forward pass over n tokens is 2 N n + 2 W L n (n + 1): N entries that every token is multiplied with, W heads x
    head size, L layers, and scores and mixing over the (n + 1) / 2 tokens that a token attends to in the mean. The head
    runs on completions only, and its logits are always computed again (models/flops.py). Sliding windows are not
    modelled.
    """
    n = lengths + prompt
    attention = 2.0 * shape.heads * shape.head_dim * shape.layers * float((n * n + n).sum())
    forward = 2.0 * (shape.matmul_params - shape.head_params) * float(n.sum()) + attention
    return forward * (4.0 if checkpointing else 3.0) + 4.0 * 2.0 * shape.head_params * float(lengths.sum())


def gather_seconds(
    shape: DecoderShape, assumed: Assumptions, ranks: int, micro_batches: int, whole_gradient: bool = False
) -> float:
    """Return the seconds that FSDP2's communication of an update takes; 0 for one rank.

    BF16 weights are gathered for the forward and for the backward pass of each micro-batch. FP32 gradients are
    scattered after each, or once an update where every rank adds them up whole.
    """
    if ranks == 1:
        return 0.0
    speed = assumed.gpu.link * 0.8 if ranks <= assumed.node else assumed.network
    scattered = FP32 * (1 if whole_gradient else micro_batches)
    return shape.params * (ranks - 1) / ranks * (2.0 * BF16 * micro_batches + scattered) / speed


@dataclass(frozen=True, slots=True)
class Training:
    """What an update's time depends on besides the model.

    Example: Training(ranks=16, micro_batch_tokens=32768, prompt_tokens=256, checkpointing=True)
    """

    ranks: int
    micro_batch_tokens: int
    """Padded tokens of one forward and backward pass of a rank."""
    prompt_tokens: float
    """Mean length of a prompt."""
    checkpointing: bool = False
    """Activations are recomputed in the backward pass."""
    whole_gradient: bool = False
    """Every rank adds up the whole gradient and shares it once an update."""


def training_roofline(shape: DecoderShape, assumed: Assumptions, training: Training) -> UpdateSeconds:
    """Return the seconds of an update: the longer of its FLOPs and its communication, which overlap.

    Every rank runs as many micro-batches as the others; the last one may be partly empty.
    """
    peak = training.ranks * assumed.training_share * assumed.gpu.flops

    def seconds(lengths: Lengths) -> float:
        compute = update_flops(shape, lengths, training.prompt_tokens, training.checkpointing) / peak
        tokens = float(lengths.sum()) + training.prompt_tokens * len(lengths)
        micro_batches = max(1, math.ceil(tokens / training.ranks / training.micro_batch_tokens))
        talk = gather_seconds(shape, assumed, training.ranks, micro_batches, training.whole_gradient)
        return max(compute, talk)

    return seconds


def updates_from_rate(tokens_per_s: float, trained_share: float = 1.0) -> UpdateSeconds:
    """Return the seconds of an update at so many trained tokens a second, of which a batch holds that share."""
    return lambda lengths: float(lengths.sum()) * trained_share / tokens_per_s


def transfer_seconds(shape: DecoderShape, assumed: Assumptions, directory: bool) -> float:
    """Return the seconds from an update's end to new weights on the engines, BF16.

    One broadcast at the network's speed, or written and read through the file system.
    """
    size = BF16 * shape.params
    return 2.0 * size / assumed.disk if directory else size / assumed.network
