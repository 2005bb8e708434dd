"""Hardware of a run, sandbox of its programs, and placement of its processes on one machine or a Ray cluster.

By default, a run has one trainer process and one generator process on this machine, and does not need Ray.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scalerl.training.config.base import Auto, Count, Few, Natural, NoneOrFew, Part, Positive, Seconds
from scalerl.training.config.recipe import Custom, or_custom


class Hardware(Part):
    """Device, data types and threads."""

    device: Auto | Literal["cpu", "cuda"] = "auto"
    """auto: a GPU if torch finds one."""
    dtype: Auto | Literal["float32", "bfloat16"] = "auto"
    """Weights of the forward pass; auto: float32 on CPU, bfloat16 on GPU (the optimizer keeps float32 masters)."""
    generator_threads: Auto | Few = "auto"
    """CPU threads of the generator process; auto: half of the cores."""
    trainer_threads: Auto | Few = "auto"
    """CPU threads of the trainer process; auto: half of the cores."""
    trainer_helpers: Auto | NoneOrFew = "auto"
    """Additional threads, each with `trainer_threads`, that compute micro-batches on CPU while generators wait. Results
    do not depend on their number. auto: as many as fit on the cores, up to 3. Each needs memory for a
    micro-batch and two gradients."""


class Sandbox(Part):
    """Isolation and limits of programs under test (docs/rewards.md has the threat model)."""

    mode: Literal["bubblewrap", "unsafe"] = "bubblewrap"
    """bubblewrap: a run that needs it does not start without it. unsafe: plain processes with limits and without
    isolation, for programs that you trust."""
    test_s: Seconds = 6.0
    """Time limit of a program for one test or one call, seconds; LiveCodeBench's default."""
    program_s: Seconds = 60.0
    """Time limit of all tests of one program, seconds."""
    memory_mb: Annotated[int, Field(ge=64, le=10**9)] = 1024
    """Address space of a program, MiB; at least 64."""
    python: str = ""
    """Python 3.11 or newer that runs the programs, with its packages; empty: the current one, with the standard library
    only, unless `packages` has names."""
    packages: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")], ...] = ()
    """Modules that programs and tests may import, such as ["numpy", "pytest"], from `python` or the current
    environment, whose directory programs then see, read-only. A run does not start if one cannot be imported."""


class Placement(Part):
    """The processes of a run and how they are placed."""

    backend: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: actors on a Ray cluster; actors that die are restarted."""
    ray_address: str = "auto"
    """Ray cluster: `auto` (the one this machine belongs to), `local` (a new one on this machine) or HOST:PORT."""
    trainer_ranks: Few = 1
    """Trainer processes, each with a share of the weights (FSDP2), and with a GPU if `hardware.device` is cuda. 1:
    nothing is sharded."""
    expert_ranks: Few = 1
    """Trainer ranks over which the experts of a mixture are spread; a divisor of `trainer_ranks` and of the experts per
    layer. Tokens travel to their experts. 1: every rank gathers all experts."""
    generators: Few = 1
    """Number of engines. On one machine, a single engine runs in the generator's process; several have one each."""
    engine: Annotated[Literal["torch", "vllm"] | Custom, or_custom("torch", "vllm")] = "torch"
    """Engine that samples: torch (built in), vllm (through its HTTP server), or your engine on this machine."""
    gpus_per_generator: Auto | Count = "auto"
    """GPUs per generator, if `hardware.device` is cuda. auto: `tensor_parallel`; torch engines on one machine share the
    trainer's."""
    tensor_parallel: Few = 1
    """GPUs over which vLLM splits one model; a divisor of its attention heads and of its key-value heads."""
    servers: tuple[Annotated[str, Field(pattern="^https?://")], ...] = ()
    """Addresses of running vLLM servers, http://HOST:PORT; empty: servers are started and stopped with the run. With
    addresses, `generators` is their number."""
    trainer_address: str = ""
    """Address of trainer rank 0 for `rollouts.weights = "nccl"`, as the servers reach it; empty: the address of its
    network interface that routes to the servers."""
    vllm_python: str = ""
    """Python interpreter with vLLM, for servers that the run starts; empty: the one that runs scalerl."""
    vllm_arguments: tuple[str, ...] = ()
    """Additional arguments of the servers that the run starts, such as ["--gpu-memory-utilization", "0.9"]."""
    scorers: NoneOrFew = 0
    """ray: actors that score completions, each with `scoring.workers` processes (auto: 1) and as many cores; an actor
    that dies is replaced. 0: processes next to the trainer."""
    restarts: Natural = 3
    """How often a run goes back to its last checkpoint after a trainer rank has died on Ray, or could not end a
    transfer over NCCL to a server that died; each checkpoint resets the count. Engines are replaced without this."""
    gpus: Count | None = None
    """Largest number of GPUs of the run, without those of servers given by address; none: not checked. With 1, the
    engines of this machine share the trainer's GPU, however many it has."""
    gpu_gb: Positive = 80.0
    """Memory per GPU in GB (10^9 bytes), for `--dry-run` and `scalerl plan`."""
    start_timeout_s: Seconds = 1200.0
    """Time limit for the start of an engine, seconds: to be placed on a cluster, and again to load and compile the
    model; also for a lost server given by address to come back. An engine that has run before is then started again."""
    silence_timeout_s: Seconds = 300.0
    """Time limit without a sign of life, seconds: an engine on Ray or vLLM that samples no token of any of its
    sequences for so long is replaced."""
    transfer_timeout_s: Seconds = 600.0
    """Time limit of one transfer of weights, seconds; an engine on Ray or vLLM is then replaced, otherwise the run
    stops with an error."""
    step_timeout_s: Seconds = 3600.0
    """Time limit of several trainer ranks for an update, for loading and for a checkpoint, seconds; the run then stops
    and names the rank that did not answer."""

    @model_validator(mode="after")
    def _check(self) -> Placement:
        if self.trainer_ranks % self.expert_ranks:
            raise ValueError(
                f"expert_ranks: got {self.expert_ranks} with trainer_ranks {self.trainer_ranks}; allowed: a divisor of "
                "trainer_ranks"
            )
        if self.servers and self.engine != "vllm":
            raise ValueError(
                f"servers: got {len(self.servers)} addresses with engine {self.engine_name!r}; allowed: engine = 'vllm'"
            )
        if isinstance(self.engine, Custom) and self.backend != "local":
            raise ValueError(
                f"engine: got {self.engine_name} with backend {self.backend!r}; allowed for a custom engine: "
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
        if self.engine == "vllm" and self.gpus_per_generator not in ("auto", self.tensor_parallel):
            raise ValueError(
                f"gpus_per_generator: got {self.gpus_per_generator} with tensor_parallel {self.tensor_parallel}; "
                f"allowed: auto or {self.tensor_parallel}. vLLM uses as many GPUs as it splits the model over"
            )
        return self

    @property
    def engine_name(self) -> str:
        """torch, vllm, or the import path of the user's engine."""
        return self.engine.function if isinstance(self.engine, Custom) else self.engine

    @property
    def engines(self) -> int:
        """Number of engines."""
        return len(self.servers) or self.generators

    @property
    def channels(self) -> tuple[str, ...]:
        """Weight channels that can reach the engines, the most general first."""
        if self.engine == "vllm":
            return ("directory", "nccl")
        return ("shared-memory", "directory") if self.backend == "local" else ("directory",)

    @property
    def gpus_of_a_generator(self) -> int:
        """GPUs per engine, if the run uses GPUs."""
        return self.tensor_parallel if self.gpus_per_generator == "auto" else self.gpus_per_generator

    @property
    def deterministic(self) -> bool:
        """Whether every engine does exactly one decode step per tick; a custom engine declares this itself."""
        return self.backend == "local" and self.engine != "vllm"
