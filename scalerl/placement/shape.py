"""Sizes of a decoder, from its config.json or by model name, and the parameter counts derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.config.base import ConfigError
from scalerl.config.model import HuggingFaceModel, TinyModel
from scalerl.config.placement import ModelNumbers
from scalerl.config.run import RunConfig
from scalerl.models.files import check_model_files, read_model_config
from scalerl.models.gguf import is_gguf, sizes


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder: embeddings, attention, MLPs and head, without norms and biases (less than 0.1%).

    Example (Qwen3-0.6B): DecoderShape(width=1024, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=3072,
                                       vocabulary=151936, tied=True)
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    """Width of a dense layer's MLP, which has three matrices (gate, up, down)."""
    vocabulary: int
    tied: bool = False
    """Whether the head shares the embedding's weights."""
    experts: int = 0
    """Experts per mixture layer; 0: a dense model."""
    active_experts: int = 0
    """Experts used per token."""
    expert_mlp: int = 0
    """Width of one expert."""
    shared_mlp: int = 0
    """Width of the shared expert that every token also uses."""
    moe_every: int = 1
    """Interval of mixture layers: 1 means every layer, 2 every second layer."""

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture."""
        return self.layers // self.moe_every if self.experts else 0

    @property
    def attention_params(self) -> int:
        """Entries of a layer's attention: queries and output of all heads, keys and values of the key-value heads."""
        return 2 * self.width * self.head_dim * (self.heads + self.kv_heads)

    @property
    def expert_params(self) -> int:
        """Entries of one expert's three matrices."""
        return 3 * self.width * self.expert_mlp

    @property
    def layer_params(self) -> int:
        """Entries of the largest layer."""
        mixture = self.experts * (self.expert_params + self.width) + 3 * self.width * self.shared_mlp
        return self.attention_params + max(3 * self.width * self.mlp, mixture if self.experts else 0)

    @property
    def head_params(self) -> int:
        """Entries of the head."""
        return self.vocabulary * self.width

    @property
    def params(self) -> int:
        """Entries of all matrices."""
        return self._with_experts(self.experts) + self.head_params * (1 if self.tied else 2)

    @property
    def matmul_params(self) -> int:
        """Entries that each token is multiplied with: active experts only, the head but not the embedding."""
        return self._with_experts(self.active_experts) + self.head_params

    def _with_experts(self, experts: int) -> int:
        mixture = experts * self.expert_params + 3 * self.width * self.shared_mlp + self.width * self.experts
        dense = (self.layers - self.moe_layers) * 3 * self.width * self.mlp
        return self.layers * self.attention_params + dense + self.moe_layers * mixture


def from_config_json(values: Mapping[str, Any]) -> DecoderShape:
    """Read a shape from the content of a config.json.

    Raises:
        KeyError: A size that every decoder needs is missing.
    """
    values = {**values, **values["text_config"]} if isinstance(values.get("text_config"), dict) else values
    heads, width = int(values["num_attention_heads"]), int(values["hidden_size"])
    experts = next((int(values[name]) for name in EXPERT_COUNTS if values.get(name)), 0)
    # `intermediate_size` is the width of an expert, and there is one shared expert
    llama4 = "intermediate_size_mlp" in values
    mlp = int(values["intermediate_size_mlp" if llama4 else "intermediate_size"])
    expert_mlp = int(values.get("moe_intermediate_size") or values["intermediate_size"]) if experts else 0
    shared = expert_mlp if llama4 else int(values.get("shared_expert_intermediate_size") or 0)
    shared = shared or int(values.get("n_shared_experts") or 0) * expert_mlp
    every = int(values.get("interleave_moe_layer_step") or values.get("decoder_sparse_step") or 1)
    return DecoderShape(
        width=width,
        layers=int(values["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or width // heads),
        mlp=mlp,
        vocabulary=int(values["vocab_size"]),
        tied=bool(values.get("tie_word_embeddings", True)),  # transformers' default
        experts=experts,
        active_experts=int(values.get("num_experts_per_tok") or values.get("moe_topk") or experts),
        expert_mlp=expert_mlp,
        shared_mlp=shared if experts else 0,
        moe_every=every if experts else 1,
    )


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in the config.json of different families."""


def from_numbers(given: ModelNumbers) -> DecoderShape:
    """Read a shape from a [placement.model_numbers] table."""
    return DecoderShape(
        width=given.hidden_size,
        layers=given.num_hidden_layers,
        heads=given.num_attention_heads,
        kv_heads=given.num_key_value_heads,
        head_dim=given.head_dim or given.hidden_size // given.num_attention_heads,
        mlp=given.intermediate_size,
        vocabulary=given.vocab_size,
        tied=given.tie_word_embeddings,
        experts=given.num_experts,
        active_experts=given.num_experts_per_tok,
        expert_mlp=given.moe_intermediate_size,
        shared_mlp=given.shared_expert_intermediate_size,
        moe_every=given.moe_every,
    )


def of_tiny(model: TinyModel, vocabulary: int = 32) -> DecoderShape:
    """Return the shape of the lab's Qwen3 (training/warm_start.py)."""
    return DecoderShape(
        width=model.width,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.heads,
        head_dim=model.width // model.heads,
        mlp=4 * model.width,
        vocabulary=vocabulary,
        tied=True,
        experts=model.experts,
        active_experts=model.active_experts if model.experts else 0,
        expert_mlp=4 * model.width // model.active_experts if model.experts else 0,
    )


_LLAMA_8B = DecoderShape(4096, 32, 32, 8, 128, 14336, 128256)
_SCOUT = DecoderShape(5120, 48, 40, 8, 128, 16384, 202048, False, 16, 1, 8192, 8192)

KNOWN = {
    "Qwen/Qwen2.5-7B": DecoderShape(3584, 28, 28, 4, 128, 18944, 152064),
    "Qwen/Qwen3-0.6B": DecoderShape(1024, 28, 16, 8, 128, 3072, 151936, tied=True),
    "Qwen/Qwen3-1.7B": DecoderShape(2048, 28, 16, 8, 128, 6144, 151936, tied=True),
    "Qwen/Qwen3-4B": DecoderShape(2560, 36, 32, 8, 128, 9728, 151936, tied=True),
    "Qwen/Qwen3-8B": DecoderShape(4096, 36, 32, 8, 128, 12288, 151936),
    "Qwen/Qwen3-30B-A3B": DecoderShape(2048, 48, 32, 4, 128, 6144, 151936, False, 128, 8, 768),
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "meta-llama/Llama-4-Scout-17B-16E": _SCOUT,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _SCOUT,
}
"""Shapes by hub name, from the models' public config.json; Scout without its image encoder and with full attention."""


class Found(NamedTuple):
    """A shape and the source of its numbers.

    Example: Found(shape=DecoderShape(...), source="models/qwen/config.json")
    """

    shape: DecoderShape
    source: str


def shape_of(config: RunConfig) -> Found:
    """Return the shape of a run's model and the source of its numbers.

    Sources in order: the table [placement.model_numbers], the model's config.json, the hub's cache on this machine, the
    table of well-known models. Nothing is downloaded.

    Raises:
        ConfigError: The model is in none of them.
    """
    if config.placement.model_numbers is not None:
        return Found(from_numbers(config.placement.model_numbers), "[placement.model_numbers]")
    if isinstance(config.model, TinyModel):
        return Found(of_tiny(config.model), "[model], the lab's tiny Qwen3")
    assert isinstance(config.model, HuggingFaceModel)
    path = config.model.path
    check_model_files(path, weights=False)
    if is_gguf(path):
        return _decoder(lambda: sizes(path), path)
    file = Path(path) / "config.json"
    cached = None if file.is_file() else _in_hub_cache(path, config.model.revision)
    if file.is_file() or cached is not None:
        return _read(file if cached is None else cached)
    if path in KNOWN:
        return Found(KNOWN[path], f"the table of well-known models ({path})")
    raise ConfigError(
        f"model.path: got {path!r}, whose config.json is not on this machine; allowed: a directory with one, a name in "
        f"the hub's cache, one of {', '.join(KNOWN)}, or its sizes in a table [placement.model_numbers]"
    )


def _in_hub_cache(name: str, revision: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:  # installed with transformers, which the statistics do not need
        return None
    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:  # not a hub name: a missing directory
        return None
    return Path(found) if isinstance(found, str) else None


def _read(file: Path) -> Found:
    return _decoder(lambda: read_model_config(file), str(file))


def _decoder(read: Callable[[], Mapping[str, Any]], source: str) -> Found:
    try:
        shape = from_config_json(read())
        sizes = (shape.width, shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.vocabulary)
        if min(sizes) < 1:
            raise ValueError(f"sizes are {sizes}; each must be at least 1")
        return Found(shape, source)
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(
            f"{source}: not a supported decoder configuration ({type(error).__name__}: {error}); give "
            "its sizes in a table [placement.model_numbers]"
        ) from None
