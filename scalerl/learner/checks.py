"""Checks of a policy that a learner takes over: packed rows and training passes give the right log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import torch

from scalerl.core.errors import ConfigError
from scalerl.models.loading import ALLOWED
from scalerl.models.packing import can_pack, install, observed_layers
from scalerl.models.policy import Policy, layers_of, tolerance, wrap_layers
from scalerl.models.rows import Rows

Packing = Literal["auto", "padded", "packed", "shared"]


def check_update(policy: Policy, packed: bool) -> None:
    """Refuse a model whose training pass fails, or computes other log-probabilities than its evaluation.

    Args:
        policy: The model; if it is sharded, all ranks must call this.
        packed: Whether to pass packed rows too, whose attention is another kernel.

    Raises:
        ConfigError: For example if dropout or router noise is active in updates only.
    """
    tokens_BT = torch.arange(8)[None] * 7 % policy.vocab_size
    trained_BT, length_B = torch.arange(8)[None] >= 1, torch.tensor([8])
    plain, name = Rows.padded(tokens_BT, trained_BT, policy.device), type(policy.model).__name__
    with torch.no_grad():
        expected_N, _ = policy(plain)
    reshard(policy)
    for rows in (plain, *([Rows.packed(tokens_BT, trained_BT, length_B, policy.device)] if packed else ())):
        try:
            found_N, _ = policy(rows)
            found_N.sum().backward()
        except RuntimeError as error:  # raised by the code of the architecture
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"model.path: an update of {name} fails ({reason}); {ALLOWED}") from error
        policy.zero_grad(set_to_none=True)
        worst = float((found_N.detach() - expected_N).abs().max())
        if not worst <= tolerance(policy):
            raise ConfigError(
                f"model.path: {name} computes other log-probabilities in an update than in evaluation (difference "
                f"{worst:.2g}, allowed {tolerance(policy):g}), for example because of dropout or router noise; "
                f"{ALLOWED}"
            )


def wrap(policy: Policy, *, recompute: bool, compile: Literal["auto"] | bool) -> bool:
    """Let the decoder layers recompute activations or run compiled; return whether they are compiled.

    Args:
        policy: The model, after `use_packing`; if it is sharded, all ranks must call this.
        recompute: Whether to recompute activations in the backward pass.
        compile: See `learner.compile`.

    Raises:
        ConfigError: Compiling is requested, but its conditions are not met, or it fails.
    """
    reason = ""
    if not layers_of(policy.model):
        reason = f"{type(policy.model).__name__} does not mark its decoder layers"
    elif not policy.varlen:
        reason = "packed rows do not use torch's variable-length kernel (bf16 on a GPU since Ampere)"
    elif policy.sizes.experts:
        reason = "the model is a mixture of experts"
    if compile and not reason:
        reason = _compile(policy, recompute)
        if not reason:
            return True
    if compile is True:
        raise ConfigError(f"learner.compile: got true, but {reason}; allowed: false, auto")
    if recompute:
        wrap_layers(policy.model, recompute=True, compiling=False)
    return False


def _compile(policy: Policy, recompute: bool) -> str:
    """Compile the decoder layers; return "", or the reason why torch cannot, with the layers as before."""
    from torch._dynamo.utils import counters

    # lengths that differ from each other and from the sum: torch.compile assumes that equal sizes stay equal
    length_B, tokens_BT = torch.tensor([9, 5]), torch.arange(18).view(2, 9) * 7 % policy.vocab_size
    trained_BT = (torch.arange(9) >= 1) & (torch.arange(9) < length_B[:, None])
    breaks = counters["graph_break"].total()
    try:
        wrap_layers(policy.model, recompute=recompute, compiling=True)
        policy.rule = replace(policy.rule, compiled=True)
        policy(Rows.packed(tokens_BT, trained_BT, length_B, policy.device))[0].square().sum().backward()
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


def reshard(policy: Policy) -> None:
    """Free the gathered weights of a sharded policy, which otherwise stay after a forward pass without a backward."""
    if hasattr(policy, "reshard"):
        cast(Any, policy).reshard()


def use_packing(policy: Policy, packing: Packing) -> bool:
    """Return whether micro-batches may be packed, and prepare the model for it.

    Args:
        policy: The model; if it is sharded, all ranks must call this.
        packing: The configured packing.

    Raises:
        ConfigError: Packing is requested, but the model's attention cannot be packed, or packing changes its
            log-probabilities.
    """
    if packing == "padded":
        return False
    name = type(policy.model).__name__
    if not can_pack(policy.model):
        kind = policy.config._attn_implementation
        why = "its scores are capped or have sinks" if policy.model._supports_attention_backend else "it has its own"
        reason = f"{name} uses {kind!r} attention, because {why}"
    else:
        try:
            difference, limit = packing_difference(policy), tolerance(policy)
        except RuntimeError as error:  # raised by the kernel, for example on a GPU that it does not know
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(f"learner.packing: attention of packed rows fails ({reason}); allowed: padded") from error
        if difference <= limit:
            return True
        reason = f"the log-probabilities of {name} differ by {difference:.2g} when packed (allowed {limit:g})"
        if difference == float("inf"):
            reason = f"the layers of {name} apply a sliding window or scores of their own only through the mask"
    if packing == "auto":
        return False
    raise ConfigError(f"learner.packing: got {packing!r}, but {reason}; allowed: padded, auto")


@torch.no_grad()
def packing_difference(policy: Policy) -> float:
    """Install packed attention; return the largest difference to a few padded log-probabilities, nats.

    Rows with and without shared prompts are compared. The difference is infinite if a layer does not pass on the
    sliding window that the configuration gives it.
    """
    install(policy.model)
    length_B, prompt_length_B, prompt_B = torch.tensor([9, 8, 3]), torch.tensor([3, 3, 1]), torch.tensor([0, 0, 1])
    tokens_BT = torch.arange(27).view(3, 9) * 7 % policy.vocab_size
    tokens_BT[1, :3] = tokens_BT[0, :3]
    trained_BT = (torch.arange(9) >= 1) & (torch.arange(9) < length_B[:, None])
    inputs = (tokens_BT, trained_BT)
    padded_N, _ = policy(Rows.padded(*inputs, policy.device))
    with observed_layers() as seen:
        packed_N, _ = policy(Rows.packed(*inputs, length_B, policy.device))
        shared_N, _ = policy(Rows.shared(*inputs, length_B, prompt_length_B, prompt_B, policy.device))
    reshard(policy)
    policy.varlen = all(varlen for _, varlen in seen)
    known = [window for window, _ in seen] == 2 * [attention.window for attention in policy.sizes.attention]
    return max(float((padded_N - found_N).abs().max()) for found_N in (packed_N, shared_N)) if known else float("inf")
