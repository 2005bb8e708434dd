"""Where the processes of a run live: trainer ranks and generators on one machine, or on a cluster that Ray places.

Without the section a run is one trainer process and one generator process on this machine, and Ray is not needed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from scalerl.config.base import Part
from scalerl.config.numbers import Count, Few, Natural, NoneOrFew, Positive, Seconds
from scalerl.config.recipe import Custom, or_custom


class ModelNumbers(Part):
    """Sizes of a decoder, by the names of its config.json: what memory and speed are reckoned from."""

    hidden_size: Count
    """Width of the residual stream."""
    num_hidden_layers: Count
    """Decoder layers."""
    num_attention_heads: Count
    """Query heads of a layer."""
    num_key_value_heads: Count
    """Key-value heads of a layer; a divisor of the attention heads."""
    head_dim: Natural = 0
    """Entries of one head; 0: hidden_size / num_attention_heads."""
    intermediate_size: Natural = 0
    """Width of a dense MLP; in a mixture of the dense layers' and 0 where all layers are mixtures."""
    vocab_size: Count
    """Entries of the vocabulary."""
    tie_word_embeddings: bool = False
    """Whether the head is the embedding."""
    num_experts: Natural = 0
    """Experts of a layer's MLP; 0: a dense model."""
    num_experts_per_tok: Natural = 0
    """Experts that a token uses."""
    moe_intermediate_size: Natural = 0
    """Width of one expert."""
    shared_expert_intermediate_size: Natural = 0
    """Width of the expert that every token uses besides; 0: none."""
    moe_every: Count = 1
    """Every how many layers the MLP is a mixture; 1: in all of them."""

    @model_validator(mode="after")
    def _check(self) -> ModelNumbers:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads: got {self.num_key_value_heads}; allowed: a divisor of num_attention_heads = "
                f"{self.num_attention_heads}"
            )
        if self.num_experts and not (1 <= self.num_experts_per_tok <= self.num_experts and self.moe_intermediate_size):
            raise ValueError(
                f"num_experts: got {self.num_experts} with num_experts_per_tok {self.num_experts_per_tok} and "
                f"moe_intermediate_size {self.moe_intermediate_size}; allowed: 1 to num_experts, and a positive width"
            )
        if not self.num_experts and not self.intermediate_size:
            raise ValueError("intermediate_size: got 0 for a dense model; allowed: the width of its MLP, at least 1")
        return self


class Placement(Part):
    """Which processes a run has, and what places them."""

    backend: Literal["local", "ray"] = "local"
    """local: processes of this machine. ray: actors on a Ray cluster; those that die are started again."""
    ray_address: str = "auto"
    """Ray cluster: `auto` (the one this machine belongs to), `local` (a new one on this machine) or HOST:PORT."""
    trainer_ranks: Few = 1
    """Processes that train together, each with a share of the weights (FSDP2) and a GPU where `hardware.device` is
    cuda. 1: the trainer is one process and nothing is sharded."""
    generators: Few = 1
    """Engines. On one machine one runs in the generator's process; several each have a process of their own."""
    engine: Annotated[Literal["torch", "vllm"] | Custom, or_custom("torch", "vllm")] = "torch"
    """What samples: the project's own engine, vLLM behind its HTTP server, or an engine of your own on this machine."""
    gpus_per_generator: Natural = 0
    """GPUs of each generator; 0: as many as `tensor_parallel` where `hardware.device` is cuda, else none."""
    tensor_parallel: Few = 1
    """GPUs over which vLLM splits one model; a divisor of its attention heads and of its key-value heads."""
    servers: tuple[str, ...] = ()
    """Addresses of vLLM servers that already run, http://HOST:PORT; empty: servers are started and stopped with the
    run. With addresses, `generators` is their number."""
    vllm_python: str = ""
    """Python of an environment with vLLM, for servers that the run starts; empty: the one that runs scalerl."""
    vllm_arguments: tuple[str, ...] = ()
    """More arguments of the servers that the run starts, such as ["--gpu-memory-utilization", "0.9"]."""
    scorers: NoneOrFew = 0
    """ray: actors that judge completions, each with `scoring.workers` processes (1 where that is 0) and as many cores;
    one that dies is replaced. 0: processes beside the trainer."""
    restarts: Natural = 3
    """ray: how often a run goes back to its last checkpoint after a trainer rank has died; the count starts again with
    each checkpoint. Engines that die are replaced without that."""
    gpus: Natural = 0
    """GPUs that the run may take in all, those of servers given by address not counted; 0: not checked."""
    gpu_gb: Positive = 80.0
    """Memory of each GPU, GB (10^9 bytes), that `--dry-run` and `scalerl plan` reckon with."""
    model_numbers: ModelNumbers | None = None
    """Sizes of the model, for `--dry-run` and `scalerl plan` where its config.json cannot be read; none: read it, or
    take them from a table of well-known models."""
    transfer_timeout_s: Seconds = 600.0
    """Seconds that one transfer of weights may take before the run stops and names it."""

    step_timeout_s: Seconds = 3600.0
    """Seconds that several trainer ranks may take for one update, for loading or for a checkpoint before the run stops
    and names the rank that did not answer."""

    @model_validator(mode="after")
    def _check(self) -> Placement:
        if self.servers and self.engine != "vllm":
            raise ValueError(
                f"servers: got {len(self.servers)} addresses with engine {self.engine_name!r}; allowed: engine = 'vllm'"
            )
        if isinstance(self.engine, Custom) and self.backend != "local":
            raise ValueError(
                f"engine: got {self.engine_name} with backend {self.backend!r}; allowed for an engine of your own: "
                "backend = 'local'"
            )
        if self.servers and self.generators not in (1, len(self.servers)):
            raise ValueError(
                f"generators: got {self.generators} with {len(self.servers)} servers; allowed: leave it out, or "
                f"{len(self.servers)}"
            )
        if self.scorers and self.backend != "ray":
            raise ValueError(
                f"scorers: got {self.scorers} with backend 'local'; allowed: backend = 'ray', or scoring.workers for "
                "more processes on this machine"
            )
        if self.engine != "vllm" and self.tensor_parallel > 1:
            raise ValueError(
                f"tensor_parallel: got {self.tensor_parallel} with engine {self.engine_name!r}, which uses one GPU; "
                "allowed: 1, or engine = 'vllm'"
            )
        for address in self.servers:
            if not address.startswith(("http://", "https://")):
                raise ValueError(f"servers: got {address!r}; allowed: addresses such as http://10.0.0.5:8000")
        return self

    @property
    def engine_name(self) -> str:
        """torch, vllm, or the import path of an engine of the user."""
        return self.engine.function if isinstance(self.engine, Custom) else self.engine

    @property
    def engines(self) -> int:
        """Number of engines."""
        return len(self.servers) or self.generators

    @property
    def channels(self) -> tuple[str, ...]:
        """Weight channels that reach the engines, the best first."""
        if self.engine == "vllm":
            # a transfer over NCCL begins in the trainer, which must know the servers when it starts
            return ("nccl", "directory") if self.servers else ("directory",)
        return ("shared-memory", "directory") if self.backend == "local" else ("object-store", "directory")

    @property
    def gpus_of_a_generator(self) -> int:
        """GPUs of one engine, where a run uses GPUs at all."""
        return self.gpus_per_generator or self.tensor_parallel

    @property
    def one_gpu(self) -> bool:
        """Whether trainer and engines share one GPU: processes of one machine that nothing tells apart."""
        return self.backend == "local" and self.engine != "vllm" and not self.gpus_per_generator

    @property
    def deterministic(self) -> bool:
        """Whether every engine does exactly one decode step a tick; an engine of the user says so itself."""
        return self.backend == "local" and self.engine != "vllm"
