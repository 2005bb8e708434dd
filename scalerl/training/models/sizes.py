"""Sizes of a decoder, from its config.json, its name or the loaded model, and its FLOPs. torch is not imported.

Tokens and FLOPs are counted, not measured, so they have no noise and do not depend on the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scalerl.core.errors import ConfigError
from scalerl.training.config.model import HuggingFaceModel, TinyModel
from scalerl.training.models.files import check_model_files, read_model_config

Get = Callable[[str], Any]
"""Function that returns the value of a name of config.json, or None."""


class Attention(NamedTuple):
    """One attention of a decoder; a layer usually has one.

    Example (32 heads of 128, full attention): Attention(width=4096, window=0)
    """

    width: float
    """Heads x head size: of queries and values on average, if they differ."""
    window: int
    """Sliding window in tokens; 0 for full attention."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a decoder that determine its FLOPs and bytes; entries of matrices, without norms and biases.

    Example (Qwen3-0.6B, shortened): ModelSizes(matmul_params=595984384, attention=(Attention(2048, 0), ...),
        head_params=155582464, params=595984384, width=1024, heads=16, kv_heads=8, cache_width=57344, mlp=3072, ...)
    """

    matmul_params: float
    """Entries of all matrices that multiply a token: with the head, with active experts only, without embeddings."""
    attention: tuple[Attention, ...]
    head_params: float = 0.0
    """Entries of `matmul_params` in the LM head, which multiplies only positions that predict a token."""
    frozen_params: float = 0.0
    """Entries of `matmul_params` without a gradient: the weights of the base model when adapters are trained."""
    expanded_params: float = 0.0
    """Entries of `matmul_params` that a decode step multiplies with every cached token, as latents of MLA."""
    cache_width: int = 0
    """Entries of the cache per token, over all layers, by the configuration."""
    params: float = 0.0
    """Entries of all matrices, with the embedding; a tied head counts once."""
    layer_params: int = 0
    """Entries of the largest layer."""
    width: int = 0
    """Width of the residual stream."""
    heads: int = 0
    kv_heads: int = 0
    mlp: int = 0
    """Width of the widest MLP that a token passes: a dense layer's, or all active experts'."""
    experts: int = 0
    """Experts per mixture layer; 0: a dense model."""
    active_experts: int = 0
    """Experts used per token."""
    expert_params: int = 0
    """Entries of one expert of every mixture layer."""
    layer_experts: int = 0
    """Entries of all experts of one mixture layer."""
    tied: bool = False
    """Whether the head shares the embedding's weights."""
    layers: int = 0

    def forward_flops(self, first: npt.ArrayLike, count: npt.ArrayLike, predicted: npt.ArrayLike = 0) -> float:
        """Return the FLOPs of the forward pass over `count` tokens of a sequence, the first at position `first`.

        A multiply-add counts as two FLOPs. Each token costs 2 x matrix entries, and in each layer 2 x width x context
        for the attention scores and as much for the weighted sum. The context of position p is the p + 1 tokens that it
        attends to, at most the layer's window.

        Args:
            first: Position of the first token, counted from 0; arrays for several sequences, whose FLOPs are summed.
            count: Number of tokens.
            predicted: Number of these tokens whose hidden state goes through the head.
        """
        first, count = np.asarray(first, np.float64), np.asarray(count, np.float64)
        body = 2.0 * (self.matmul_params - self.head_params) * float(count.sum())
        attended = self._attended(lambda window: _contexts(first + count, window) - _contexts(first, window))
        return body + 4.0 * attended + self.head_flops(predicted)

    def head_flops(self, predicted: npt.ArrayLike) -> float:
        """Return the FLOPs of the head over `predicted` positions."""
        return 2.0 * self.head_params * float(np.sum(predicted))

    def decode_flops(self, contexts_N: npt.ArrayLike) -> float:
        """Return the FLOPs of one decode step: one token and one prediction for each of N sequences.

        Args:
            contexts_N: Tokens of each sequence, including the current input token. A layer attends to all of them, or
                to as many as its window holds.
        """
        contexts = np.asarray(contexts_N, np.float64)
        attended = self._attended(lambda window: np.minimum(contexts, window or np.inf))
        expanded = 2.0 * self.expanded_params * float((contexts - 1).sum())
        return 2.0 * self.matmul_params * len(contexts) + 4.0 * attended + expanded

    def _attended(self, contexts: Callable[[int], npt.NDArray[np.float64]]) -> float:
        """Return the sum of width x attended tokens over all layers; `contexts` gives the tokens for a window."""
        counts = Counter(self.attention)
        return sum(a.width * layers * float(contexts(a.window).sum()) for a, layers in counts.items())

    def pass_bytes(self, width: int) -> float:
        """Return the bytes per token of a forward pass without gradient, with entries of `width` bytes.

        Gate, up and product of an MLP; residual stream, norm and result; queries, result, keys and values.
        """
        queries = max(attention.width for attention in self.attention)
        return width * (3 * self.mlp + 4 * self.width + 4 * queries + 2 * self.cache_width / max(1, self.layers))

    def training_flops(self, count: npt.ArrayLike, predicted: npt.ArrayLike = 0, checkpointing: bool = False) -> float:
        """Return the FLOPs of forward and backward over one sequence, or over several.

        The backward pass costs two forward passes. Recomputed activations cost one more: always in the head
        (training/models/head.py), and in the layers with gradient checkpointing. A frozen matrix needs no weight
        gradient, which saves 2 of 6 FLOPs per token and entry. Adapters freeze the head too. The first layer's input
        gradient counts.

        Args:
            count: Tokens of the sequence, including the prompt.
            predicted: Number of these tokens that are trained.
            checkpointing: Whether the layers recompute their activations.
        """
        head = self.head_flops(predicted)
        full_flops = self.forward_flops(0, count) * (4.0 if checkpointing else 3.0) + 4.0 * head
        if not self.frozen_params:
            return full_flops
        return full_flops - 2.0 * (self.frozen_params - self.head_params) * float(np.sum(count)) - head


def _contexts(tokens: npt.NDArray[np.float64], window: int) -> npt.NDArray[np.float64]:
    """Return the sum of the contexts of the first tokens of a sequence: 1 + 2 + ..., each at most the window."""
    growing = np.minimum(tokens, window) if window else tokens
    return growing * (growing + 1.0) / 2.0 + (tokens - growing) * window


# -------------------------------------------------------------------------------------------------- from configurations


def of_config(get: Get) -> ModelSizes:
    """Return the sizes of a decoder with gated MLPs from its config.json. Sliding windows are not read.

    Raises:
        KeyError: A size that every decoder needs is missing.
    """
    width, layers, vocabulary = (_needed(get, name) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
    experts = next((int(get(name)) for name in EXPERT_COUNTS if get(name)), 0)
    active = int(next((get(name) for name in ACTIVE_COUNTS if get(name)), experts))
    # in Llama 4, `intermediate_size` is the width of an expert, and there is one shared expert
    llama4 = get("intermediate_size_mlp") is not None
    mlp = _needed(get, "intermediate_size_mlp" if llama4 else "intermediate_size")
    expert_mlp = int(get("moe_intermediate_size") or _needed(get, "intermediate_size")) if experts else 0
    shared = expert_mlp if llama4 else int(get("shared_expert_intermediate_size") or 0)
    shared = (shared or int(get("n_shared_experts") or 0) * expert_mlp) if experts else 0
    interval = int(get("moe_every") or get("interleave_moe_layer_step") or get("decoder_sparse_step") or 1)
    mixtures = (layers - int(get("first_k_dense_replace") or 0)) // interval if experts else 0
    layer = _layer(get)
    dense, expert, common = 3 * width * mlp, 3 * width * expert_mlp, width * (experts + 3 * shared)

    def body(used: int) -> int:
        return layers * layer.params + (layers - mixtures) * dense + mixtures * (used * expert + common)

    head, heads = vocabulary * width, _needed(get, "num_attention_heads")
    tied = get("tie_word_embeddings") in (None, True)  # transformers' default
    return ModelSizes(
        matmul_params=body(active) + head,
        attention=(layer.attention,) * layers,
        head_params=head,
        expanded_params=layers * layer.expanded_params,
        cache_width=layers * layer.cache_width,
        params=body(experts) + head * (1 if tied else 2),
        layer_params=layer.params + max(dense, experts * expert + common if experts else 0),
        width=width,
        heads=heads,
        kv_heads=int(get("num_key_value_heads") or heads),
        mlp=max(mlp, active * expert_mlp + shared),
        experts=experts,
        active_experts=active,
        expert_params=mixtures * expert,
        layer_experts=experts * expert,
        tied=tied,
        layers=layers,
    )


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in the config.json of different families."""
ACTIVE_COUNTS = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""Names of the number of experts that a token uses."""


class _Layer(NamedTuple):
    attention: Attention
    cache_width: int
    params: int
    expanded_params: int = 0


def _layer(get: Get) -> _Layer:
    width, heads = _needed(get, "hidden_size"), _needed(get, "num_attention_heads")
    if latent := int(get("kv_lora_rank") or 0):  # multi-head latent attention, DeepSeek-V2 (arXiv 2405.04434)
        rotary, plain, value = (_needed(get, f"{name}_head_dim") for name in ("qk_rope", "qk_nope", "v"))
        queries, values, rank = heads * (rotary + plain), heads * value, int(get("q_lora_rank") or 0)
        expanded = latent * (heads * plain + values)
        projected = rank * (width + queries) if rank else width * queries
        projected += width * (latent + rotary) + expanded + values * width
        return _Layer(Attention((queries + values) / 2, 0), latent + rotary, projected, expanded)
    size, kv_heads = int(get("head_dim") or width // heads), int(get("num_key_value_heads") or heads)
    return _Layer(Attention(heads * size, 0), 2 * kv_heads * size, 2 * width * size * (heads + kv_heads))


def _needed(get: Get, name: str) -> int:
    value = get(name)
    if value is None:
        raise KeyError(name)
    return int(value)


def of_model(model: Any) -> ModelSizes:
    """Return the sizes of a transformers model, counted in its matrices.

    All matrices count except token and position embeddings. The expert matrices of a mixture ([E, ., .], or one module
    per expert) count by the share that a token activates.
    """
    from torch import nn

    sizes = of_config(_getter(model.config.per_layer_config[0]))
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = model.get_output_embeddings().weight
    used, params, in_experts, expanded = float(head.numel()), 0, 0, 0
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or name.endswith("bias"):
            continue  # the biases of fused experts are [E, .]
        params += parameter.numel()
        expanded += parameter.numel() if name.endswith(_EXPANDED) else 0
        if ".experts." in name and "shared" not in name:
            in_experts += parameter.numel()
        elif id(parameter) not in looked_up and parameter is not head:
            used += parameter.numel()
    experts = sizes.experts if in_experts else 0  # configurations of dense models may have a number, too
    return replace(
        sizes,
        matmul_params=used + (in_experts * sizes.active_experts / experts if experts else 0.0),
        experts=experts,
        attention=_attentions(model.config),
        head_params=float(head.numel()),
        expanded_params=expanded,
        params=params,
    )


def _attentions(config: Any) -> tuple[Attention, ...]:
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    calls = 2 if getattr(config, "lambda_std_dev", None) else 1  # differential attention (arXiv 2410.05258)
    attentions: list[Attention] = []
    for layer, kind in zip(config.per_layer_config, kinds, strict=True):
        window = getattr(layer, "sliding_window", None) if kind == "sliding_attention" else None
        attentions += [_layer(_getter(layer)).attention._replace(window=window or 0)] * calls
    return tuple(attentions)


_EXPANDED = ("kv_b_proj.weight", "dt_proj.weight")
"""Matrices of transformers that multiply every cached token: of latent attention, and of Doge's dynamic mask."""


def _getter(config: Any) -> Get:
    """Return a function that reads a transformers configuration; without `intermediate_size`, MLPs have four widths."""

    def get(name: str) -> Any:
        value = getattr(config, name, None)
        return 4 * config.hidden_size if value is None and name == "intermediate_size" else value

    return get


# -------------------------------------------------------------------------------------------------- before a run starts


def tiny_config(model: TinyModel, vocabulary: int = 32) -> dict[str, Any]:
    """Return the sizes of the lab's Qwen3, dense or with experts, by their names in its configuration."""
    mixture = {
        "num_experts": model.experts,
        "num_experts_per_tok": model.active_experts,
        "moe_intermediate_size": 4 * model.width // model.active_experts,
    }
    return {
        "vocab_size": vocabulary,
        "hidden_size": model.width,
        "intermediate_size": 4 * model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads,
        "head_dim": model.width // model.heads,
        "tie_word_embeddings": True,
    } | (mixture if model.experts else {})


def _sizes(*row: int, **mixture: int) -> ModelSizes:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
             "intermediate_size", "vocab_size", "tie_word_embeddings")  # fmt: skip
    return of_config({**dict(zip(names, row, strict=True)), **mixture}.get)


_LLAMA_8B = _sizes(4096, 32, 32, 8, 128, 14336, 128256, False)
_SCOUT = _sizes(
    5120, 48, 40, 8, 128, 8192, 202048, False, intermediate_size_mlp=16384, num_local_experts=16, num_experts_per_tok=1
)

WELL_KNOWN = {
    "Qwen/Qwen2.5-7B": _sizes(3584, 28, 28, 4, 128, 18944, 152064, False),
    "Qwen/Qwen3-0.6B": _sizes(1024, 28, 16, 8, 128, 3072, 151936, True),
    "Qwen/Qwen3-1.7B": _sizes(2048, 28, 16, 8, 128, 6144, 151936, True),
    "Qwen/Qwen3-4B": _sizes(2560, 36, 32, 8, 128, 9728, 151936, True),
    "Qwen/Qwen3-8B": _sizes(4096, 36, 32, 8, 128, 12288, 151936, False),
    "Qwen/Qwen3-30B-A3B": _sizes(
        2048, 48, 32, 4, 128, 6144, 151936, False, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768
    ),
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "meta-llama/Llama-4-Scout-17B-16E": _SCOUT,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _SCOUT,
}
"""Sizes by hub name, from the models' public config.json; Scout without its image encoder and with full attention."""


class SizedModel(NamedTuple):
    """The sizes of a model and the source of its numbers.

    Example: SizedModel(sizes=ModelSizes(...), source="models/qwen/config.json")
    """

    sizes: ModelSizes
    source: str


def sizes_of(model: TinyModel | HuggingFaceModel) -> SizedModel:
    """Return the sizes of a model and the source of its numbers.

    Sources in order: the model's config.json, the hub's cache on this machine, the table of well-known models. Nothing
    is downloaded.

    Raises:
        ConfigError: The model is in none of them.
    """
    if isinstance(model, TinyModel):
        return SizedModel(of_config(tiny_config(model).get), "[model], the lab's tiny Qwen3")
    path = model.path
    check_model_files(path, weights=False)
    file = Path(path) / "config.json"
    config_file = file if file.is_file() else _in_hub_cache(path, model.revision)
    if config_file is not None:
        values = read_model_config(config_file)
        inner = values.get("text_config")  # of a model with images
        return _sized_model({**values, **inner} if isinstance(inner, dict) else values, str(config_file))
    if path in WELL_KNOWN:
        return SizedModel(WELL_KNOWN[path], f"the table of well-known models ({path})")
    raise ConfigError(
        f"model.path: got {path!r}, whose config.json is not on this machine; allowed: a directory with one, a name in "
        f"the hub's cache, or one of {', '.join(WELL_KNOWN)}"
    )


def _in_hub_cache(name: str, revision: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(name, "config.json", revision=revision)
    except (ImportError, ValueError):  # not installed, as statistics do not need it; not a hub name, but a directory
        return None
    return Path(file) if isinstance(file, str) else None


def _sized_model(values: Mapping[str, Any], source: str) -> SizedModel:
    try:
        sizes = of_config(values.get)
        numbers = (sizes.width, sizes.layers, sizes.heads, sizes.kv_heads, sizes.cache_width, sizes.head_params)
        if min(numbers) < 1:
            raise ValueError(f"sizes are {numbers}; each must be at least 1")
        return SizedModel(sizes, source)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(
            f"{source}: not a supported decoder configuration ({type(error).__name__}: {error}); name its sizes as "
            "Llama's config.json does"
        ) from None
