"""Checks of a policy that a learner takes over: packed rows and training passes give the right log-probabilities.

All compare means over tokens that the model samples itself. In bf16 two kernels differ at single tokens, and at tokens
that the model finds absurd, by more than many mistakes do.

Legend: B sequences, T tokens of each, N compared tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor

from scalerl.core.errors import ConfigError
from scalerl.training.models.loading import ALLOWED_WEIGHTS
from scalerl.training.models.packing import can_pack, install, observed_layers
from scalerl.training.models.policy import Policy, layers_of, rounding, wrap_layers
from scalerl.training.models.rows import PolicyRows

Packing = Literal["auto", "padded", "packed", "shared"]


CHECK_SHAPE = (3, 12)
"""Sequences and tokens that the checks sample: few, because every token is a forward pass."""

PROMPT = 4
"""First tokens that the first two sequences have in common."""


@torch.no_grad()
def sampled_tokens(policy: Policy) -> Tensor:
    """Sample a few sequences without a cache, from the start token if the model has one.

    Args:
        policy: The model; if it is sharded, all ranks must call this, and get the tokens of rank 0.

    Returns:
        [B, T] on CPU.
    """
    rows, tokens = CHECK_SHAPE
    uniforms_BT = torch.rand(rows, tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    uniforms_BT[1, :PROMPT] = uniforms_BT[0, :PROMPT]
    first = policy.config.bos_token_id
    start = first if isinstance(first, int) and 0 <= first < policy.vocab_size else 1 % policy.vocab_size
    tokens_BT = torch.full((rows, 1), start)
    for uniforms_B in uniforms_BT[:, 1:].T:
        drawn_B, _ = policy(PolicyRows.ends(tokens_BT, policy.device), uniforms_n=uniforms_B.to(policy.device))
        if is_sharded(policy):
            dist.broadcast(drawn_B, src=0)
        tokens_BT = torch.cat([tokens_BT, drawn_B.cpu()[:, None]], dim=1)
    tokens_BT[1, :PROMPT] = tokens_BT[0, :PROMPT]  # equal up to rounding
    reshard(policy)
    return tokens_BT


def mean_difference(found_N: Tensor, expected_N: Tensor) -> float:
    """Return the mean |difference| of two sets of log-probabilities, nats; NaN if one is."""
    return float((found_N.detach() - expected_N).abs().double().mean())


def check_update(policy: Policy, packed: bool, tokens_BT: Tensor) -> None:
    """Refuse a model whose training pass fails, or computes other log-probabilities than its evaluation.

    Args:
        policy: The model; if it is sharded, all ranks must call this.
        packed: Whether to pass packed rows too, whose attention is another kernel.
        tokens_BT: From `sampled_tokens`.

    Raises:
        ConfigError: For example if dropout or router noise is active in updates only.
    """
    trained_BT, length_B = (
        torch.ones(tokens_BT.shape, dtype=torch.bool),
        torch.full((len(tokens_BT),), CHECK_SHAPE[1]),
    )
    trained_BT[:, 0] = False
    plain, name = PolicyRows.padded(tokens_BT, trained_BT, policy.device), type(policy.model).__name__
    with torch.no_grad():
        expected_N, _ = policy(plain)
    reshard(policy)
    for rows in (plain, *([PolicyRows.packed(tokens_BT, trained_BT, length_B, policy.device)] if packed else ())):
        try:
            found_N, _ = policy(rows)
            found_N.sum().backward()
        except RuntimeError as error:  # raised by the code of the architecture
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"model.path: an update of {name} fails ({reason}); {ALLOWED_WEIGHTS}") from error
        policy.zero_grad(set_to_none=True)
        mean, allowed = mean_difference(found_N, expected_N), rounding(policy.dtype)
        if not mean <= allowed:
            raise ConfigError(
                f"model.path: {name} computes other log-probabilities in an update than in evaluation (mean difference "
                f"{mean:.2g}, allowed {allowed:g}), for example because of dropout or router noise; {ALLOWED_WEIGHTS}"
            )


def wrap(policy: Policy, tokens_BT: Tensor, *, recompute: bool, compile: Literal["auto"] | bool) -> tuple[bool, str]:
    """Let the decoder layers recompute activations or run compiled.

    Args:
        policy: The model, after `layout_in_use`; if it is sharded, all ranks must call this.
        tokens_BT: From `sampled_tokens`.
        recompute: Whether to recompute activations in the backward pass.
        compile: See `learner.compile`.

    Returns:
        Whether they are compiled, and why not though `auto` might; empty otherwise.

    Raises:
        ConfigError: Compiling is requested, but its conditions are not met, or it fails.
    """
    reason = fallback = ""
    if not layers_of(policy.model):
        reason = f"{type(policy.model).__name__} does not mark its decoder layers"
    elif not policy.varlen:
        reason = "packed rows do not use torch's variable-length kernel (bf16 on a GPU since Ampere)"
    elif policy.sizes.experts:
        reason = "the model is a mixture of experts"
    if compile and not reason:
        reason = _compile(policy, tokens_BT[:2], recompute)
        if not reason:
            return True, ""
        fallback = f"learner.compile: layers are not compiled, which costs time, because {reason}"
    if compile is True:
        raise ConfigError(f"learner.compile: got true, but {reason}; allowed: false, auto")
    if recompute:
        wrap_layers(policy.model, recompute=True, compiling=False)
    return False, fallback


def _compile(policy: Policy, tokens_BT: Tensor, recompute: bool) -> str:
    """Compile the decoder layers; return "", or the reason why torch cannot, with the layers as before."""
    from torch._dynamo.utils import counters

    # lengths that differ from each other and from the sum: torch.compile assumes that equal sizes stay equal
    length_B, at_T = torch.tensor([9, 5]), torch.arange(tokens_BT.shape[1])
    trained_BT = (at_T >= 1) & (at_T < length_B[:, None])
    breaks = counters["graph_break"].total()
    try:
        wrap_layers(policy.model, recompute=recompute, compiling=True)
        policy.rule = replace(policy.rule, compiled=True)
        policy(PolicyRows.packed(tokens_BT, trained_BT, length_B, policy.device))[0].square().sum().backward()
    except (RuntimeError, OSError) as error:  # raised by torch's compiler, Triton or the C compiler that it calls
        cause = getattr(error, "inner_exception", error)
        reason = f"torch.compile fails ({(str(cause).strip() or type(cause).__name__).splitlines()[0]})"
    else:
        broken = counters["graph_break"].total() > breaks
        reason = f"torch.compile cannot trace a layer of {type(policy.model).__name__} as a whole" if broken else ""
    finally:
        policy.zero_grad(set_to_none=True)
    if reason:
        torch._dynamo.reset()  # a later learner of this process finds the same
        wrap_layers(policy.model, recompute=False, compiling=False)
        policy.rule = replace(policy.rule, compiled=False)
    return reason


def is_sharded(policy: Policy) -> bool:
    """Return whether the weights of a policy are spread over the ranks of a process group."""
    return hasattr(policy, "reshard")


def reshard(policy: Policy) -> None:
    """Free the gathered weights of a sharded policy, which otherwise stay after a forward pass without a backward."""
    if is_sharded(policy):
        cast(Any, policy).reshard()


def layout_in_use(policy: Policy, packing: Packing, tokens_BT: Tensor) -> tuple[Packing, str]:
    """Return the layout of micro-batches, and why rows are padded though `auto` may pack; prepare the model for it.

    Args:
        policy: The model; if it is sharded, all ranks must call this.
        packing: The configured packing.
        tokens_BT: From `sampled_tokens`.

    Returns:
        The configured packing or "padded", and the reason for a fallback; empty without one.

    Raises:
        ConfigError: Packing is requested, but the model's attention cannot be packed, or packing changes its
            log-probabilities.
    """
    if packing == "padded":
        return packing, ""
    name = type(policy.model).__name__
    if not can_pack(policy.model):
        kind = policy.config._attn_implementation
        why = "its scores are capped or have sinks" if policy.model._supports_attention_backend else "it has its own"
        reason = f"{name} uses {kind!r} attention, because {why}"
    else:
        try:
            difference, limit = packing_difference(policy, tokens_BT), rounding(policy.dtype)
        except RuntimeError as error:  # raised by the kernel, for example on a GPU that it does not know
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"learner.packing: attention of packed rows fails ({reason}); allowed: padded") from error
        if difference <= limit:
            return packing, ""
        reason = f"log-probabilities of {name} differ by {difference:.2g} on average when packed (allowed {limit:g})"
        if difference == float("inf"):
            reason = f"the layers of {name} apply a sliding window or scores of their own only through the mask"
    if packing == "auto":
        return "padded", f"learner.packing: rows are padded, which costs time, because {reason}"
    raise ConfigError(f"learner.packing: got {packing!r}, but {reason}; allowed: padded, auto")


@torch.no_grad()
def packing_difference(policy: Policy, tokens_BT: Tensor) -> float:
    """Install packed attention; return the mean difference to padded log-probabilities, nats.

    Rows with and without shared prompts are compared, and the larger mean counts. It is infinite if a layer does not
    pass on the sliding window that the configuration gives it.

    Args:
        policy: The model; if it is sharded, all ranks must call this.
        tokens_BT: From `sampled_tokens`.
    """
    install(policy.model)
    length_B, prompt_length_B, prompt_B = torch.tensor([12, 10, 7]), torch.tensor([4, 4, 1]), torch.tensor([0, 0, 1])
    at_T = torch.arange(tokens_BT.shape[1])
    inputs = (tokens_BT, (at_T >= 1) & (at_T < length_B[:, None]))
    padded_N, _ = policy(PolicyRows.padded(*inputs, policy.device))
    with observed_layers() as layers:
        packed_N, _ = policy(PolicyRows.packed(*inputs, length_B, policy.device))
        shared_N, _ = policy(PolicyRows.shared(*inputs, length_B, prompt_length_B, prompt_B, policy.device))
    reshard(policy)
    policy.varlen = all(varlen for _, varlen in layers)
    if [window for window, _ in layers] != 2 * [attention.window for attention in policy.sizes.attention]:
        return float("inf")
    return max(mean_difference(logp_N, padded_N) for logp_N in (packed_N, shared_N))
