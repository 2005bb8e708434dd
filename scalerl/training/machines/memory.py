"""Estimates the bytes on each GPU, and in the memory of a host, from the sizes of a decoder: one equation per function.

Legend: params: entries of all matrices; ranks: trainer processes that shard them (FSDP2); T: padded tokens of one
micro-batch; D: width of the model; V: vocabulary; w: bytes of a weight in the forward pass, 2 in BF16 and 4 in FP32.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import NamedTuple

from scalerl.core.errors import ConfigError
from scalerl.training.config.model import Lora
from scalerl.training.engines.engine import EVALUATION_CACHE, PASS_BYTES
from scalerl.training.models.sizes import ModelSizes
from scalerl.training.placement.devices import GB, USABLE
from scalerl.training.placement.sizes import RunSizes

BF16, FP32 = 2, 4
"""Bytes per entry."""


LOGITS = 1 << 24
"""Entries of one block of logits (training/models/head.py), at least 256 columns wide."""

PROCESS, WORKER = 0.45e9, 0.2e9
"""Bytes of a process with torch and transformers, and of one that runs a verifier (measured on Linux)."""


class TrainerMemory(NamedTuple):
    """Memory of a trainer GPU, in bytes.

    Example (Qwen3-0.6B alone): TrainerMemory(weights=1.2e9, masters=2.4e9, gradients=3.6e9, optimizer=4.8e9,
                                              gathered=0.0, activations=2.1e9, logits=0.4e9)
    """

    weights: float
    """Copy for the forward pass; 0 if it is gathered layer by layer."""
    masters: float
    """FP32 weights; 0 if they are those of the forward pass."""
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    reference: float = 0.0
    """Copy of the trained weights for the KL term."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self)


class GeneratorMemory(NamedTuple):
    """Memory of one GPU of a generator, in bytes.

    Example (Qwen3-8B, 12 slots of 16k): GeneratorMemory(weights=16.4e9, head=0.0, cache=28.9e9)
    """

    weights: float
    head: float
    """FP32 copy of the head in the torch engine."""
    cache: float
    """Keys and values."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self)


def saved_bytes(sizes: ModelSizes, tokens: int, width: int = BF16) -> float:
    """Return the bytes that a layer saves for its backward pass, for T tokens with fused attention.

    T (4 w m + 16 D + 5 w q + 2.5 w kv). Gate, up, activation and product of the MLP (m each), queries and attention's
    result (q each), keys and values (kv together), and the results of two norms, and of those of queries and keys,
    before and after their weights. In FP32: the inputs of these norms. With latent attention, keys and values have one
    head per query head. With w = 4 the norms save one result, and attention repeats keys and values for each query head
    (measured within 3% on a 135M Llama).
    """
    queries = sizes.attention[0].width
    keys_and_values = 2 * queries if sizes.expanded_params else sizes.cache_width / sizes.layers
    return tokens * (4.0 * width * sizes.mlp + 16 * sizes.width + width * (5 * queries + 2.5 * keys_and_values))


def kept_bytes(sizes: ModelSizes, tokens: int, checkpointing: bool, width: int = BF16) -> float:
    """Return the bytes that the forward pass keeps: of every layer its input with checkpointing, else all it saves."""
    return sizes.layers * (width * tokens * sizes.width if checkpointing else saved_bytes(sizes, tokens, width))


def layer_bytes(sizes: ModelSizes, tokens: int, checkpointing: bool, width: int = BF16) -> float:
    """Return the bytes of the backward pass of a layer: its gradients, and what it saves if that is recomputed.

    The gradients are those of the MLP's product and one of its factors (m each) and of the layer's result (D).
    """
    gradients = width * tokens * (2.0 * sizes.mlp + sizes.width)
    return gradients + (saved_bytes(sizes, tokens, width) if checkpointing else 0.0)


def logits_bytes(sizes: ModelSizes, tokens: int) -> float:
    """Return the bytes of the head's product in FP32: two blocks of logits, and two hidden states per token.

    The blocks are the logits and their exponentials. The hidden states are the gradient and the product that is added
    to it.
    """
    block = min(max(LOGITS, 256 * tokens), tokens * sizes.head_params / sizes.width)
    return FP32 * (2.0 * block + 2 * tokens * sizes.width)


def adapter_params(sizes: ModelSizes, lora: Lora) -> int:
    """Return the entries of adapters, R (I + O) for each matrix of every layer.

    Args:
        sizes: The model.
        lora: Rank and targets; a target with an unknown name counts as all seven usual matrices.
    """
    queries, keys, width = int(sizes.attention[0].width), sizes.cache_width // sizes.layers // 2, sizes.width
    ends = dict.fromkeys(("q_proj", "o_proj"), width + queries) | dict.fromkeys(("k_proj", "v_proj"), width + keys)
    ends |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), width + sizes.mlp)
    names = list(ends) if lora.targets == "all-linear" else [name.rpartition(".")[2] for name in lora.targets]
    return lora.rank * sizes.layers * sum(ends.get(name, sum(ends.values())) for name in names)


CHANNEL_VERSIONS = 4
"""Versions of the weights that a channel through files or shared memory holds."""


def trained_params(run: RunSizes) -> float:
    """Return the entries that are trained: of the adapters, or of the model."""
    return adapter_params(run.model.sizes, run.lora) if run.lora else run.model.sizes.params


def sent_bytes(run: RunSizes) -> float:
    """Return the bytes of a version of the weights as it is sent, w params; of the adapters, if only they are sent."""
    return float(run.width) * (trained_params(run) if run.channel == "adapters" else run.model.sizes.params)


def disk_bytes(run: RunSizes) -> float:
    """Return the bytes of a run directory: checkpoints of 12 bytes per trained entry, and weights sent through files.

    There are the newest checkpoints, those kept for good, the one that is being written, and the best one; a short run
    makes fewer. With `evaluation.overlap` each may have the weights that are evaluated, as they are sent, which are in
    another file unless they travel through memory.
    """
    version, overlap = sent_bytes(run), run.evaluation.overlap
    checkpoint = checkpoint_bytes(run) + version * overlap
    stored = CHANNEL_VERSIONS * (run.channel in ("directory", "adapters"))
    stored += overlap and run.channel != "shared-memory"
    return checkpoint * (kept_checkpoints(run) + 1) + version * stored


def checkpoint_bytes(run: RunSizes) -> float:
    """Return the bytes of the learner's part of a checkpoint: FP32 weights and both moments of each trained entry."""
    return 3 * FP32 * trained_params(run)


def gb(value: float) -> str:
    """Return bytes as a number of GB (10^9)."""
    return f"{value / GB:.1f}"


def disk_size(count: float) -> str:
    """Return a number of bytes in GB or MB."""
    return f"{gb(count)} GB" if count >= GB else f"{count / 1e6:,.0f} MB"


def kept_checkpoints(run: RunSizes) -> int:
    """Return the number of checkpoints without the best one: the newest, those kept for good, and one being written."""
    policy, interval = run.checkpoint, run.checkpoint.keep_every
    most = policy.keep + 1 + (run.steps // interval if interval else 0)
    return most if policy.every_minutes else min(most, -(-run.steps // policy.every))


def check_disk(run: RunSizes, place: Path, written: float = 0.0) -> None:
    """Check that the disk of a directory has room for a run.

    Args:
        run: The run.
        place: An existing directory on that disk.
        written: Bytes that the run has written already.

    Raises:
        ConfigError: It has not.
    """
    free, needed = shutil.disk_usage(place).free, disk_bytes(run) - written
    if free < needed:
        raise ConfigError(
            f"{socket.gethostname()}:{place.resolve()}: {disk_size(free)} are free; {kept_checkpoints(run)} "
            f"checkpoints, the best one and the weights that are sent need {disk_size(needed)}. Free space, lower "
            f"checkpoint.keep, {'raise checkpoint.keep_every, ' if run.checkpoint.keep_every else ''}or give "
            "another --run-dir"
        )


def trainer_memory(
    sizes: ModelSizes,
    ranks: int,
    tokens: int,
    checkpointing: bool,
    adapters: int = 0,
    expert_ranks: int = 1,
    width: int = BF16,
    helpers: int = 0,
    reference: bool = False,
) -> TrainerMemory:
    """Return the memory of each trainer at the largest of three moments of a micro-batch's backward pass.

    Args:
        sizes: The model.
        ranks: Processes that shard masters, gradients and optimizer state equally.
        tokens: Padded tokens of one micro-batch.
        checkpointing: Whether activations are recomputed in the backward pass.
        adapters: Entries of adapters that are trained instead of the model (`model.lora`); 0: none.
        expert_ranks: Ranks over which experts are spread; a rank then gathers only its own, and sums their gradient.
        width: Bytes of a weight in the forward pass; with 4, one process trains these weights and needs no masters.
        helpers: Threads that compute further micro-batches; each holds their activations and two gradients.
        reference: Whether the loss has a KL term (`recipe.kl_coefficient`).
    """
    elsewhere = 1 - 1 / expert_ranks
    layer = sizes.layer_params - elsewhere * sizes.layer_experts
    of_rank, alone = (adapters or sizes.params) / ranks, ranks == 1
    reduced = adapters / sizes.layers if adapters else layer
    head, threads = 0 if adapters else width * sizes.head_params, 1 + helpers
    ends = sizes.head_params * (1 if sizes.tied else 2)
    at_head = TrainerMemory(
        weights=width * (sizes.params + adapters) if alone else width * sizes.params / ranks * bool(adapters),
        masters=0.0 if alone and width == FP32 else FP32 * of_rank,
        gradients=FP32 * of_rank + head + 2.0 * helpers * width * of_rank,
        optimizer=2 * FP32 * of_rank,
        gathered=0.0 if alone else width * (layer + ends),
        activations=threads * kept_bytes(sizes, tokens, checkpointing, width),
        logits=threads * logits_bytes(sizes, tokens),
        reference=float((width if alone else FP32) * of_rank) if reference else 0.0,
    )
    at_last_layer = at_head._replace(
        # the layer, the next one, and the FP32 gradient that is reduced
        gathered=0.0 if alone else width * (2.0 * layer + ends) + FP32 * reduced,
        activations=at_head.activations + threads * layer_bytes(sizes, tokens, checkpointing, width),
        logits=0.0,
    )
    # autograd adds the gradients of a tied head and embedding out of place
    last = width * (of_rank + (2 * sizes.head_params if sizes.tied and not adapters else 0.0))
    at_embedding = at_last_layer._replace(
        gradients=at_head.gradients - head + (last if alone else 0.0 if adapters else width * ends),
        gathered=0.0 if alone or adapters else float(FP32 * ends),
        activations=0.0,
    )
    return max(at_head, at_last_layer, at_embedding, key=lambda moment: moment.total)


def cache_bytes_per_token(sizes: ModelSizes, tensor_parallel: int = 1, width: int = BF16) -> float:
    """Return the bytes of the cache of one token on one GPU; latents (MLA) are not split over GPUs."""
    return width * sizes.cache_width / (1 if sizes.expanded_params else tensor_parallel)


def evaluation_cache(run: RunSizes) -> float:
    """Return the bytes by which an evaluation may enlarge an engine's cache: from one sequence to all of them."""
    slot = run.row_tokens * cache_bytes_per_token(run.model.sizes, 1, run.width)
    return min(max(EVALUATION_CACHE, slot), slot * -(-run.most_evaluated // run.placement.engines))


def generator_memory(
    sizes: ModelSizes,
    cached_tokens: float,
    tensor_parallel: int = 1,
    fp32_head_copy: bool = False,
    width: int = BF16,
) -> GeneratorMemory:
    """Return the memory of one GPU of a generator, or of one on CPU.

    Args:
        sizes: The model.
        cached_tokens: Total tokens of its sequences.
        tensor_parallel: GPUs that share weights and cache.
        fp32_head_copy: Whether the engine also keeps the head in FP32, if the weights are not.
        width: Bytes of a weight and of an entry of the cache.
    """
    return GeneratorMemory(
        weights=width * sizes.params / tensor_parallel,
        head=float(FP32 * sizes.head_params) if fp32_head_copy and width < FP32 else 0.0,
        cache=cached_tokens * cache_bytes_per_token(sizes, tensor_parallel, width),
    )


class HostMemory(NamedTuple):
    """Memory of all processes of a run on one host, in bytes.

    Example (SmolLM2-135M in FP32): HostMemory(trainer=4.5e9, generators=0.8e9, cache=1.6e9, channel=2.2e9,
                                               processes=1.3e9)
    """

    trainer: float
    """Weights, gradients, optimizer state and activations. On a GPU: the copy of a checkpoint while it is written."""
    generators: float
    """Weights of all generators, and the working memory of their passes; 0 on GPUs."""
    cache: float
    """Keys and values. On GPUs: those that wait here while an evaluation uses their cache."""
    channel: float
    """Versions of the weights on their way to the generators."""
    processes: float
    """Programs and libraries."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self)


def pass_memory(sizes: ModelSizes, row_tokens: int, width: int) -> float:
    """Return the working memory of the torch engine: a pass over prompts, at least the longest, or a draw."""
    return max(float(PASS_BYTES), sizes.pass_bytes(width) * row_tokens)


def slots_that_fit(sizes: ModelSizes, tokens: float, gpu_bytes: float, tensor_parallel: int = 1) -> int:
    """Return how many sequences of `tokens` tokens fit on a generator in addition to the weights."""
    room = USABLE * gpu_bytes - BF16 * sizes.params / tensor_parallel
    return max(0, int(room / (tokens * cache_bytes_per_token(sizes, tensor_parallel))))
