"""Expert parallelism: whole experts stay on a rank, and tokens travel to them and back (GShard, arXiv 2006.16668).

Ranks form a mesh `data x expert`. The ranks of a row hold different experts of every layer and exchange tokens; the
ranks of a column hold the same experts, which FSDP2 shards over them. Every rank has its own rollouts. transformers
multiplies the tokens by a rank's experts: grouped on a GPU, in a loop on CPU. Its own exchange is newer than the
versions that scalerl allows.

Legend: N tokens of this rank, K experts per token, S = N K pairs of both, R pairs received, D width, E experts of this
rank, P ranks of a row.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from scalerl.core.errors import ConfigError

if TYPE_CHECKING:
    from scalerl.training.models.policy import Policy


def experts_of(policy: Policy, ranks: int) -> list[nn.Module]:
    """Return the modules of fused experts of a policy, one per mixture layer.

    Raises:
        ConfigError: There are none, transformers cannot multiply by some of them, or the ranks do not divide them.
    """
    name, count = type(policy.model).__name__, policy.sizes.experts
    # as transformers' `use_experts_implementation` marks them
    fused = [module for module in policy.model.modules() if hasattr(module, "is_transposed")]
    sizes = {len(parameter) for module in fused for parameter in module.parameters()}
    if not count:
        problem = f"{name}, a dense model; allowed: 1"
    elif sizes != {count}:
        problem = f"{name}, whose {count} experts per layer are not fused by transformers; allowed: 1"
    elif count % ranks:
        problem = f"{name}, which has {count} experts per layer; allowed: a divisor of {count}"
    else:
        return fused
    raise ConfigError(f"placement.expert_ranks: got {ranks} for {problem}")


def mesh_of(ranks: DeviceMesh, expert_ranks: int) -> DeviceMesh:
    """Return the mesh `data x expert` over all ranks; consecutive ranks, which share a node, exchange tokens."""
    shape = (ranks.size() // expert_ranks, expert_ranks)
    mesh = init_device_mesh(ranks.device_type, shape, mesh_dim_names=("data", "expert"))
    mesh._flatten()  # a norm is then summed over both axes at once, in the same order on every rank
    return mesh


def spread(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Keep this rank's part of a layer's experts, in place, and let its tokens travel.

    Args:
        experts: Module from `experts_of` with all experts.
        mesh: The ranks that exchange tokens.
    """
    for name, weight in list(experts.named_parameters(recurse=False)):
        part = distribute_tensor(weight.detach(), mesh, [Shard(0)], src_data_rank=None)
        setattr(experts, name, nn.Parameter(part, weight.requires_grad))
    experts.num_experts = experts.num_experts // mesh.size()  # type: ignore[operator, assignment]
    experts.forward = partial(_through, experts, experts.forward, mesh.get_group())


def _through(
    experts: Any, products: Any, group: dist.ProcessGroup, hidden_ND: Tensor, chosen_NK: Tensor, weights_NK: Tensor
) -> Tensor:
    """Return the weighted sum of the results of each token's experts, on whichever rank they are."""
    assert hidden_ND.ndim == 2 and chosen_NK.shape == weights_NK.shape, (hidden_ND.shape, chosen_NK.shape)
    order_S = chosen_NK.flatten().argsort(stable=True)  # by expert, and so by rank
    sent_P, received_P, expert_R = routes(chosen_NK, experts.num_experts, group)
    there_RD = all_to_all_single_autograd(hidden_ND[order_S // chosen_NK.shape[1]], received_P, sent_P, group)
    if not len(expert_R):  # a row of zeros that depends on the exchange, so that backward passes meet too
        there_RD, expert_R = there_RD.sum(dim=0, keepdim=True), expert_R.new_zeros(1)
    sharded = dict(experts.named_parameters(recurse=False))
    experts._parameters.update(
        {name: weight.to_local() for name, weight in sharded.items() if isinstance(weight, DTensor)}
    )
    try:
        there_RD = products(there_RD, expert_R[:, None], torch.ones_like(expert_R[:, None], dtype=hidden_ND.dtype))
    finally:
        experts._parameters.update(sharded)
    back_SD = all_to_all_single_autograd(there_RD[: sum(received_P)], sent_P, received_P, group)
    out_SD = torch.empty_like(back_SD).index_copy(0, order_S, back_SD)
    return (out_SD.view(*chosen_NK.shape, -1) * weights_NK[..., None]).sum(dim=1).to(hidden_ND.dtype)


def routes(chosen_NK: Tensor, experts: int, group: dist.ProcessGroup) -> tuple[list[int], list[int], Tensor]:
    """Return the pairs sent to each rank, those received from each, and the expert of each received pair, from 0.

    A sender sorts its pairs by expert. The numbers are read on the host, which waits for the device once per layer.
    """
    count = experts * group.size()
    sent_PE = torch.zeros(count, dtype=torch.long, device=chosen_NK.device)
    sent_PE = sent_PE.index_add_(0, chosen_NK.flatten(), torch.ones_like(chosen_NK.flatten())).view(-1, experts)
    received_PE = torch.empty_like(sent_PE)
    dist.all_to_all_single(received_PE, sent_PE, group=group)
    sent_P, received_P = torch.stack((sent_PE, received_PE)).sum(dim=2).tolist()
    expert_PE = torch.arange(experts, device=chosen_NK.device).expand_as(received_PE)
    return sent_P, received_P, expert_PE.flatten().repeat_interleave(received_PE.flatten(), output_size=sum(received_P))
