"""Estimates the bytes on each GPU from the sizes of a decoder: one equation per function.

Legend: params: entries of all matrices; ranks: trainer processes that shard them (FSDP2); T: padded tokens of one
micro-batch; D: width of the model; V: vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

from scalerl.config.model import Lora
from scalerl.models.sizes import ModelSizes

USABLE = 0.9
"""Usable share of a GPU's memory: vLLM's default. The rest is for the allocator and the CUDA context."""

BF16, FP32 = 2, 4
"""Bytes per entry."""

LOGITS = 1 << 24
"""Entries of one block of logits (models/head.py), at least 256 columns wide."""

GB = 1e9


class TrainerMemory(NamedTuple):
    """Memory of a trainer GPU, in bytes.

    Example (Qwen3-0.6B alone): TrainerMemory(weights=1.2e9, masters=2.4e9, gradients=3.6e9, optimizer=4.8e9,
                                              gathered=0.0, activations=2.1e9, logits=0.4e9)
    """

    weights: float
    """BF16 copy for the forward pass; 0 if it is gathered layer by layer."""
    masters: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float

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


def layer_activation_bytes(sizes: ModelSizes, tokens: int) -> float:
    """Return the bytes that one layer's backward pass needs, for T tokens in BF16 with fused attention.

    2 T (6 D + 2 q + kv + 4 m): the inputs of norms, attention, output and residual (6 D), queries and attention's
    result (q each), keys and values (kv together), and gate, up, activation and product of the MLP (m each). With
    latent attention, keys and values have one head per query head.
    """
    queries = sizes.attention[0].width
    keys_and_values = 2 * queries if sizes.expanded_params else sizes.cache_width / sizes.layers
    return BF16 * tokens * (6.0 * sizes.width + 2 * queries + keys_and_values + 4 * sizes.mlp)


def activation_bytes(sizes: ModelSizes, tokens: int, checkpointing: bool) -> float:
    """Return the bytes of activations of T tokens.

    Without checkpointing, the activations of all layers; with it, the input of each layer and the activations of one.
    """
    own = layer_activation_bytes(sizes, tokens)
    return sizes.layers * BF16 * tokens * sizes.width + own if checkpointing else sizes.layers * own


def logits_bytes(sizes: ModelSizes, tokens: int) -> float:
    """Return the bytes of the head's chunked product.

    Three FP32 blocks of logits, two FP32 hidden states per token, and the BF16 gradient of the whole head.
    """
    block = max(LOGITS, 256 * tokens)
    return FP32 * (3.0 * block + 2 * tokens * sizes.width) + BF16 * sizes.head_params


def gathered_bytes(sizes: ModelSizes, ranks: int) -> float:
    """Return the bytes that FSDP2 holds unsharded at a time; 0 for one rank.

    Two layers, embedding and head in BF16, and one layer's gradient in FP32.
    """
    ends = sizes.head_params * (1 if sizes.tied else 2)
    return BF16 * (2.0 * sizes.layer_params + ends) + FP32 * sizes.layer_params if ranks > 1 else 0.0


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


def trainer_memory(
    sizes: ModelSizes,
    ranks: int,
    tokens: int,
    checkpointing: bool,
    whole_gradient: bool = False,
    adapters: int = 0,
) -> TrainerMemory:
    """Return the memory of each trainer GPU: its share of FP32 masters, gradient and two moments.

    A single rank also holds weights and a micro-batch's gradient in BF16; several ranks gather weights layer by layer.

    Args:
        sizes: The model.
        ranks: Processes that shard masters, gradients and optimizer state equally.
        tokens: Padded tokens of one micro-batch.
        checkpointing: Whether activations are recomputed in the backward pass.
        whole_gradient: Whether every rank accumulates the whole gradient in FP32, which is reduced once per update.
        adapters: Entries of adapters that one rank trains instead of the model (`model.lora`); 0: none.
    """
    own, alone = adapters or sizes.params / ranks, ranks == 1
    whole = sizes.params if whole_gradient else 0.0
    return TrainerMemory(
        weights=BF16 * (sizes.params + adapters) if alone else 0.0,
        masters=FP32 * own,
        gradients=(BF16 + FP32) * own if alone else FP32 * (own + whole),
        optimizer=2 * FP32 * own,
        gathered=gathered_bytes(sizes, ranks),
        activations=activation_bytes(sizes, tokens, checkpointing),
        logits=logits_bytes(sizes, tokens) - (BF16 * sizes.head_params if adapters else 0.0),  # a frozen head
    )


def cache_bytes_per_token(sizes: ModelSizes, tensor_parallel: int = 1) -> float:
    """Return the bytes of the cache of one token on one GPU, BF16; latents (MLA) are not split over GPUs."""
    return BF16 * sizes.cache_width / (1 if sizes.expanded_params else tensor_parallel)


def generator_memory(
    sizes: ModelSizes, cached_tokens: float, tensor_parallel: int = 1, fp32_head_copy: bool = False
) -> GeneratorMemory:
    """Return the memory of one GPU of a generator.

    Args:
        sizes: The model.
        cached_tokens: Total tokens of its sequences.
        tensor_parallel: GPUs that share weights and cache.
        fp32_head_copy: Whether the engine also keeps the head in FP32.
    """
    return GeneratorMemory(
        weights=BF16 * sizes.params / tensor_parallel,
        head=float(FP32 * sizes.head_params) if fp32_head_copy else 0.0,
        cache=cached_tokens * cache_bytes_per_token(sizes, tensor_parallel),
    )


def slots_that_fit(sizes: ModelSizes, tokens: float, gpu_bytes: float, tensor_parallel: int = 1) -> int:
    """Return how many sequences of `tokens` tokens fit on a generator in addition to the weights."""
    room = USABLE * gpu_bytes - BF16 * sizes.params / tensor_parallel
    return max(0, int(room / (tokens * cache_bytes_per_token(sizes, tensor_parallel))))
