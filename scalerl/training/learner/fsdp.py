"""The learner of several ranks: FSDP2 over torch.distributed; every rank calls the same methods with the same batch.

Each rank holds a shard of the FP32 weights and moments and trains a part of a batch's rollouts. With adapters these are
theirs, and the frozen model is sharded in the type of the forward pass. There is no tensor parallelism: each rank
computes whole blocks for its rollouts, except experts that are on other ranks (experts.py).

At the start every rank builds the model on torch's meta device. It receives one decoder block at a time from rank 0 and
keeps its shard. During this, rank 0 holds the whole model in host memory, in the type of the forward pass; every rank
holds its FP32 shard and one full block on its device. At the end the sharded model is compared with the full one.

Legend: B sequences, T tokens of the longest, N compared tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from scalerl.core.errors import ConfigError, outcome
from scalerl.training.config.recipe import Recipe
from scalerl.training.engines.replay import Difference
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.base import LearnerSpec, PromptedRollout
from scalerl.training.learner.batch import RolloutTensors, TrainBatch
from scalerl.training.learner.checks import mean_difference, reshard, sampled_tokens
from scalerl.training.learner.experts import experts_of, mesh_of, spread
from scalerl.training.learner.metrics import TokenMeter, TokenSums, packed_values, summed_values
from scalerl.training.learner.policy_learner import MOMENTS, Pass, PolicyLearner, by_mesh
from scalerl.training.learner.sharded_checkpoint import read_shards, save_shards, stored_tensors
from scalerl.training.models.loading import save_model
from scalerl.training.models.lora import LoraPolicy
from scalerl.training.models.policy import Policy, decoder_layers, rounding
from scalerl.training.models.rows import PolicyRows
from scalerl.training.models.weights import plain_model

_EMPTY = TrainBatch(
    RolloutTensors.without_rewards(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2])),
    advantages_B=torch.zeros(1),
    trained_BT=torch.tensor([[False, True]]),
    weights_BT=torch.zeros(1, 2),
)
"""One rollout with zero weight, for the passes of a rank that has no rollouts left."""


class ShardedLearner(PolicyLearner):
    """One rank's shard of a policy in training; every rank of the process group has one."""

    def __init__(
        self,
        policy: Policy,
        recipe: Recipe,
        *,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        """Take over a policy that `shard` has sharded.

        Args:
            policy: The model, whose parameters are FP32 shards.
            recipe: See PolicyLearner.
            dtype: Type of the forward pass and of the weights that are sent and exported.
            options: Options of PolicyLearner.
        """
        super().__init__(policy, recipe, **options)
        self._dtype = dtype

    # -------------------------------------------------------------------------------------------------------- update

    def _add_gradients(self, batch: TrainBatch, reference_BT: Tensor | None = None) -> TokenSums:
        """Compute the batch's gradient, summed over all ranks, into the masters of each rank.

        Every rank must be given the same batch, and all get the same sums. Each pass has collectives, which wait for
        the other ranks; the death of a rank raises an error.
        """
        meter = TokenMeter()
        for micro_batch in self._passes(batch):
            if micro_batch.batch is batch:
                loss = self._micro_batch_loss(*micro_batch[:3], meter, reference_BT=reference_BT)
            else:
                loss = self._micro_batch_loss(*micro_batch[:3], TokenMeter())
            loss.backward()  # type: ignore[no-untyped-call]
        return _over_ranks(meter, self.policy.device)

    def _reference_logps(self, batch: TrainBatch) -> Tensor | None:
        """Return the reference's log-probabilities of the tokens that this rank trains; None without one."""
        reference_BT = super()._reference_logps(batch)
        if reference_BT is not None:
            reshard(self.policy)  # the root stays unsharded after a forward pass without a backward pass
        return reference_BT

    def _passes(self, batch: TrainBatch) -> list[Pass]:
        """Return this rank's micro-batches, and passes without weight where another rank has further ones."""
        empty = Pass(_EMPTY, (torch.tensor([0]), 2), packed=self.packs(batch), shared=False)
        return [empty if part is None else empty._replace(batch=batch, part=part) for part in self._plan(batch)]

    def _plan(self, batch: TrainBatch) -> list[tuple[Tensor, int] | None]:
        """Return this rank's micro-batches, followed by None for each further one that another rank has.

        All ranks must run the same number of passes, because every pass has collectives.
        """
        shares = balanced_split(batch.rollouts.length_B, batch.trained_B.nonzero()[:, 0], dist.get_world_size())
        packed = self.packs(batch)
        plans = [list(batch.micro_batches(self._budget, share, packed)) for share in shares]
        plan = plans[dist.get_rank()]
        return [*plan, *[None] * (max(map(len, plans)) - len(plan))]

    def _clip(self) -> float:
        """Clip the gradient and return its previous L2 norm over all ranks."""
        groups = by_mesh(self._masters)
        parts = [nn.utils.get_total_norm([m.grad for m in group if m.grad is not None]) for group in groups]
        norm = math.hypot(*(float(cast(DTensor, part).full_tensor()) for part in parts))
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, self._recipe.optimizer.max_grad_norm, torch.tensor(norm))
        return norm

    def check(self, version: int, rollouts: Sequence[PromptedRollout]) -> Difference | None:
        """Recompute the log-probabilities of rollouts; every rank must be given the same ones."""
        difference = super().check(version, rollouts)
        reshard(self.policy)  # the root stays unsharded after a forward pass without a backward pass
        return difference

    # ------------------------------------------------------------------------------------------------------- weights

    def send(self, version: int, channel: WeightChannel) -> None:
        """Gather the weights one at a time and send them over rank 0's end of the channel.

        All ranks must call this, and they wait for each other at every weight; the death of a rank raises an error.
        """
        weights = self._sent()
        if dist.get_rank() == 0:
            channel.send(version, weights)
        for _ in weights:  # the other ranks, and rank 0 if the channel did not consume all
            pass

    def export(self, directory: Path) -> None:
        """Write the weights as a Hugging Face model on rank 0, whose host memory must hold the whole model."""
        first = dist.get_rank() == 0
        weights = {name: weight.cpu().contiguous() for name, weight in self.policy.weights(self._full_weight) if first}
        if first:
            save_model(plain_model(self.policy.model, weights), directory)
        if isinstance(self.policy, LoraPolicy):
            adapters = {name: weight.cpu() for name, weight in self.policy.adapters(self._full_weight) if first}
            if first:
                self.policy.save_adapter(directory.with_name("adapter"), adapters)
        dist.barrier()

    def _full_weight(self, weight: Tensor) -> Tensor:
        """Gather a weight; every rank must do this for all weights in the same order."""
        return cast(DTensor, weight.detach().to(self._dtype)).full_tensor()

    # ---------------------------------------------------------------------------------------------------- checkpoint

    def save(self, directory: Path) -> None:
        """Write every rank's shard of weights and moments, and force them to disk.

        Raises:
            BadGradient: A weight is not finite; nothing is written.
        """
        self.check_finite()
        save_shards(directory, self.tensors())

    def begin_save(self, directory: Path) -> Future[None]:
        """Save before this returns: the ranks exchange messages while they write, and cannot train meanwhile."""
        self.save(directory)
        return outcome(lambda: None)

    def _local_part(self, master: Tensor) -> Tensor:
        return master.to_local() if isinstance(master, DTensor) else master

    def load(self, directory: Path, updates: int) -> None:
        """Restore the state that one process or any number of ranks saved after `updates` updates.

        Raises:
            ConfigError: The checkpoint belongs to another model.
        """
        stored = stored_tensors(directory)
        self.check_model({key: tuple(entry.size) for key, entry in stored.items()}, directory)
        self._make_moments({kind for kind in MOMENTS if any(key.startswith(f"{kind}.") for key in stored)})
        read_shards(directory, self.tensors())
        self.updates = updates
        self._write_back()

    def _make_moments(self, kinds: set[str]) -> None:
        """Allocate the moments that a checkpoint contains; before the first update there are none."""
        self._optimizer.state.clear()
        for master in self._masters if kinds else ():
            state: dict[str, Tensor] = {kind: torch.zeros_like(master) for kind in kinds - {"step"}}
            # a fused AdamW keeps the step on the device of the parameter
            self._optimizer.state[master] = {**state, "step": torch.zeros((), device=master.device)}


def _over_ranks(meter: TokenMeter, device: torch.device) -> TokenSums:
    """Return the sums over all ranks, added in the order of the ranks."""
    sums = packed_values(asdict(meter.read()), device)
    parts = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, sums)
    return summed_values(parts)


def balanced_split(length_B: Tensor, rows: Tensor, ranks: int) -> list[Tensor]:
    """Return the rows of each rank: longest first, each to the rank with the fewest tokens so far.

    The largest load is at most a third larger than in the best split (Graham 1969). Ties are broken by order and by the
    lower rank, so that every rank computes the same split.

    Args:
        length_B: Number of tokens of every rollout.
        rows: Rollouts to split.
        ranks: Number of ranks; with fewer rollouts than ranks, some get none.
    """
    loads, shares = [0] * ranks, [[] for _ in range(ranks)]  # type: tuple[list[int], list[list[int]]]
    for row in rows[length_B[rows].argsort(stable=True, descending=True)].tolist():
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        loads[rank] += int(length_B[row])
        shares[rank].append(row)
    return [torch.tensor(share, dtype=torch.long) for share in shares]


def shard(
    policy: Policy,
    mesh: DeviceMesh,
    dtype: torch.dtype,
    fill: Callable[[nn.Module], None] = lambda module: None,
    expert_ranks: int = 1,
) -> None:
    """Shard a policy in place: one parameter group per decoder block, and one for embedding, final norm and head.

    With more than one expert rank, the experts of each block are another group, sharded over the ranks that hold them.

    Gradients are summed over the ranks in FP32 and not divided, because the token weights of a batch sum to one over
    all ranks. With bf16 the blocks compute with bf16 copies of their FP32 shards, and inputs are not cast: the residual
    stream is bf16 as in the generator (see single.py). The head belongs to the root's group; its weight is unsharded
    only inside `Policy.forward`.

    Args:
        policy: Policy with FP32 weights, equal on all ranks; frozen ones may have the type of the forward pass.
        mesh: One-dimensional mesh.
        dtype: Type of the forward pass.
        fill: Function called with each block, and at the end with the model, before it is sharded.
        expert_ranks: Ranks over which the experts of every layer are spread.

    Raises:
        ConfigError: The experts cannot be spread.
    """
    experts = experts_of(policy, expert_ranks) if expert_ranks > 1 else []
    grid = mesh_of(mesh, expert_ranks) if experts else mesh
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )

    def over(module: nn.Module, ranks: DeviceMesh) -> None:
        fully_shard(module, mesh=ranks, mp_policy=precision, shard_placement_fn=partial(_axis, ranks.size()))

    for parameter in policy.model.parameters():
        if not parameter.requires_grad:  # frozen: its shards need no more precision than the forward pass
            parameter.data = parameter.data.to(dtype)
    for block in decoder_layers(policy.model):
        fill(block)
        for module in [inner for inner in block.modules() if inner in experts]:  # in the same order on every rank
            spread(module, grid["expert"])
            over(module, grid["data"])
        over(block, mesh)
    fill(policy.model)
    over(policy, mesh)
    policy.sharded_dtype = dtype
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    root = cast(FSDPModule, policy)
    if hasattr(root, "set_reduce_scatter_unused_params"):  # experts without tokens on a rank
        root.set_reduce_scatter_unused_params(True)


def _axis(ranks: int, parameter: nn.Parameter) -> Shard:
    """Return the axis of a parameter to shard: the first, or if that is shorter than the ranks, one they divide.

    FSDP2 always splits the first axis, so that 16 fused experts would lie on 16 of 64 ranks. That of experts which have
    been spread is split already.
    """
    spread = isinstance(parameter, DTensor)
    even = (axis for axis, size in enumerate(parameter.shape) if size % ranks == 0 and axis >= spread)
    return Shard(0 if len(parameter) >= ranks and not spread else next(even, 0))


def load_sharded(spec: LearnerSpec, mesh: DeviceMesh) -> Policy:
    """Load a causal LM over all ranks of a mesh; every rank must call this.

    Each weight is broadcast from rank 0; the death of a rank raises an error.

    Args:
        spec: The learner; only rank 0 reads the weights, and trained shards are FP32 whatever the type of the forward
            pass.
        mesh: One-dimensional mesh; the shards are on its device type.

    Raises:
        ConfigError: From `PolicySpec` or `experts_of`, or sharding changes the log-probabilities.
    """
    from transformers import AutoModelForCausalLM

    from scalerl.training.models.cpu.onednn import accelerate
    from scalerl.training.models.loading import load_config

    source = spec.policy.adapted(spec.policy.load("cpu")) if mesh.get_rank() == 0 else None
    architecture, _ = load_config(spec.policy.path, spec.policy.revision)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(architecture, dtype=torch.float32)
    policy = spec.policy.adapted(Policy(model, fp32_head=spec.policy.fp32_head))
    if mesh.device_type == "cpu":
        accelerate(model)
    if source is not None:
        model.generation_config = source.model.generation_config
        if isinstance(policy, LoraPolicy) and isinstance(source, LoraPolicy):
            policy.adapter_config = source.adapter_config  # which has the path of the model
    device = torch.device("cuda", torch.cuda.current_device()) if mesh.device_type == "cuda" else torch.device("cpu")
    fill = _Fill(model, None if source is None else source.model, device)
    dtype = getattr(torch, spec.policy.dtype)
    shard(policy, mesh, dtype, fill, spec.placement.expert_ranks)
    _check_sharded(policy, source, device)
    return policy


class _Fill:
    """Allocates parts of a model on the meta device and fills them with rank 0's weights and buffers."""

    def __init__(self, model: nn.Module, source: Any, device: torch.device) -> None:
        self._prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
        self._source, self._device = source, device
        self._parameters: dict[nn.Parameter, nn.Parameter] = {}  # tied parameters stay tied

    def __call__(self, part: nn.Module) -> None:
        for module in part.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter.is_meta:
                    full_name = self._prefixes[module] + name
                    if parameter not in self._parameters:
                        received = self._received(parameter, full_name, "get_parameter")
                        self._parameters[parameter] = nn.Parameter(received, requires_grad=parameter.requires_grad)
                    setattr(module, name, self._parameters[parameter])
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
def _check_sharded(policy: Policy, source: Policy | None, device: torch.device) -> None:
    """Compare log-probabilities with those of the full model, at tokens that the sharded one samples."""
    tokens_BT = sampled_tokens(policy)
    trained_BT = (torch.arange(tokens_BT.shape[1]) >= 1).expand_as(tokens_BT)
    found_N, _ = policy(PolicyRows.padded(tokens_BT, trained_BT, device))
    reshard(policy)
    expected_N = torch.empty_like(found_N)
    if source is not None:
        expected_N = source(PolicyRows.padded(tokens_BT, trained_BT, torch.device("cpu")))[0].to(device)
    dist.broadcast(expected_N, src=0)
    error = torch.tensor(mean_difference(found_N, expected_N), device=device)
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    allowed = rounding(policy.dtype)
    if not float(error) <= allowed:
        raise ConfigError(
            f"model.path: the log-probabilities of {type(policy.model).__name__} change by {float(error):.2g} on "
            f"average (allowed {allowed:g}) when its weights are sharded over ranks; allowed: placement.trainer_ranks "
            "= 1"
        )
