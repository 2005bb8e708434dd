"""A Hugging Face causal LM as a policy: log-probabilities in one forward pass, an FP32 head, and weights by name.

Any transformers architecture with key-value attention works. A check at load time refuses architectures with an
unsupported head or cache.

Legend: B sequences, T tokens, N tokens in one row, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scalerl.core.errors import ConfigError
from scalerl.core.files import as_umask
from scalerl.models.head import HeadRule, token_logprobs
from scalerl.models.loading import ATTENTION_KINDS, check_model, load_model
from scalerl.models.packing import Segments
from scalerl.models.prefix import SharedPrompts, SharedRow
from scalerl.models.sizes import of_model


class Policy(nn.Module):
    """A causal LM whose `forward` returns log-probabilities and entropies; engines call `hidden` and `logits`.

    The head is applied inside `forward`, so that hooks on the module's forward, such as FSDP's, cover it.
    """

    model: Any
    """The transformers model; typed as Any because transformers is untyped."""

    def __init__(self, model: Any, *, fp32_head: bool = True) -> None:
        """Wrap a transformers model in place, in evaluation mode: without dropout and router noise the ratio is 1.

        Args:
            model: A transformers model.
            fp32_head: Whether to multiply by the head in FP32.
        """
        super().__init__()
        config = model.config
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
        self._upcast_head: Tensor | None = None
        if self.device.type == "cpu":
            from scalerl.models.cpu.loops import accelerate_norms
            from scalerl.models.cpu.onednn import accelerate

            accelerate_norms(model)
            accelerate(model)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.head_weight.device

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
        kept = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return sum(states.nbytes for states in kept if states is not None)  # Gemma 4 shares those of some layers

    @property
    def positions(self) -> int | None:
        """Most tokens of a sequence, if limited.

        Beyond it, LongRoPE rescales angles by the longest sequence of a batch, and Doge attends to some tokens only.
        """
        rope = getattr(self.config, "rope_parameters", None) or {}
        limits = [getattr(self.config, name, None) for name in ("max_position_embeddings", "keep_window_size")]
        limits += [rope["original_max_position_embeddings"]] if rope.get("rope_type") == "longrope" else []
        return min((limit for limit in limits if limit), default=None)

    @property
    def experts(self) -> int:
        """Number of experts per layer of a mixture; 0 for a dense model."""
        return self.sizes.experts

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head."""
        return len(self.head_weight)

    def forward(
        self,
        tokens_BT: Tensor,
        trained_BT: Tensor,
        temperature: float = 1.0,
        length_B: Tensor | None = None,
        row: SharedRow | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (with gradient) and entropies (nats, without) at the trained tokens, in row order.

        Args:
            tokens_BT: Prompt and completion, padded at the end; the causal mask hides the padding.
            trained_BT: Tokens whose log-probability is returned; never the first of a row.
            temperature: Sampling temperature.
            length_B: Tokens of each row without padding, on the host; None for padded rows. If given, the rows are
                computed packed, and the model's attention must be that of packing.py (`install`).
            row: Layout that computes each prompt once; None without sharing. The attention is as for `length_B`.
        """
        assert tokens_BT.shape == trained_BT.shape, (tokens_BT.shape, trained_BT.shape)
        if row is not None:
            hidden_ND = self._row_hidden(tokens_BT, trained_BT, row)
        elif length_B is None:
            hidden_ND = self.hidden(tokens_BT)[:, :-1][trained_BT[:, 1:]]
        else:
            hidden_ND = self._packed_hidden(tokens_BT, trained_BT, length_B)
        targets_N = tokens_BT[:, 1:][trained_BT[:, 1:]]
        return token_logprobs(hidden_ND, self.head_weight, self.head_bias, targets_N, temperature, self.rule)

    def _packed_hidden(self, tokens_BT: Tensor, trained_BT: Tensor, length_B: Tensor) -> Tensor:
        """Return the final hidden states [n, D] before each trained token, from one row of all sequences."""
        device, width = tokens_BT.device, tokens_BT.shape[1]
        inside_BT = (torch.arange(width)[None] < length_B[:, None]).to(device)
        before_BT = nn.functional.pad(trained_BT[:, 1:], (0, 1))
        position_1N = torch.arange(width, device=device).expand_as(tokens_BT)[inside_BT][None]
        segments = Segments.of(length_B.tolist(), device)
        return self._segmented_hidden(tokens_BT[inside_BT][None], position_1N, segments)[before_BT[inside_BT]]

    def _row_hidden(self, tokens_BT: Tensor, trained_BT: Tensor, row: SharedRow) -> Tensor:
        """Return the final hidden states [n, D] before each trained token, from one row with each prompt once."""
        position_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        hidden_ND = self._segmented_hidden(row.take(tokens_BT), row.take(position_BT), row.layout)
        # index_select sums the gradients of several completions after one prompt
        return hidden_ND.index_select(0, row.index_BT[:, :-1][trained_BT[:, 1:]])

    def _segmented_hidden(self, tokens_1N: Tensor, position_1N: Tensor, segments: Segments | SharedPrompts) -> Tensor:
        """Return the final hidden states [N, D] of one row of several sequences."""
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens_1N.device)
        hidden_1ND = self.hidden(
            tokens_1N,
            position_ids=position_1N,
            # transformers passes on a 4D mask unchanged instead of building one of N x N; `segments` replaces it
            attention_mask=self._by_layer_kind(mask),
            segments=segments,
        )
        return hidden_1ND[0]

    def _by_layer_kind(self, mask: Tensor) -> Any:
        """Return a mask in the form that the architecture expects: one, or one for each kind of layer."""
        kinds = set(getattr(self.config, "layer_types", None) or ())
        return dict.fromkeys(ATTENTION_KINDS, mask) if "sliding_attention" in kinds else mask

    def hidden(self, tokens_BT: Tensor, **inputs: Any) -> Tensor:
        """Return the final hidden states [B, T, D]; `inputs` (positions, mask, cache) go to the base model."""
        out = self.model.base_model(input_ids=tokens_BT, use_cache="past_key_values" in inputs, **inputs)
        return cast(Tensor, out.last_hidden_state)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return FP32 logits [N, V] for decoding, with an FP32 copy of the head that is cached between swaps."""
        weight_VD = self.head_weight
        if self.rule.fp32 and weight_VD.dtype != torch.float32:
            if self._upcast_head is None:
                self._upcast_head = weight_VD.detach().float()
            weight_VD = self._upcast_head
        return self.rule.logits(hidden_ND, weight_VD, self.head_bias)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights by the names of the model's parameters, tied ones once, in a fixed order."""
        return ((name, parameter.detach()) for name, parameter in self.model.named_parameters())

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the trained parameters by name in a fixed order: all, or those of the adapters."""
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model."""
        self.model.save_pretrained(directory)
        as_umask(directory)

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
    model = load_model(path, revision, dtype)
    check_model(model)
    policy = Policy(model.to(device), fp32_head=fp32_head)
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
        ConfigError: There is none, so every completion would be truncated, or one is not in the vocabulary.
    """
    eos = policy.model.generation_config.eos_token_id
    given = (set(eos if isinstance(eos, list) else [eos]) | {tokenizer.eos_token_id}) - {None}
    ids = tuple(sorted(i for i in given if isinstance(i, int) and 0 <= i < policy.vocab_size))
    if len(ids) < len(given):
        raise ConfigError(
            f"model.path: got eos_token_id {eos} in generation_config.json or config.json; allowed: ids of the model's "
            f"tokens, 0 to {policy.vocab_size - 1}"
        )
    if not ids:
        raise ConfigError(
            "model.path: the model has no end token: neither generation_config.json, config.json nor the tokenizer "
            f"names an eos token among its {policy.vocab_size} tokens; set eos_token in tokenizer_config.json, or "
            "eos_token_id in generation_config.json"
        )
    return ids


@torch.no_grad()
def check_head(policy: Policy) -> None:
    """Refuse an architecture whose logits are not head(final hidden state); all log-probabilities rely on this."""
    tokens_BT = torch.arange(4, device=policy.device)[None] % policy.vocab_size
    theirs_NV = policy.model(input_ids=tokens_BT, use_cache=False).logits[0].float()
    ours_NV = policy.logits(policy.hidden(tokens_BT)[0])
    scale = float(theirs_NV.abs().max())
    error = float((theirs_NV - ours_NV).abs().max())
    if not error <= (1e-4 if policy.head_weight.dtype == torch.float32 else 0.05) * max(scale, 1.0):
        raise ConfigError(
            f"model.path: {type(policy.model).__name__} transforms its logits in an unsupported way "
            f"(difference {error:.2g}); supported: a linear head with optional soft-capping or a constant scale"
        )


def tolerance(policy: Policy) -> float:
    """Return the largest difference of log-probabilities, nats, between two ways to compute the same model."""
    return 1e-3 if policy.head_weight.dtype == torch.float32 else 0.2


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the decoder layers of a transformers model in order.

    Raises:
        ConfigError: The model does not mark its layers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"model.path: {type(model).__name__} does not mark its decoder layers (GradientCheckpointingLayer of "
            "transformers); allowed: placement.trainer_ranks = 1 with learner.gradient_checkpointing = false"
        )
    return layers


def recompute_activations(model: Any) -> None:
    """Let the decoder layers recompute their activations in the backward pass, in place.

    transformers would do so in training mode only, in which dropout, router noise and sampling routers are active.
    """
    for layer in decoder_layers(model):
        layer.forward = partial(checkpoint, type(layer).forward, layer, use_reentrant=False)
