"""Rehearses an update of the configured learner without GPUs, weights or other ranks, and measures its peak memory.

A child process builds the learner with torch's fake tensors, which have shapes but no data, and with a fake process
group, in which every collective returns at once. torch's own trackers of memory count the living bytes.
The tensors are CPU tensors, because torch computes no gradients of fake CUDA tensors without a GPU. Its CPU attention
has the memory of a flash kernel, and code for CPUs only is replaced.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalerl.core.errors import ConfigError, raising
from scalerl.core.limits import REHEARSAL_S
from scalerl.core.remote import End, LocalRemote
from scalerl.training.config.base import replace
from scalerl.training.config.run import RunConfig
from scalerl.training.learner.batch import RolloutTensors, TrainBatch
from scalerl.training.models.sizes import SizedModel
from scalerl.training.placement.sizes import RunSizes

SENT = {
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "allreduce_": "all-reduce",
    "all_to_all_single": "all-to-all",
}
"""Collectives that move weights, gradients and the tokens of experts."""

PARTS = {
    "parameters": ("Sharded Param", "Parameter", "Buffer", "Other"),
    "gradients": ("Sharded Grad", "Unsharded Grad", "Gradient", "Reduce Scatter"),
    "optimizer": ("OptState", "Optstate"),
    "gathered": ("Unsharded Param", "All Gather"),
    "activations": ("Activation", "Inputs"),
    "temporary": ("Temp",),
}
"""What the kinds of memory of torch's trackers belong to; `Other` are masters of BF16 weights."""


class Rehearsal(NamedTuple):
    """Peak memory of one trainer rank during an update, and the bytes that its collectives move.

    Example (8B on 16 ranks, shortened): Rehearsal(parts={"parameters": 2.0e9, "gradients": 2.0e9, ...},
                                                   sent={"all-gather": 6.4e10, ...}, seconds=95.0)
    """

    parts: dict[str, int]
    """Bytes at the moment of the peak: parameters, gradients, optimizer, gathered, activations, temporary."""
    sent: dict[str, int]
    """Bytes of whole tensors by collective, in an update of two micro-batches."""
    seconds: float

    @property
    def total(self) -> int:
        """Peak memory, bytes."""
        return sum(self.parts.values())


def rehearse(config: RunConfig, run: RunSizes) -> Rehearsal:
    """Rehearse an update of a run with this configuration in a child process.

    Raises:
        ConfigError: The model cannot be built or trained.
        ProcessDied: The process failed or did not finish in time.
    """
    remote = LocalRemote(partial(_run, config, run), "the rehearsal (process {})")
    try:
        result: Rehearsal = remote.receive(REHEARSAL_S)
        return result
    finally:
        remote.end()


def _run(config: RunConfig, run: RunSizes, end: End) -> None:
    start, ranks = time.perf_counter(), run.placement.trainer_ranks
    _replace_cpu_code()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    with fakes, Answers(fakes) as answers:
        learner = _learner(config, run, mesh, answers)
        answers.number = 1.0
        learner.step(full_batch(run, learner.policy.vocab_size, 1))  # creates the state of the optimizer
        answers.sent.clear()
        with _memory(learner, alone=ranks == 1) as memory:
            learner.step(full_batch(run, learner.policy.vocab_size, 2))
    (peak,) = (kinds for device, kinds in memory.get_tracker_snapshot("peak").items() if device.type == "cpu")
    bytes_of = {getattr(kind, "value", kind): size for kind, size in peak.items()}
    parts = {part: sum(bytes_of.get(kind, 0) for kind in kinds) for part, kinds in PARTS.items()}
    end.answer("done", Rehearsal(parts, dict(answers.sent), time.perf_counter() - start))


class OneProcess(MemTracker):  # type: ignore[no-untyped-call]
    """The tracker of a learner without FSDP, whose masters' gradients it counts as gradients."""

    def _track_module_params_and_buffers(self, module: Any, install_grad_hooks: bool = True) -> Any:
        return super()._track_module_params_and_buffers(module, False)  # the weights below adapters take no hooks

    def gradients(self, masters: Sequence[Tensor]) -> None:
        """Count what is there of the gradients of masters."""
        for master in masters:
            if master.grad is not None:
                self._update_and_maybe_create_winfos(master.grad, _MemRefType.GRAD, update_existing=True)


def _memory(learner: Any, *, alone: bool) -> MemTracker:
    """Return torch's tracker of the memory of a learner, whose statistics it resets before each micro-batch."""
    memory: Any = OneProcess() if alone else FSDPMemTracker(learner.policy, learner._optimizer)
    memory.track_external(learner.policy, learner._optimizer, *learner._masters)
    loss_of = learner._micro_batch_loss

    def loss(*arguments: Any, **options: Any) -> Any:
        memory.reset_mod_stats()
        if alone:
            memory.gradients(learner._masters)
        return loss_of(*arguments, **options)

    learner._micro_batch_loss = loss
    return cast(MemTracker, memory)


def _replace_cpu_code() -> None:
    """Compute as on a GPU, without what fake tensors and groups cannot do; the process serves no other purpose."""
    from scalerl.training.learner import experts
    from scalerl.training.models import head
    from scalerl.training.models.cpu import loops, onednn

    def gather(parts: list[Any], part: Any, group: Any = None) -> None:
        parts[:] = [part] * len(parts)

    def even(chosen: Tensor, own: int, group: Any) -> Any:  # as many tokens to each rank
        pairs, ranks = chosen.numel(), group.size()
        each = [pairs // ranks] * (ranks - 1) + [pairs - pairs // ranks * (ranks - 1)]
        return each, each, torch.zeros(pairs, dtype=torch.long)

    def convert(module: Any, change: Any, recurse: bool = True) -> Any:  # of adapters; torch's swaps tensors in place
        for inner in module.modules():
            for name, parameter in inner.named_parameters(recurse=False):
                setattr(inner, name, torch.nn.Parameter(change(parameter.detach()), parameter.requires_grad))
        return module

    replaced: list[tuple[Any, str, Any]] = [
        (dist, "all_gather_object", gather),
        (torch.nn.Module, "_apply", convert),
        (head, "on_tensor_cores", lambda hidden, weight: hidden.dtype == weight.dtype == torch.bfloat16),
        (head, "wide_product", lambda left, right: torch.empty(left.shape[0], right.shape[1])),
        (loops, "accelerate_norms", lambda model: None),
        (onednn, "accelerate", lambda model: None),
        (onednn, "linear", torch.nn.functional.linear),
        (experts, "routes", even),
    ]
    for owner, name, own in replaced:
        setattr(owner, name, own)


def full_batch(run: RunSizes, vocabulary: int, micro_batches: int) -> TrainBatch:
    """Return a batch from which every rank gets `micro_batches` micro-batches of the widest size."""
    tokens = run.widest
    rows = -(-tokens // run.row_tokens)  # of a micro-batch
    shape = (run.placement.trainer_ranks * micro_batches * rows, tokens // rows)
    trained_BT = torch.ones(shape, dtype=torch.bool)
    trained_BT[:, 0] = False
    tokens_BT = torch.arange(shape[1]).remainder(vocabulary).expand(shape)
    rollouts = RolloutTensors.without_rewards(tokens_BT, torch.full(shape[:1], shape[1]))
    return TrainBatch(rollouts, torch.ones(shape[0]), trained_BT, torch.ones(shape))


# -------------------------------------------------------------------------------------------------------- the learner


def _learner(config: RunConfig, run: RunSizes, mesh: Any, answers: Answers) -> Any:
    """Build the learner of a rank as ranks.py does, with fake weights."""
    from transformers import AutoModelForCausalLM

    from scalerl.training.learner.base import LearnerSpec
    from scalerl.training.learner.fsdp import shard
    from scalerl.training.learner.ranks import sharded_learner, single_learner
    from scalerl.training.models.lora import LoraPolicy
    from scalerl.training.models.policy import Policy
    from scalerl.training.placement.choices import policy_spec

    dtype = config.hardware.dtype
    config = replace(config, hardware=replace(config.hardware, trainer_helpers=0))
    # fake tensors cannot be compiled; compiled layers keep less
    config = replace(config, learner=replace(config.learner, compile=False))
    alone = config.placement.trainer_ranks == 1
    weights = getattr(torch, dtype) if alone else torch.float32
    model = AutoModelForCausalLM.from_config(architecture(run.model), dtype=weights, attn_implementation="sdpa")
    policy = Policy(model, fp32_head=config.recipe.fp32_head)
    answers.built = True
    if config.lora:
        policy = LoraPolicy(policy, config.lora, 0)
    if not alone:
        shard(policy, mesh, getattr(torch, dtype), expert_ranks=config.placement.expert_ranks)
    model = policy_spec(config, run.model.source)
    settings = replace(config.learner, micro_batch_tokens=run.micro_batch_tokens, gradient_checkpointing=run.recomputed)
    spec = LearnerSpec(model, config.recipe, settings, config.hardware, config.placement)
    return single_learner(spec, policy) if alone else sharded_learner(spec, policy)


def architecture(sized: SizedModel) -> Any:
    """Return a transformers configuration: from the model's config.json, or a Qwen3 or Llama of the same sizes.

    Raises:
        ConfigError: The learner cannot train this architecture, or the sizes of a mixture are known only in total.
    """
    from transformers import AutoConfig, LlamaConfig, Qwen3Config

    from scalerl.training.models.loading import ALLOWED_WEIGHTS, check_config

    sizes, file = sized.sizes, Path(sized.source)
    if file.name == "config.json":
        with raising(
            ConfigError, lambda error: f"model.path: {file} is of no known architecture ({error}); {ALLOWED_WEIGHTS}"
        ):
            config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
        check_config(config)
        return config
    if sizes.experts or sizes.expanded_params:
        raise ConfigError(
            f"--rehearse: needs the config.json of this model, not only sizes from {sized.source}; set model.path to a "
            "directory with one"
        )
    kind = Qwen3Config if "Qwen3" in sized.source else LlamaConfig
    return kind(
        vocab_size=int(sizes.head_params) // sizes.width,
        hidden_size=sizes.width,
        intermediate_size=sizes.mlp,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=int(sizes.attention[0].width) // sizes.heads,
        tie_word_embeddings=sizes.tied,
    )


# ------------------------------------------------------------------------------------------------- what has no values


class Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers what fake tensors cannot, and counts the bytes of collectives.

    Tensors of a batch are real and stay real, because the shapes of an update depend on them. A value that the learner
    reads from a fake tensor is `number`, or true.
    """

    def __init__(self, fakes: FakeTensorMode) -> None:
        """Answer inside this mode, in which `fakes` is active."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: Counter[str] = Counter()
        self.built = False
        """Whether the model exists; before, all tensors are fake."""
        self.number = 0.0
        """Value of every number that is read from a fake tensor: 0 while the learner compares, then 1."""
        self._fakes = fakes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operator with fake tensors."""
        if DTensor in types:
            return NotImplemented  # it computes with local tensors, which come here
        kwargs = kwargs or {}
        if active_fake_mode() is not self._fakes:  # DTensor infers shapes
            return func(*args, **kwargs)
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fake = any(isinstance(leaf, FakeTensor) for leaf in leaves)
        if name := SENT.get(func._opname if func.namespace in ("c10d", "_c10d_functional") else ""):
            self.sent[name] += max(leaf.nbytes for leaf in leaves)
        if func is torch.ops.aten._local_scalar_dense.default and fake:
            return args[0].dtype == torch.bool or self.number
        if fake or not self.built or func._opname.startswith(("empty", "new_empty")):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)
