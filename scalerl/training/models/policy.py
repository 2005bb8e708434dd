"""A Hugging Face causal LM as a policy: log-probabilities in one forward pass, an FP32 head, and weights by name.

Any transformers architecture with key-value attention works. A check at load time refuses architectures with an
unsupported head or cache.

Legend: B sequences, T tokens, N tokens in one row, n trained tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scalerl.core.errors import ConfigError
from scalerl.training.models.head import HeadRule, draw, on_tensor_cores, token_logprobs
from scalerl.training.models.loading import ATTENTION_KINDS, joined_ends, load_model, save_model
from scalerl.training.models.packing import Varlen
from scalerl.training.models.rows import PolicyRows
from scalerl.training.models.sizes import of_model
from scalerl.training.models.torch_compile import compiled


class Policy(nn.Module):
    """A causal LM whose `forward` returns log-probabilities and entropies; engines call `hidden` and `logits`.

    The head is applied inside `forward`, so that hooks on the module's forward, such as FSDP's, cover it.
    """

    model: Any
    """The transformers model; typed as Any because transformers is untyped."""

    def __init__(self, model: Any, *, fp32_head: bool = True) -> None:
        """Wrap a transformers model in place, in evaluation mode: without dropout and router noise the ratio is 1."""
        super().__init__()
        config = model.config
        if getattr(config, "attn_logit_softcapping", None) and config._attn_implementation == "sdpa":
            model.set_attn_implementation("eager")  # SDPA has no caps, and transformers 5.17 would ignore them
        self.model = model.eval()
        self.config = config
        self.rule = HeadRule(
            fp32=fp32_head,
            softcap=getattr(config, "final_logit_softcapping", None),
            scale=getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0),
        )
        self.sizes = of_model(model)
        self.version = 0
        """Version of the weights, if an engine has loaded them."""
        self.sharded_dtype: torch.dtype | None = None
        """Type of the forward pass if the weights are FP32 shards; None: that of the weights."""
        self.varlen = False
        """Whether packed rows need no masks: all layers use torch's variable-length kernel (checks.py finds out)."""
        self._upcast_head: Tensor | None = None
        if self.device.type == "cpu":
            from scalerl.training.models.cpu.loops import accelerate_norms
            from scalerl.training.models.cpu.onednn import accelerate

            accelerate_norms(model)
            accelerate(model)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the forward pass."""
        return self.sharded_dtype or self.head_weight.dtype

    @property
    def head_weight(self) -> Tensor:
        """[V, D] weights of the LM head, which may be tied."""
        return cast(Tensor, self.model.get_output_embeddings().weight)

    @property
    def head_bias(self) -> Tensor | None:
        """[V] bias of the LM head, if it has one."""
        return cast("Tensor | None", getattr(self.model.get_output_embeddings(), "bias", None))

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache per position of a sequence, over all layers, read from the cache of one token."""
        with torch.no_grad():
            token_BT = torch.zeros(1, 1, dtype=torch.long, device=self.device)
            layers = self.model.base_model(input_ids=token_BT, use_cache=True).past_key_values.layers
        tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)  # Gemma 4 shares those of some layers

    @property
    def positions(self) -> int | None:
        """Most tokens of a sequence, if limited.

        Beyond it, LongRoPE rescales angles by the longest sequence of a batch, and Doge attends to some tokens only.
        YaRN extends the original length to its multiple, and `max_position_embeddings` may still be the original one.
        """
        table = getattr(self.config, "rope_parameters", None) or {}
        ropes = [table] if "rope_type" in table else [rope for rope in table.values() if isinstance(rope, dict)]
        limits = [getattr(self.config, name, None) for name in ("max_position_embeddings", "keep_window_size")]
        for rope in ropes:
            kind, original = rope.get("rope_type"), rope.get("original_max_position_embeddings")
            if kind == "longrope":
                limits.append(original)
            elif kind == "yarn" and original and limits[0]:
                limits[0] = max(limits[0], int(original * (rope.get("factor") or 1.0)))
        return min((limit for limit in limits if limit), default=None)

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head."""
        return len(self.head_weight)

    def forward(
        self,
        rows: PolicyRows,
        temperature: float = 1.0,
        uniforms_n: Tensor | None = None,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (with gradient) and entropies (nats) at the trained tokens, in row order.

        Args:
            rows: Tokens, and which are trained.
            temperature: Sampling temperature.
            uniforms_n: With uniform numbers in [0, 1), float64: draw a token after each of `before_n`, and return the
                tokens and their log-probabilities. A sharded model has its weights only inside this call.
            entropy_gradient: Whether the entropies have a gradient too.
        """
        inputs: dict[str, Any] = {}
        if rows.layout is not None:
            # transformers passes on a 4D mask unchanged instead of building one of N x N; `segments` replaces it
            mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=rows.tokens.device)
            segments = rows.layout.varlen if self.varlen else rows.layout
            inputs = {"position_ids": rows.positions, "segments": segments}
            inputs["attention_mask"] = self._by_layer_kind(mask)
        # index_select sums the gradients of several completions after one prompt
        hidden_nD = self.hidden(rows.tokens, **inputs).flatten(0, 1).index_select(0, rows.before_n)
        if uniforms_n is not None:
            return draw(self.rule.logits(hidden_nD, self.head_weight, self.head_bias), uniforms_n, temperature)
        head = (self.head_weight, self.head_bias, rows.targets_n, temperature, self.rule)
        return token_logprobs(hidden_nD, *head, nucleus=rows.nucleus, entropy_gradient=entropy_gradient)

    def _by_layer_kind(self, mask: Tensor) -> Any:
        """Return a mask in the form that the architecture expects: one, or one for each kind of layer."""
        kinds = set(getattr(self.config, "layer_types", None) or ())
        return dict.fromkeys(ATTENTION_KINDS, mask) if "sliding_attention" in kinds else mask

    def hidden(self, tokens_BT: Tensor, **inputs: Any) -> Tensor:
        """Return the final hidden states [B, T, D]; `inputs` (positions, mask, cache) go to the base model."""
        out = self.model.base_model(input_ids=tokens_BT, use_cache="past_key_values" in inputs, **inputs)
        return cast(Tensor, out.last_hidden_state)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return FP32 logits [N, V] for decoding; an FP32 copy of the head, if needed, is cached between swaps."""
        weight_VD = self.head_weight
        if self.rule.fp32 and weight_VD.dtype != torch.float32 and not on_tensor_cores(hidden_ND, weight_VD):
            if self._upcast_head is None:
                self._upcast_head = weight_VD.detach().float()
            weight_VD = self._upcast_head
        return self.rule.logits(hidden_ND, weight_VD, self.head_bias)

    def weights(self, gather: Callable[[Tensor], Tensor] = Tensor.detach) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by the names of the model's parameters, tied ones once, in a fixed order.

        Args:
            gather: Function that returns a weight as a whole, if the model is sharded.
        """
        return ((name, gather(parameter)) for name, parameter in self.model.named_parameters())

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the trained parameters by name in a fixed order: all, or those of the adapters."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model, which is read again and compared (`save_model`)."""
        save_model(self.model, directory)

    @torch.no_grad()
    def load_weights(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copy weights by name into the model.

        Args:
            version: Version of the weights.
            weights: One tensor for each name that `self.weights()` yields.
        """
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])
        self.version = version
        self.weights_changed()

    def weights_changed(self) -> None:
        """Drop the cached copy of the head, which would otherwise be stale."""
        self._upcast_head = None


def load_policy(
    path: str,
    *,
    revision: str = "main",
    device: str = "cpu",
    dtype: str = "float32",
    fp32_head: bool = True,
) -> Policy:
    """Load a causal LM from a directory or the hub.

    Args:
        path: Directory or name on the hub.
        revision: Branch, tag or commit.
        device: Cpu or cuda.
        dtype: Type of the weights.
        fp32_head: Whether to multiply by the head in FP32.

    Raises:
        ConfigError: The model does not exist, is not a causal LM, or has an unsupported head or cache.
    """
    policy = Policy(load_model(path, revision, dtype).to(device), fp32_head=fp32_head)
    check_head(policy)
    return policy


def check_vocabulary(tokenizer: Any, policy: Policy, path: str) -> None:
    """Refuse a tokenizer with more ids than the model has embeddings.

    Raises:
        ConfigError: The tokenizer's vocabulary is larger than the model's. A larger model is normal (padded rows).
    """
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= policy.vocab_size:
        raise ConfigError(
            f"model.path: the tokenizer in {path} has ids up to {highest}, but the model has {policy.vocab_size} "
            "embeddings; use the tokenizer that the model was trained with, or resize the model's embeddings"
        )


def stop_tokens(policy: Policy, tokenizer: Any) -> tuple[int, ...]:
    """Return all token ids that end a sequence, from the model's generation settings and its tokenizer.

    Raises:
        ConfigError: From `joined_ends`.
    """
    return joined_ends(policy.model.generation_config.eos_token_id, tokenizer, policy.vocab_size)


@torch.no_grad()
def check_head(policy: Policy) -> None:
    """Refuse an architecture whose logits are not head(final hidden state); all log-probabilities rely on this."""
    tokens_BT = torch.arange(4, device=policy.device)[None] % policy.vocab_size
    theirs_NV = policy.model(input_ids=tokens_BT, use_cache=False).logits[0].float()
    ours_NV = policy.logits(policy.hidden(tokens_BT)[0])
    scale = float(theirs_NV.abs().max())
    error = float((theirs_NV - ours_NV).abs().max())
    if not error <= (1e-4 if policy.dtype == torch.float32 else 0.05) * max(scale, 1.0):
        raise ConfigError(
            f"model.path: {type(policy.model).__name__} transforms its logits in an unsupported way "
            f"(difference {error:.2g}); supported: a linear head with optional soft-capping or a constant scale"
        )


def rounding(dtype: torch.dtype) -> float:
    """Return the mean |difference| of log-probabilities, nats, that rounding explains between two ways to compute.

    It holds for tokens that the model samples, with weights of this type. For SmolLM2-135M in bf16 with two kernels of
    attention it is 0.025 to 0.037, but 0.07 for tokens that the model finds absurd; single tokens differ by up to 0.3.
    """
    return 1e-3 if dtype == torch.float32 else 0.1


def layers_of(model: Any) -> list[nn.Module]:
    """Return the decoder layers of a transformers model in order; none if the model does not mark them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the decoder layers of a transformers model in order.

    Raises:
        ConfigError: The model does not mark its layers.
    """
    layers = layers_of(model)
    if not layers:
        raise ConfigError(
            f"model.path: {type(model).__name__} does not mark its decoder layers (GradientCheckpointingLayer of "
            "transformers); allowed: placement.trainer_ranks = 1 with learner.gradient_checkpointing = false"
        )
    return layers


def wrap_layers(model: Any, *, recompute: bool, compiling: bool) -> None:
    """Let the decoder layers recompute their activations in the backward pass, or run compiled, in place.

    transformers would recompute in training mode only, in which dropout, router noise and sampling routers are active.
    A layer is compiled once for all layers of its kind and all lengths. Only rows that need no mask are: padded rows
    and cached decoding, which a learner computes in its checks, would each be compiled again.
    """
    for layer in decoder_layers(model):
        layer.__dict__.pop("forward", None)
        if not (recompute or compiling):
            continue
        forward: Callable[..., Any] = type(layer).forward
        if compiling:
            forward = partial(_in_varlen_rows, compiled(forward), forward)
        if recompute:  # outside: torch.compile does not look into the checkpointed function
            forward = partial(checkpoint, forward, use_reentrant=False)
        layer.forward = partial(forward, layer)


def _in_varlen_rows(fast: Callable[..., Any], plain: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    return (fast if isinstance(options.get("segments"), Varlen) else plain)(*inputs, **options)
