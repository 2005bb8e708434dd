"""Rehearses an update of the configured learner without GPUs, weights or other ranks, and measures its peak memory.

A child process builds the learner with torch's fake tensors, which have shapes but no data, and with a fake process
group, in which every collective returns at once. All allocations pass a dispatch mode that counts the living bytes.
The tensors are CPU tensors, because torch computes no gradients of fake CUDA tensors without a GPU. Its CPU attention
has the memory of a flash kernel, and code for CPUs only is replaced.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scalerl.cluster.layout import prompt_tokens, widest
from scalerl.config.base import replace
from scalerl.config.run import RunConfig
from scalerl.core.errors import ConfigError, raising
from scalerl.core.remote import End, LocalRemote
from scalerl.learner.base import TrainBatch
from scalerl.models.sizes import Found

TIME_LIMIT_S = 3600.0
"""Time limit of a rehearsal, which takes one to four minutes for an 8B model."""

SENT = {
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "allreduce_": "all-reduce",
    "all_to_all_single": "all-to-all",
}
"""Collectives that move weights, gradients and the tokens of experts."""


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


def rehearse(config: RunConfig, found: Found) -> Rehearsal:
    """Rehearse an update in a child process.

    Raises:
        ConfigError: The model cannot be built or trained.
        ProcessDied: The process failed or did not finish in time.
    """
    remote = LocalRemote(partial(_run, config, found), "the rehearsal (process {})")
    try:
        result: Rehearsal = remote.receive(TIME_LIMIT_S)
        return result
    finally:
        remote.end()


def _run(config: RunConfig, found: Found, end: End) -> None:
    began, ranks = time.perf_counter(), config.placement.trainer_ranks
    _replace_cpu_code()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    with fakes, Tracker(fakes) as tracker:
        learner = _learner(config, found, mesh, tracker)
        tracker.answer = 1.0
        learner.step(full_batch(config, learner.policy.vocab_size, 1))  # creates the state of the optimizer
        tracker.begin(learner)
        learner.step(full_batch(config, learner.policy.vocab_size, 2))
    end.say("done", Rehearsal(tracker.parts, dict(tracker.sent), time.perf_counter() - began))


def _replace_cpu_code() -> None:
    """Compute as on a GPU, without what fake tensors and groups cannot do; the process serves no other purpose."""
    from scalerl.learner import experts
    from scalerl.models import head
    from scalerl.models.cpu import loops, onednn

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


def full_batch(config: RunConfig, vocabulary: int, micro_batches: int) -> TrainBatch:
    """Return a batch from which every rank gets `micro_batches` micro-batches of the widest size."""
    tokens = widest(config)
    longest = prompt_tokens(config)[1] + config.recipe.length.max_tokens
    rows = -(-tokens // longest)  # of a micro-batch
    shape = (config.placement.trainer_ranks * micro_batches * rows, tokens // rows)
    trained_BT = torch.ones(shape, dtype=torch.bool)
    trained_BT[:, 0] = False
    return TrainBatch(
        tokens_BT=torch.arange(shape[1]).remainder(vocabulary).expand(shape),
        length_B=torch.full(shape[:1], shape[1]),
        behavior_BT=torch.zeros(shape),
        advantages_B=torch.ones(shape[0]),
        trained_BT=trained_BT,
        weights_BT=torch.ones(shape),
    )


# -------------------------------------------------------------------------------------------------------- the learner


def _learner(config: RunConfig, found: Found, mesh: Any, tracker: Tracker) -> Any:
    """Build the learner of a rank as ranks.py does, with fake weights."""
    from transformers import AutoModelForCausalLM

    from scalerl.learner.fsdp import shard
    from scalerl.learner.ranks import sharded_learner, single_learner
    from scalerl.models.lora import LoraPolicy
    from scalerl.models.policy import Policy

    dtype = "bfloat16" if config.hardware.dtype == "auto" else config.hardware.dtype
    config = replace(config, hardware=replace(config.hardware, dtype=dtype, trainer_helpers=0))
    alone = config.placement.trainer_ranks == 1
    weights = getattr(torch, dtype) if alone else torch.float32
    model = AutoModelForCausalLM.from_config(architecture(found), dtype=weights, attn_implementation="sdpa")
    policy = Policy(model, fp32_head=config.recipe.fp32_head)
    tracker.built = True
    if not alone:
        shard(policy, mesh, getattr(torch, dtype), expert_ranks=config.placement.expert_ranks)
    elif config.lora:
        policy = LoraPolicy(policy, config.lora, 0)
    return single_learner(config, policy) if alone else sharded_learner(config, policy)


def architecture(found: Found) -> Any:
    """Return a transformers configuration: from the model's config.json, or a Qwen3 or Llama of the same sizes.

    Raises:
        ConfigError: The learner cannot train this architecture, or the sizes of a mixture are known only in total.
    """
    from transformers import AutoConfig, LlamaConfig, Qwen3Config

    from scalerl.models.loading import ALLOWED, check_config

    sizes, file = found.sizes, Path(found.source)
    if file.name == "config.json":
        with raising(ConfigError, lambda error: f"model.path: {file} is of no known architecture ({error}); {ALLOWED}"):
            config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
        check_config(config)
        return config
    if sizes.experts or sizes.expanded_params:
        raise ConfigError(
            f"--rehearse: needs the config.json of this model, not only sizes from {found.source}; set model.path to a "
            "directory with one"
        )
    kind = Qwen3Config if "Qwen3" in found.source else LlamaConfig
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


# --------------------------------------------------------------------------------------------------------- the memory


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of living tensors and of collectives, and answers what fake tensors cannot.

    Tensors of a batch are real and stay real, because the shapes of an update depend on them. A value that the learner
    reads from a fake tensor is `answer`, or true.
    """

    def __init__(self, fakes: FakeTensorMode) -> None:
        """Count inside this mode, in which `fakes` is active."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: dict[str, int] = {}
        self.sent: Counter[str] = Counter()
        self.built = False
        """Whether the model exists; before, all tensors are fake."""
        self.answer = 0.0
        """Value of every number that is read from a fake tensor: 0 while the learner compares, then 1."""
        self._fakes = fakes
        self._learner: Any = None
        self._owner: dict[int, str] = {}
        self._shards: list[FSDPParam] = []
        self._living: dict[int, tuple[Any, int, str]] = {}
        self._total = self._peak = 0
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:  # FSDP frees gathered weights so, without an operator
            out = resize(storage, size)
            self._see(storage, "gathered")
            return out

        storages: Any = torch.UntypedStorage
        storages.resize_ = resized

    def begin(self, learner: Any) -> None:
        """Record the peak from now on, by owner: the learner's parameters, gradients and moments."""
        self.sent.clear()
        self._learner = learner
        self._owner = dict.fromkeys(_storages([*learner.policy.parameters(), *learner._masters]), "parameters")
        moments = [list(state.values()) for state in learner._optimizer.state.values()]
        self._owner |= dict.fromkeys(_storages(tree_leaves(moments)), "optimizer")
        self._shards = [thing for thing in gc.get_objects() if type(thing) is FSDPParam]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operator with fake tensors and count its results."""
        if DTensor in types:
            return NotImplemented  # it computes with local tensors, which come here
        kwargs = kwargs or {}
        if active_fake_mode() is not self._fakes:  # DTensor infers shapes
            return func(*args, **kwargs)
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        collective = func.namespace in ("c10d", "fsdp")
        out = self._computed(func, args, kwargs, any(isinstance(leaf, FakeTensor) for leaf in leaves))
        forward = torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
        kind = "gathered" if collective else "activations" if forward else "temporary"
        for tensor in (*leaves, *tree_leaves(out)) if collective else tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage(), kind)
        if name := SENT.get(func._opname if func.namespace in ("c10d", "_c10d_functional") else ""):
            self.sent[name] += max(leaf.nbytes for leaf in leaves)
        if self._learner is not None and self._total > 1.001 * self._peak:
            self._record()
        return out

    def _computed(self, func: Any, args: Any, kwargs: Any, fake: bool) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and fake:
            return args[0].dtype == torch.bool or self.answer
        if fake or not self.built or func._opname.startswith(("empty", "new_empty")):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    def _see(self, storage: Any, kind: str) -> None:
        _, before, first = self._living.get(id(storage), (None, 0, kind))
        self._total += storage.size() - before
        kind = kind if kind == "gathered" else first
        self._living[id(storage)] = (weakref.ref(storage, partial(self._freed, id(storage))), storage.size(), kind)

    def _freed(self, key: int, reference: Any) -> None:
        if key in self._living and self._living[key][0] is reference:
            self._total -= self._living.pop(key)[1]

    def _record(self) -> None:
        """Record the bytes by part, of an owner or else by the time of their creation."""
        gradients = [p.grad for p in (*self._learner._masters, *self._learner._parameters)]
        for shard in self._shards:  # of a whole layer, before it is reduced
            whole = getattr(shard, "_unsharded_param", None)
            gradients += [shard.unsharded_accumulated_grad, None if whole is None else whole.grad]
        owner = self._owner | dict.fromkeys(_storages(gradients), "gradients")
        parts: Counter[str] = Counter()
        for key, (_, size, kind) in self._living.items():
            parts[owner.get(key, kind)] += size
        self._peak, self.parts = self._total, dict(parts)


def _storages(tensors: Any) -> list[int]:
    """Return the keys of the storages of tensors; those of DTensors are local."""
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors if isinstance(tensor, Tensor)]
    return [id(tensor.untyped_storage()) for tensor in local]
