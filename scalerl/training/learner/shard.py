"""Sharding of a policy over the ranks of a process group with FSDP2, block by block.

Every rank builds the model on torch's meta device. It receives one decoder block at a time from rank 0 and keeps its
shard. During this, rank 0 holds the whole model in host memory, in the type of the forward pass; every rank holds its
FP32 shard and one full block on its device. At the end the sharded model is compared with the full one.

Legend: B sequences, T tokens of the longest, N compared tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from scalerl.core.errors import ConfigError
from scalerl.models.policy import Policy, decoder_layers, load_policy


def shard(
    policy: Policy, mesh: DeviceMesh, dtype: torch.dtype, fill: Callable[[nn.Module], None] = lambda module: None
) -> None:
    """Shard a policy in place: one parameter group per decoder block, and one for embedding, final norm and head.

    Gradients are summed over the ranks in FP32 and not divided, because the token weights of a batch sum to one over
    all ranks. With bf16 the blocks compute with bf16 copies of their FP32 shards, and inputs are not cast: the residual
    stream is bf16 as in the generator (see single.py). The head belongs to the root's group; its weight is unsharded
    only inside `Policy.forward`.

    Args:
        policy: Policy with FP32 weights, equal on all ranks.
        mesh: One-dimensional mesh.
        dtype: Type of the forward pass.
        fill: Function called with each block, and at the end with the model, before it is sharded.
    """
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for block in decoder_layers(policy.model):
        fill(block)
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fill(policy.model)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    root = cast(FSDPModule, policy)
    if hasattr(root, "set_reduce_scatter_unused_params"):  # experts without tokens on a rank
        root.set_reduce_scatter_unused_params(True)


def load_sharded(
    path: str,
    mesh: DeviceMesh,
    *,
    revision: str = "main",
    dtype: str = "float32",
    fp32_head: bool = True,
) -> Policy:
    """Load a causal LM over all ranks of a mesh; every rank must call this.

    Each weight is broadcast from rank 0; the death of a rank raises an error.

    Args:
        path: Directory or name on the hub; only rank 0 reads the weights.
        mesh: One-dimensional mesh; the shards are on its device type.
        revision: Branch, tag or commit.
        dtype: Type of the forward pass; the shards are FP32.
        fp32_head: Whether to multiply by the head in FP32.

    Raises:
        ConfigError: From `load_policy`, or sharding changes the log-probabilities.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from scalerl.models.cpu.onednn import accelerate

    source = None
    if mesh.get_rank() == 0:
        source = load_policy(path, revision=revision, dtype=dtype, fp32_head=fp32_head)
    config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    policy = Policy(model, fp32_head=fp32_head)
    if mesh.device_type == "cpu":
        accelerate(model)
    if source is not None:
        model.generation_config = source.model.generation_config
    device = torch.device("cuda", torch.cuda.current_device()) if mesh.device_type == "cuda" else torch.device("cpu")
    shard(policy, mesh, getattr(torch, dtype), _Fill(model, None if source is None else source.model, device))
    _check_sharded(policy, source, device, 1e-3 if dtype == "float32" else 0.05)
    return policy


class _Fill:
    """Allocates parts of a model on the meta device and fills them with rank 0's weights and buffers."""

    def __init__(self, model: nn.Module, source: Any, device: torch.device) -> None:
        self._prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
        self._source, self._device = source, device
        self._made: dict[nn.Parameter, nn.Parameter] = {}  # tied parameters stay tied

    def __call__(self, part: nn.Module) -> None:
        for module in part.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter.is_meta:
                    full_name = self._prefixes[module] + name
                    if parameter not in self._made:
                        self._made[parameter] = nn.Parameter(self._received(parameter, full_name, "get_parameter"))
                    setattr(module, name, self._made[parameter])
            for name, buffer in list(module.named_buffers(recurse=False)):
                if buffer.is_meta:
                    setattr(module, name, self._received(buffer, self._prefixes[module] + name, "get_buffer"))

    def _received(self, like: Tensor, name: str, getter: str) -> Tensor:
        tensor = torch.empty_like(like, device=self._device, requires_grad=False)
        if self._source is not None:
            tensor.copy_(getattr(self._source, getter)(name).detach())
        dist.broadcast(tensor, src=0)
        return tensor


@torch.no_grad()
def _check_sharded(policy: Policy, source: Policy | None, device: torch.device, tolerance: float) -> None:
    """Compare the log-probabilities of a few tokens with those of the full model."""
    tokens_BT = torch.arange(8)[None] % policy.vocab_size
    trained_BT = torch.arange(8)[None] >= 1
    expected_N = torch.empty(7) if source is None else source(tokens_BT, trained_BT)[0].float()
    expected_N = expected_N.to(device)
    dist.broadcast(expected_N, src=0)
    found_N, _ = policy(tokens_BT.to(device), trained_BT.to(device))
    cast(FSDPModule, policy).reshard()  # without a backward pass this is not automatic
    error = (found_N - expected_N).abs().max()
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    if not float(error) <= tolerance * max(1.0, float(expected_N.abs().max())):
        raise ConfigError(
            f"model.path: the log-probabilities of {type(policy.model).__name__} change by {float(error):.2g} when its "
            "weights are sharded over ranks; allowed: placement.trainer_ranks = 1"
        )
