"""Base class of the learners: the loss of a micro-batch, AdamW over FP32 masters, and moments by name.

single.py trains in one process, fsdp.py in several; they differ in which micro-batches a process runs and where tensors
are stored. Legend: B rows (sequences), T tokens of prompt and completion, n trained tokens of a micro-batch; lower-case
axes belong to a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from scalerl.core.errors import ConfigError
from scalerl.training.config.recipe import Recipe
from scalerl.training.engines.replay import Difference, NotFinite, check_current
from scalerl.training.learner.base import BadGradient, PromptedRollout
from scalerl.training.learner.batch import TrainBatch
from scalerl.training.learner.checks import Packing, check_update, layout_in_use, sampled_tokens, wrap
from scalerl.training.learner.cpu import HeapTrim
from scalerl.training.learner.metrics import StepStats, TokenMeter, TokenSums
from scalerl.training.learner.reference import Reference
from scalerl.training.models.build import SentWeights, sent_weights
from scalerl.training.models.packing import upload
from scalerl.training.models.policy import Policy
from scalerl.training.models.routing import routing_of
from scalerl.training.models.rows import PolicyRows
from scalerl.training.models.sizes import ModelSizes
from scalerl.training.recipe.losses import LOSSES, kl_estimate
from scalerl.training.recipe.mismatch import correction

MicroBatch = tuple[Tensor, int]
"""Rows of a batch, and the number of tokens of the longest of them."""

Computed = TypeVar("Computed")


class Pass(NamedTuple):
    """A forward pass over some rows of a batch."""

    batch: TrainBatch
    part: MicroBatch
    packed: bool
    """Whether the rows are computed as one row."""
    shared: bool
    """Whether each prompt is computed once; the rows are then ordered by prompt."""


PADDING_ALLOWED = 0.1
"""Largest share of padding with which `learner.packing = "auto"` pads. Packing itself costs up to 5%."""

SHARED_BELOW = 0.9
"""With `learner.packing = "auto"` each prompt is computed once if this leaves less than this share of the tokens."""

LONGEST_SHARED = 4096
"""Longest rollout for which "auto" shares prompts on a GPU without the variable-length kernel: others need a copy of
the mask of every completion. On CPU, all masks are parts of one."""

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""State of AdamW for a parameter: both moments and the number of updates."""


class PolicyLearner:
    """A policy in training; subclasses accumulate the gradients of a batch, and read and write weights."""

    def __init__(
        self,
        policy: Policy,
        recipe: Recipe,
        *,
        micro_batch_tokens: int = 16_384,
        gradient_checkpointing: bool = False,
        compile: Literal["auto"] | bool = False,
        packing: Packing = "padded",
        sent: SentWeights = "model",
    ) -> None:
        """Take over a policy, whose weights are trained in place.

        Args:
            policy: The model; if it has adapters, only these are trained.
            recipe: Its loss, optimizer and temperature are used.
            micro_batch_tokens: Tokens of one forward and backward pass, including padding if rows are padded.
            gradient_checkpointing: Whether to recompute activations in the backward pass.
            compile: Whether to compile the decoder layers (`learner.compile`).
            packing: Packing of the sequences of a micro-batch (`learner.packing`).
            sent: What engines get, by which names.

        Raises:
            ConfigError: From `layout_in_use`, `wrap` and `check_update`.
        """
        self.policy, self.updates, self._trim_heap = policy, 0, HeapTrim()
        self._recipe, optimizer = recipe, recipe.optimizer
        self._budget, self._checkpointing = micro_batch_tokens, gradient_checkpointing
        tokens_BT, self._sent_kind = sampled_tokens(policy), sent
        self._packing, fallback = layout_in_use(policy, packing, tokens_BT)
        self._notes = {"packing": fallback} if fallback else {}
        self._names = [name for name, _ in policy.trained()]
        self._parameters = [parameter for _, parameter in policy.trained()]
        self._masters = [_master(p) for p in self._parameters]
        decayed = [p for p in self._masters if p.ndim >= 2]
        plain = [p for p in self._masters if p.ndim < 2]
        kinds = ((decayed, optimizer.weight_decay), (plain, 0.0))
        groups = [{"params": group, "weight_decay": decay} for params, decay in kinds for group in by_mesh(params)]
        self._optimizer = torch.optim.AdamW(groups, lr=0.0, betas=optimizer.betas, eps=optimizer.eps, fused=True)
        self.compiled, fallback = wrap(policy, tokens_BT, recompute=gradient_checkpointing, compile=compile)
        self._notes |= {"compile": fallback} if fallback else {}
        check_update(policy, self._packing != "padded", tokens_BT)
        self._reference = Reference(self._parameters, policy.weights_changed) if recipe.kl_coefficient else None

    # -------------------------------------------------------------------------------------------------------- update

    def step(self, batch: TrainBatch) -> StepStats:
        """Perform one update: micro-batches, gradients accumulated in FP32, clipping and AdamW.

        Raises:
            BadGradient: The loss or the gradient is not finite; the weights are unchanged.
        """
        sums = self._add_gradients(batch, self._reference_logps(batch))
        if not math.isfinite(sums.loss):  # the sum over all ranks, so that all raise together
            self._discard_gradient()
            raise BadGradient(f"the loss is {sums.loss}")
        norm, rate = self._update() if sums.tokens else (0.0, 0.0)
        self._discard_gradient()
        self.updates += 1
        if self.policy.device.type == "cpu":
            self._trim_heap()
        return StepStats(**sums.means(), grad_norm=norm, learning_rate=rate)

    def check(self, version: int, rollouts: Sequence[PromptedRollout]) -> Difference | None:
        """Recompute the log-probabilities of rollouts; every rank must be given the same ones.

        Raises:
            BadGradient: They are not finite.
        """
        if self.policy.sizes.experts:
            routing_of(self.policy).use(None)
        try:
            return check_current(self.policy, version, rollouts, temperature=self._recipe.temperature, bound=math.inf)
        except NotFinite:
            raise BadGradient(f"log-probabilities are not finite after update {self.updates}") from None

    def notes(self) -> dict[str, str]:
        """Return what a user must know about how updates are computed, by key."""
        return dict(self._notes)

    def watch(self) -> None:
        """Do nothing: the learner has no other processes."""

    def close(self) -> None:
        """Do nothing, because this learner has no other processes."""

    def _add_gradients(self, batch: TrainBatch, reference_BT: Tensor | None = None) -> TokenSums:
        """Compute the batch's gradient into the masters and return the sums over the whole batch.

        Args:
            batch: Batch of the update.
            reference_BT: Log-probabilities under the reference, if the loss has a KL term.
        """
        raise NotImplementedError

    def _passes(self, batch: TrainBatch) -> list[Pass]:
        """Return the forward passes of this process over a batch."""
        raise NotImplementedError

    def _results(self, tasks: Sequence[Callable[[], Computed]], batch: TrainBatch) -> Iterator[Computed]:
        """Yield the results of tasks in order."""
        return (task() for task in tasks)

    def _reference_logps(self, batch: TrainBatch) -> Tensor | None:
        """Return the reference's log-probabilities [B, T] of the tokens that this process trains; None without one.

        They come from the same passes as the policy's, so that the KL term is 0 as long as the weights are equal.
        """
        if self._reference is None:
            return None
        reference_BT, passes = torch.zeros(batch.rollouts.tokens_BT.shape), self._passes(batch)
        with self._reference.in_use():
            tasks = [partial(self._logps, micro_batch) for micro_batch in passes]
            for micro_batch, logp_bt in zip(passes, self._results(tasks, batch), strict=True):
                if micro_batch.batch is batch:
                    rows, width = micro_batch.part
                    reference_BT[rows, :width] = logp_bt
        return reference_BT

    @torch.no_grad()
    def _logps(self, micro_batch: Pass) -> Tensor:
        """Return log-probabilities of the trained tokens of a pass, 0 elsewhere, on the host."""
        if self.policy.sizes.experts:
            routing_of(self.policy).use(None)
        inputs, (rows, width) = self._inputs(*micro_batch), micro_batch.part
        logp_n, _ = self.policy(inputs, self._recipe.temperature)
        logp_bt = torch.zeros(len(rows), width)
        return logp_bt.flatten().index_copy(0, inputs.place_n.cpu(), logp_n.float().cpu()).view_as(logp_bt)

    def packs(self, batch: TrainBatch) -> bool:
        """Return whether a batch's micro-batches are packed: as configured; for "auto", if padding costs more."""
        if self._packing != "auto":
            return self._packing in ("packed", "shared")
        if self.policy.varlen:  # one call for any lengths
            return True
        padded = sum(len(rows) * width for rows, width in batch.micro_batches(self._budget))
        tokens = int(batch.rollouts.length_B[batch.trained_B].sum())
        return padded - tokens > PADDING_ALLOWED * padded

    def shares(self, batch: TrainBatch) -> bool:
        """Return whether each prompt of a batch is computed once: as configured; for "auto", if this saves enough."""
        tokens, routed = batch.shared_tokens(), self.policy.sizes.experts > 0  # recorded experts are those of tokens
        if routed or self._packing not in ("auto", "shared"):
            return False
        if self._packing == "shared":
            return True
        length_B = batch.rollouts.length_B[batch.trained_B]
        masks = self.policy.device.type == "cuda" and not self.policy.varlen
        if len(length_B) == 0 or (masks and int(length_B.max()) > LONGEST_SHARED):
            return False
        return tokens < SHARED_BELOW * int(length_B.sum())

    def _sent(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what engines get: full tensors by the names that they expect."""
        return sent_weights(self.policy, self._sent_kind, self._full_weight)

    def _full_weight(self, weight: Tensor) -> Tensor:
        """Return a weight as a whole, in the type of the forward pass."""
        return weight.detach()

    def _inputs(self, batch: TrainBatch, part: MicroBatch, packed: bool, shared: bool) -> PolicyRows:
        """Return the inputs of a pass; the arguments are the fields of `Pass`."""
        rows, width = part
        rollouts, device = batch.rollouts, self.policy.device
        length_b = rollouts.length_B[rows]
        tokens_bt, trained_bt = rollouts.tokens_BT[rows, :width], batch.trained_BT[rows, :width]
        if shared:
            of_prompt = (rollouts.prompt_length_B[rows], rollouts.shared_B[rows])
            inputs = PolicyRows.shared(tokens_bt, trained_bt, length_b, *of_prompt, device)
        elif packed:
            inputs = PolicyRows.packed(tokens_bt, trained_bt, length_b, device)
        else:
            inputs = PolicyRows.padded(tokens_bt, trained_bt, device)
        if rollouts.nucleus is not None:
            place_bt = rows[:, None] * rollouts.tokens_BT.shape[1] + torch.arange(width)
            inputs = inputs.with_nucleus(rollouts.nucleus, place_bt[trained_bt])
        return inputs

    def _micro_batch_loss(
        self,
        batch: TrainBatch,
        part: MicroBatch,
        packed: bool,
        meter: TokenMeter,
        *,
        shared: bool = False,
        reference_BT: Tensor | None = None,
    ) -> Tensor:
        """Return a micro-batch's share of the loss, with its graph, and add its metrics to the meter.

        Args:
            batch: See Pass, also for `part`, `packed` and `shared`.
            part: Rows and width.
            packed: Whether the rows are computed as one row.
            meter: Meter of the update.
            shared: Whether each prompt is computed once.
            reference_BT: Log-probabilities under the reference, if the loss has a KL term.
        """
        (rows, width), device = part, self.policy.device
        inputs, trained_bt = self._inputs(batch, part, packed, shared), batch.trained_BT[rows, :width]
        behavior_bt, weights_bt = batch.rollouts.behavior_BT[rows, :width], batch.weights_BT[rows, :width]
        stale_bt = batch.rollouts.context_BT[rows, :width] < batch.settings.version
        mask_bt, behavior_bt, weights_bt, advantages_b, stale_bt = (
            upload(values, device)
            for values in (trained_bt, behavior_bt, weights_bt, advantages_of(batch, rows, width), stale_bt)
        )
        routed_n = self._use_experts(batch, rows, width, packed)
        bonus = self._recipe.entropy_coefficient
        logp_n, entropy_n = self.policy(inputs, self._recipe.temperature, entropy_gradient=bonus > 0)
        logp_bt = torch.zeros_like(behavior_bt).flatten().index_copy(0, inputs.place_n, logp_n).view_as(behavior_bt)
        surrogate = self._recipe.loss
        loss_bt, capped_bt = LOSSES[surrogate.kind](surrogate, logp_bt, behavior_bt, advantages_b, mask_bt)
        factor_bt, corrected_bt = correction(self._recipe.mismatch, logp_bt.detach() - behavior_bt, mask_bt)
        loss = (loss_bt * factor_bt * weights_bt).sum()
        if bonus:
            loss = loss - bonus * (entropy_n * weights_bt.flatten().index_select(0, inputs.place_n)).sum()
        kl_n = None
        if reference_BT is not None:
            kl_bt = kl_estimate(logp_bt, upload(reference_BT[rows, :width], device), mask_bt)
            loss = loss + self._recipe.kl_coefficient * (kl_bt * weights_bt).sum()
            kl_n = kl_bt.detach().flatten().index_select(0, inputs.place_n)
        behavior_n, capped_n, stale_n, corrected_n = (
            x_bt.flatten().index_select(0, inputs.place_n) for x_bt in (behavior_bt, capped_bt, stale_bt, corrected_bt)
        )
        differs_nL = None if routed_n is None else routing_of(self.policy).differs_NL().index_select(0, routed_n)
        meter.add(
            loss=loss,
            log_ratio_n=logp_n.detach() - behavior_n,
            capped_n=capped_n,
            entropy_n=entropy_n.detach(),
            stale_n=stale_n,
            corrected_n=corrected_n,
            differs_nL=differs_nL,
            kl_n=kl_n,
        )
        return loss

    def _use_experts(self, batch: TrainBatch, rows: Tensor, width: int, packed: bool) -> Tensor | None:
        """Set the engine's experts in the routers; return which tokens of the pass precede a trained token."""
        rollouts = batch.rollouts
        if rollouts.experts_BTLK is None:
            if self.policy.sizes.experts:
                routing_of(self.policy).use(None)
            return None
        inside_bt = torch.ones(len(rows), width, dtype=torch.bool)
        if packed:
            inside_bt = torch.arange(width)[None] < rollouts.length_B[rows][:, None]
        experts_NLK = upload(rollouts.experts_BTLK[rows, :width][inside_bt], self.policy.device)
        routing_of(self.policy).use(experts_NLK, self._recipe.routing_replay == "on")
        before_bt = nn.functional.pad(batch.trained_BT[rows, 1:width], (0, 1))
        return upload(before_bt[inside_bt].nonzero()[:, 0], self.policy.device)

    def _update(self) -> tuple[float, float]:
        """Clip the gradient and update the weights; return the norm before clipping and the learning rate."""
        norm = self._clip()
        if not norm < float("inf"):
            self._discard_gradient()
            raise BadGradient(f"the gradient's norm is {norm}")
        rate = self._recipe.optimizer.rate(self.updates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._write_back()
        return norm, rate

    def _clip(self) -> float:
        """Clip the gradient and return its previous L2 norm."""
        return float(nn.utils.clip_grad_norm_(self._masters, self._recipe.optimizer.max_grad_norm))

    def _discard_gradient(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def _write_back(self) -> None:
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
        self.policy.weights_changed()

    # ---------------------------------------------------------------------------------------------------- checkpoint

    def check_finite(self) -> None:
        """Check that all weights are finite, so that every checkpoint can be resumed.

        Raises:
            BadGradient: A weight is not finite.
        """
        for name, master in zip(self._names, self._masters, strict=True):
            if not torch.isfinite(self._local_part(master)).all():
                raise BadGradient(f"the weight {name} is not finite after update {self.updates}")

    def _local_part(self, master: Tensor) -> Tensor:
        """Return the part of a weight that this process holds."""
        return master

    def tensors(self) -> dict[str, Tensor]:
        """Return master weights and optimizer moments by name."""
        out: dict[str, Tensor] = {}
        for name, master in zip(self._names, self._masters, strict=True):
            out[f"master.{name}"] = master.detach()
            moments: Mapping[str, Any] = self._optimizer.state.get(master, {})
            out |= {f"{kind}.{name}": moments[kind] for kind in MOMENTS if kind in moments}
        return out

    def check_model(self, shapes: Mapping[str, tuple[int, ...]], place: object) -> None:
        """Refuse the weights of another model.

        Args:
            shapes: Shapes by the keys of `tensors`.
            place: Location of the weights, for the message.

        Raises:
            ConfigError: A weight is missing, superfluous or has another shape.
        """
        saved = {key.removeprefix("master."): shape for key, shape in shapes.items() if key.startswith("master.")}
        model = {name: tuple(master.shape) for name, master in zip(self._names, self._masters, strict=True)}
        differing = sorted(name for name in saved.keys() | model.keys() if saved.get(name) != model.get(name))
        if differing:
            name = differing[0]
            in_file, in_model = saved.get(name, "no such weight"), model.get(name, "no such weight")
            raise ConfigError(
                f"{place}: holds the weights of another model: {len(differing)} of them differ, the first is {name} "
                f"({in_file} in the checkpoint, {in_model} in the model); resume with the model that the run started "
                "with"
            )


def advantages_of(batch: TrainBatch, rows: Tensor, width: int) -> Tensor:
    """Return the advantages of some rows, one per rollout or one for each of the first `width` tokens."""
    advantages_b = batch.advantages_B[rows]
    return advantages_b if advantages_b.ndim == 1 else advantages_b[:, :width]


def batch_flops(sizes: ModelSizes, batch: TrainBatch, checkpointing: bool, reference: bool = False) -> float:
    """Return the floating-point operations of one step over a batch; padding is not counted.

    Args:
        sizes: Sizes of the model.
        batch: The batch. Rollouts with trained tokens count; the head runs only on the trained tokens.
        checkpointing: Whether activations are recomputed in the backward pass.
        reference: Whether the loss has a KL term, whose reference makes a forward pass.
    """
    trained_B = batch.trained_B
    counts = batch.rollouts.length_B[trained_B].numpy(), batch.trained_BT[trained_B].sum(dim=1).numpy()
    further = sizes.forward_flops(0, counts[0]) + sizes.head_flops(counts[1]) if reference else 0.0
    return sizes.training_flops(*counts, checkpointing) + further


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return tensors by the mesh of their ranks; an operator on a list of sharded tensors needs a common one."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())


def _master(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype == torch.float32:
        return parameter
    return nn.Parameter(parameter.detach().float().clone())
