"""Durations of decode steps and updates: from measurements, or a roofline of FLOPs and bytes.

The roofline uses peaks from data sheets and assumed efficiencies. All output based on it must be marked as assumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from scalerl.training.machines.memory import BF16, FP32, cache_bytes_per_token
from scalerl.training.models.sizes import ModelSizes

Lengths = npt.NDArray[np.int64]
StepSeconds = Callable[[float, float], float]
"""(running sequences, total tokens in their caches) -> seconds of one decode step of one engine."""
UpdateSeconds = Callable[[Lengths], float]
"""Lengths of a batch's completions -> seconds of one update, without sending weights."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Durations that a simulation needs. The defaults count decode steps.

    Example: Speeds(step_seconds=lambda running, context: 0.0256, update_seconds=updates_from_rate(40_000.0),
                    transfer_s=0.4)
    """

    step_seconds: StepSeconds = lambda running, context: 1.0
    """Seconds of a decode step of one engine."""
    update_seconds: UpdateSeconds = lambda lengths: 1.0
    """Seconds of an update by all trainer ranks."""
    transfer_s: float = 0.0
    """Seconds in which the trainer sends new weights, before engines can receive them."""
    swap_s: float = 0.0
    """Seconds that a swap stops an engine."""
    prompt_tokens: float = 0.0
    """Mean length of a prompt."""
    drift: Sequence[tuple[float, float]] = ((1.0, 1.0),)
    """Factors on the seconds of decode steps and of the update, one pair for each update in turn, repeated."""

    def mean_step(self, running: float, mean: float) -> float:
        """Return the mean seconds of a decode step of `running` sequences whose lengths are `mean` on average."""
        return self.step_seconds(running, running * (self.prompt_tokens + mean / 2))


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data sheet of a GPU.

    Example: Gpu("H100", flops=989e12, bytes_per_s=3.35e12, link=450e9)
    """

    name: str
    flops: float
    """Dense BF16 operations per second."""
    bytes_per_s: float
    """Memory bandwidth, bytes per second."""
    link: float
    """Bytes per second and direction between GPUs of one node."""


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
"""From NVIDIA's data sheets, without sparsity: SXM versions (A100: 80 GB), and the RTX 4090 on PCIe 4.0 x16."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions of the roofline.

    Example: Assumptions(gpu=GPUS["H100"], training_share=0.35, decode_share=0.6)
    """

    gpu: Gpu
    training_share: float = 0.35
    """Share of peak FLOPs that training reaches, recomputation counted. One H200 reached 0.35 with Qwen3-0.6B and 0.41
    with 1.7B (docs/gpu.md); several ranks also wait for each other."""
    decode_share: float = 0.6
    """Share of memory bandwidth, and of peak FLOPs, that decoding reaches."""
    step_overhead_s: float = 0.002
    """Overhead of a decode step in seconds: scheduling, sampling, launches."""
    network: float = 40e9
    """Bytes per second and GPU between nodes: 80% of 400 Gbit/s."""
    disk: float = 2e9
    """Bytes per second of the file system, which all nodes share, for `rollouts.weights = "directory"`."""
    host: float = 25e9
    """Bytes per second between a GPU and the memory of its node: 80% of PCIe 4.0 x16."""
    node: int = 8
    """GPUs per node."""
    server: float = 20_000
    """Tokens per second that one vLLM server sends out: its one API process needs a core for 50 us a token (measured
    with vLLM 0.32 on an AMD EPYC, 192 sequences)."""

    @property
    def line(self) -> str:
        """Description of the assumptions in one line."""
        gpu = self.gpu
        return (
            f"{gpu.name}: {gpu.flops / 1e12:,.0f} TFLOP/s BF16, {gpu.bytes_per_s / 1e12:.2f} TB/s; training reaches "
            f"{self.training_share:.0%} of the peak, decoding {self.decode_share:.0%} of both and "
            f"{1e3 * self.step_overhead_s:g} ms of overhead per step; {self.network / 1e9:g} GB/s per GPU between "
            f"nodes of {self.node}; files at {self.disk / 1e9:g} GB/s for all nodes together; one vLLM server "
            f"sends at most {self.server:,.0f} tokens/s"
        )


def this_cpu(threads: int, layers: int) -> Assumptions:
    """Return assumptions for some threads of this CPU, in FP32.

    Args:
        threads: Threads that compute.
        layers: Layers of the model. Each costs CALLS_S in a decode step, for the calls of its operations.
    """
    # weights of 4 bytes are read as if they had the 2 of the roofline, over half of the bandwidth
    name, bytes_per_s = f"this CPU, {threads} thread{'s' * (threads > 1)}", CPU_BYTES_PER_S * BF16 / FP32
    cpu = Gpu(name, cpu_flops(threads), bytes_per_s, CPU_BYTES_PER_S)
    return Assumptions(cpu, CPU_SHARE, CPU_SHARE, step_overhead_s=CALLS_S * layers)


@cache
def cpu_flops(threads: int) -> float:
    """Return the FLOP/s of some threads of this CPU, from products that take a fifth of a second, once."""
    import torch

    from scalerl.training.models.cpu.onednn import linear

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight = torch.ones(256, 1024), torch.ones(1024, 1024)
        linear(x, weight)
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < 0.2:
            linear(x, weight)
            done += 1
        return done * 2.0 * 256 * 1024 * 1024 / (time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)


CPU_BYTES_PER_S, CPU_SHARE, CALLS_S = 10e9, 0.5, 1e-3
"""Assumed for a CPU: bandwidth of memory, share of the speed of a large product that training and decoding reach, and
seconds of calls per layer."""

# --------------------------------------------------------------------------------------------------------- generation


def weight_bytes_read(sizes: ModelSizes, running: float) -> float:
    """Return the bytes of weights that a decode step of n sequences reads, BF16.

    All matrices except the embedding. With E experts and a active ones per token, the expected number of experts used
    by any sequence is E (1 - (1 - a / E)^n) if they are drawn at random.
    """
    if not sizes.experts:
        return float(BF16 * sizes.matmul_params)
    untouched = sizes.experts * math.pow(1 - sizes.active_experts / sizes.experts, running)
    used = sizes.experts - untouched - sizes.active_experts
    return BF16 * (sizes.matmul_params + max(0.0, used) * sizes.expert_params)


def decode_roofline(sizes: ModelSizes, assumed: Assumptions, tensor_parallel: int = 1) -> StepSeconds:
    """Return the seconds of a decode step: the overhead plus the larger of memory time and compute time.

    overhead + max((weights + cache) / bandwidth, (2 x matrices x n + 4 x heads x layers x context) / peak), each
    divided by the GPUs of the engine and the efficiency.
    """
    share = assumed.decode_share * tensor_parallel
    cached = cache_bytes_per_token(sizes, tensor_parallel) * tensor_parallel
    bandwidth, peak = share * assumed.gpu.bytes_per_s, share * assumed.gpu.flops
    a_token, a_context = 2.0 * sizes.matmul_params, 4.0 * sum(attention.width for attention in sizes.attention)
    read = cache(partial(weight_bytes_read, sizes))  # called a million times with few distinct numbers of sequences

    def seconds(running: float, context: float) -> float:
        moved = (read(running) + cached * context) / bandwidth
        return assumed.step_overhead_s + max(moved, (a_token * running + a_context * context) / peak)

    return seconds


# ----------------------------------------------------------------------------------------------------------- training


def gather_seconds(
    sizes: ModelSizes,
    assumed: Assumptions,
    ranks: int,
    micro_batches: int,
    expert_ranks: int = 1,
) -> float:
    """Return the seconds of FSDP2's communication in an update; 0 for one rank.

    BF16 weights are gathered for the forward and the backward pass of each micro-batch, and FP32 gradients are
    reduce-scattered after it. A rank gathers no experts of other ranks: (P - E) (1 - 1 / n) + E (1 / e - 1 / n) of P
    parameters, if E of them are in experts that are spread over e of n ranks.
    """
    spread = sizes.experts * sizes.expert_params if expert_ranks > 1 else 0
    gathered = (sizes.params - spread) * (1 - 1 / ranks) + spread * (1 / expert_ranks - 1 / ranks)
    return gathered * (2.0 * BF16 + FP32) * micro_batches / _between(assumed, ranks)


def _between(assumed: Assumptions, ranks: int) -> float:
    """Return the bytes per second of each of some ranks, which are on one node if it has as many GPUs."""
    return assumed.gpu.link * 0.8 if ranks <= assumed.node else assumed.network


def exchange_seconds(
    sizes: ModelSizes, assumed: Assumptions, expert_ranks: int, tokens: float, checkpointing: bool
) -> float:
    """Return the seconds in which a rank's tokens travel to their experts and back, BF16; 0 for one expert rank.

    Twice in the forward and twice in the backward pass of every mixture layer, and twice if it is recomputed.
    """
    layers = sizes.experts * sizes.expert_params / sizes.layer_experts if sizes.experts else 0
    sent = BF16 * tokens * sizes.width * sizes.active_experts * (1 - 1 / expert_ranks)
    return (6 if checkpointing else 4) * layers * sent / _between(assumed, expert_ranks)


def training_roofline(
    sizes: ModelSizes,
    assumed: Assumptions,
    ranks: int,
    micro_batch_tokens: int,
    prompt_tokens: float,
    checkpointing: bool = False,
    expert_ranks: int = 1,
    reference: bool = False,
) -> UpdateSeconds:
    """Return the seconds of an update: the larger of compute and FSDP2's communication, which overlap.

    Computing waits for the tokens of experts on other ranks.

    All ranks run the same number of micro-batches; the last one may be partly empty.

    Args:
        sizes: The model.
        assumed: Speeds.
        ranks: Trainer ranks.
        micro_batch_tokens: Padded tokens of one forward and backward pass of a rank.
        prompt_tokens: Mean length of a prompt.
        checkpointing: Whether activations are recomputed in the backward pass.
        expert_ranks: Ranks over which experts are spread.
        reference: Whether the reference of a KL term makes a forward pass.
    """
    peak = ranks * assumed.training_share * assumed.gpu.flops

    def seconds(lengths: Lengths) -> float:
        flops = sizes.training_flops(lengths + prompt_tokens, lengths, checkpointing)
        if reference:
            flops += sizes.forward_flops(0, lengths + prompt_tokens) + sizes.head_flops(lengths)
        compute = flops / peak
        tokens = float(lengths.sum()) + prompt_tokens * len(lengths)
        micro_batches = max(1, math.ceil(tokens / ranks / micro_batch_tokens))
        gather = gather_seconds(sizes, assumed, ranks, micro_batches, expert_ranks)
        return max(compute, gather) + exchange_seconds(sizes, assumed, expert_ranks, tokens / ranks, checkpointing)

    return seconds


def updates_from_rate(tokens_per_s: float) -> UpdateSeconds:
    """Return the seconds of an update at a rate of completion tokens per second."""
    return lambda lengths: float(lengths.sum()) / tokens_per_s


def transfer_seconds(size: float, assumed: Assumptions, channel: str, nodes: int) -> tuple[float, float]:
    """Return the seconds in which the trainer sends a version, and then those in which an engine receives it.

    Args:
        size: Bytes of a version (`memory.sent_bytes`).
        assumed: Speeds.
        channel: Name of the channel. directory, adapters: the trainer writes files, and every node reads them from the
            shared file system. nccl: both sides wait for one broadcast. shared-memory: through the memory of the node.
        nodes: Nodes with engines; the engines of a node share what it has read.
    """
    if channel in ("directory", "adapters"):
        return size / assumed.disk, nodes * size / assumed.disk
    one_way = size / (assumed.network if channel == "nccl" else assumed.host)
    return one_way, one_way
