"""What `scalerl doctor` measures in a process of a placement: devices, learner, FP32 head, network, vLLM."""

from __future__ import annotations

import copy
import importlib.metadata
import platform
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.core.errors import ConfigError
from scalerl.core.limits import TCP_CONNECT_S
from scalerl.core.machine import Memory, gpu_memory
from scalerl.training.config.run import RunConfig
from scalerl.training.placement.devices import driver_advice, driver_version, gpu_problem

if TYPE_CHECKING:
    from torch import Tensor

PACKAGES = ("scalerl", "torch", "transformers", "ray", "vllm")
CHECKED_EXTRAS = ("", "train", "cluster")
"""Extras of scalerl whose requirements are checked."""

ERROR = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest relative error of the loss and of the gradient against float64, by dtype of the weights."""

HEAD_ERROR = 1e-3
"""Largest error of log-probabilities of the FP32 head against float64, nats."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """Software and devices that a process sees.

    Example: HostReport("node-1", {"python": "3.11.9"}, gpus=(Memory(85.0e9, 84.1e9, "NVIDIA H100"),))
    """

    host: str
    versions: dict[str, str] = field(default_factory=dict)
    gpus: tuple[Memory, ...] = ()
    """Memory of each GPU with its name as the limit."""
    problem: str = ""
    """Why torch can use no GPU; empty if it can."""
    unsupported: tuple[str, ...] = ()
    """Packages outside the supported ranges, in words."""


class Probe:
    """An object in a process of the placement, with its devices."""

    def __init__(self, address: str) -> None:
        """Store the address under which the other hosts reach this one; load what the calls need.

        Loading from a cold disk takes minutes and has its own time limit.
        """
        import torch  # noqa: F401
        import transformers  # noqa: F401

        self._address = address

    def look(self, vllm_python: str = "") -> HostReport:
        """Return what this process sees.

        Args:
            vllm_python: Python whose vLLM serves the model on this host; empty: none does.
        """
        import torch

        problem = gpu_problem()
        seen = () if problem else tuple(map(gpu_memory, range(torch.cuda.device_count())))
        installed = {package.name.lower(): package.version for package in importlib.metadata.distributions()}
        known, advice = versions_here(installed), ""
        if "driver" in known and not problem:  # otherwise the problem has the advice
            advice = driver_advice(torch.version.cuda, known["driver"])
        bad = [*unsupported(installed), *([advice] if advice else [])]
        if vllm_python:
            from scalerl.training.engines.vllm.checks import installed_version, server_problems

            known["vllm"] = installed_version(vllm_python)
            bad += server_problems(vllm_python, known["vllm"], known.get("driver", ""))
        return HostReport(socket.gethostname(), known, seen, problem, tuple(bad))

    def learner(self, config: RunConfig) -> str:
        """Compare updates of the model in miniature with float64 on CPU; return the errors in words.

        Raises:
            ConfigError: An error is too large.
        """
        from scalerl.training.config.recipe import Recipe, Reinforce
        from scalerl.training.learner.single import SingleLearner
        from scalerl.training.models.miniature import miniature
        from scalerl.training.models.packing import can_pack
        from scalerl.training.models.policy import Policy

        dtype, packing, words = config.hardware.dtype, config.learner.packing, []
        model, name = miniature(config.model)
        model = model.to(_dtype(config))
        batch = _batch()
        exact = copy.deepcopy(model).double()
        exact.set_experts_implementation("eager")  # the grouped product has no float64
        expected, gradient = exact_update(exact, batch)
        forms = ("padded", "packed", "shared") if can_pack(model) else ("padded",)
        for form in forms if packing == "auto" else (packing,):
            policy = Policy(copy.deepcopy(model).to(_device()), fp32_head=config.recipe.fp32_head)
            again = config.learner.gradient_checkpointing is True
            learner = SingleLearner(policy, Recipe(loss=Reinforce()), packing=form, gradient_checkpointing=again)
            stats = learner.step(batch)
            error = max(abs(stats.loss / expected - 1), _error(learner.tensors(), stats.grad_norm, gradient))
            words.append(f"{form} {error:.1g}")
            if not error <= ERROR[dtype]:
                raise ConfigError(
                    f"{name} in {dtype}, {form}: loss or gradient of an update are {error:.2g} off those in float64; "
                    f"allowed: {ERROR[dtype]:g} of the value. Try learner.packing = 'padded', and report this"
                )
        return f"{name} in miniature, {dtype}: relative errors of an update against float64: {', '.join(words)}"

    def head(self, config: RunConfig) -> str:
        """Compare log-probabilities of the FP32 head with float64; raises ConfigError if they differ too much."""
        import torch

        from scalerl.training.models.head import HeadRule, token_logprobs

        torch.manual_seed(0)
        hidden_ND, weight_VD = (torch.randn(n, 1024).to(_device(), _dtype(config)) for n in (256, 8192))
        weight_VD /= 32
        targets_N = torch.arange(256, device=_device()) * 31
        logp_N, _ = token_logprobs(hidden_ND, weight_VD, None, targets_N, rule=HeadRule())
        logits_NV = hidden_ND.cpu().double() @ weight_VD.cpu().double().t()
        exact_N = logits_NV.log_softmax(-1).gather(1, targets_N.cpu()[:, None])[:, 0]
        error = float((logp_N.cpu() - exact_N).abs().max())
        if not error <= HEAD_ERROR:
            raise ConfigError(
                f"log-probabilities of the FP32 head are {error:.2g} nats off those in float64; allowed: "
                f"{HEAD_ERROR:g}. Unset NVIDIA_TF32_OVERRIDE, and report this with `scalerl doctor --json`"
            )
        return f"log-probabilities within {error:.1g} nats of float64"

    # ------------------------------------------------------------------------------------------------------ network

    def listen(self) -> tuple[str, str]:
        """Listen on a free port; return HOST:PORT, and that of another free port for a meeting."""
        self._socket, spare = (socket.create_server((self._address, 0), backlog=4096) for _ in range(2))
        with spare:
            self._meeting = f"{self._address}:{spare.getsockname()[1]}"
        return f"{self._address}:{self._socket.getsockname()[1]}", self._meeting

    def reach(self, addresses: Sequence[str]) -> str:
        """Connect to all addresses; return the first that fails, with the reason, or an empty string."""
        for address in addresses:
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=TCP_CONNECT_S).close()
            except OSError as error:
                return f"{address} ({error})"
        return ""

    def meet(self, meetings: Sequence[str], limit_s: float) -> None:
        """Join a process group at the first meeting: NCCL on GPUs, gloo on CPUs."""
        import torch.distributed as dist

        cuda = _device().type == "cuda"
        dist.init_process_group(
            "nccl" if cuda else "gloo", init_method=f"tcp://{meetings[0]}", rank=meetings.index(self._meeting),
            world_size=len(meetings), timeout=timedelta(seconds=limit_s), device_id=_device() if cuda else None,
        )  # fmt: skip

    def exchange(self) -> tuple[float, list[float]]:
        """Return the bytes/s of an all-reduce, and of sending to each other rank, beginning with the next one."""
        import torch
        import torch.distributed as dist

        rank, count = dist.get_rank(), dist.get_world_size()
        size = 1 << (28 if _device().type == "cuda" else 24)
        sent, got = (torch.ones(size // 4, device=_device()) for _ in range(2))

        def pair(shift: int) -> None:
            to, source = (rank + shift) % count, (rank - shift) % count
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, got, source)])
            for work in works:
                work.wait()

        dist.all_reduce(got)
        if not bool((got == count).all()):
            raise ConfigError(f"an all-reduce of ones over {count} ranks gave {float(got.mean()):g}; expected {count}")
        reduced = 2.0 * (count - 1) / count * size / _seconds(lambda: dist.all_reduce(got))
        return reduced, [size / _seconds(partial(pair, shift)) for shift in range(1, count)]

    # --------------------------------------------------------------------------------------------------------- vLLM

    def vllm(self, config: RunConfig, limit_s: float) -> str:
        """Start a server with the model in miniature; sample, swap twice, replay; return the outcome in words.

        Raises:
            ConfigError: The server does not start, or is not fit.
            ReplayMismatch: It does not sample with the weights that it got.
        """
        with tempfile.TemporaryDirectory(prefix="scalerl-doctor-") as directory:
            return serve_miniature(config, limit_s, Path(directory))


def versions_here(installed: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of this process's software; what is not installed is left out."""
    import torch

    known = {"python": platform.python_version(), **{name: installed[name] for name in PACKAGES if name in installed}}
    if torch.version.cuda:
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        known |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl))}
    if driver := driver_version():
        known["driver"] = driver
    return known


def unsupported(installed: Mapping[str, str]) -> list[str]:
    """Return the installed packages that scalerl's requirements do not allow, in words."""
    from packaging.requirements import Requirement

    try:
        needs = [Requirement(text) for text in importlib.metadata.requires("scalerl") or ()]
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path, which nobody has installed
        return []
    return [
        f"{need.name} {installed[need.name]}; supported: {need.specifier}; pip install '{need.name}{need.specifier}'"
        for need in needs
        if need.name in installed
        and (not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in CHECKED_EXTRAS))
        and not need.specifier.contains(installed[need.name], prereleases=True)
    ]


def exact_update(model: Any, batch: Any) -> tuple[float, dict[str, Tensor]]:
    """Return the loss -sum(weight x advantage x log-probability) and its gradient by name.

    Args:
        model: A transformers model in float64 on CPU.
        batch: The TrainBatch, whose padding at the end no token sees.
    """
    logp_BTV = model(input_ids=batch.rollouts.tokens_BT, use_cache=False).logits[:, :-1].double().log_softmax(-1)
    logp_BT = logp_BTV.gather(2, batch.rollouts.tokens_BT[:, 1:, None])[..., 0]
    loss = -(batch.weights_BT[:, 1:] * batch.advantages_B[:, None] * logp_BT).sum()
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _batch() -> Any:
    """Return two prompts with two completions each, of unequal lengths beyond a kernel's block."""
    import torch

    from scalerl.training.learner.batch import RolloutTensors, TrainBatch

    draw = torch.Generator().manual_seed(0)
    length_B, prompt_length_B = torch.tensor([211, 90, 160, 41]), torch.tensor([75, 75, 30, 30])
    tokens_BT = torch.randint(2, 500, (4, 211), generator=draw)
    tokens_BT[1, :75], tokens_BT[3, :30] = tokens_BT[0, :75], tokens_BT[2, :30]
    at_T = torch.arange(211)
    trained_BT = (at_T >= prompt_length_B[:, None]) & (at_T < length_B[:, None])
    rollouts = RolloutTensors.without_rewards(
        tokens_BT * (at_T < length_B[:, None]),
        length_B,
        prompt_B=torch.tensor([0, 0, 1, 1]),
        prompt_length_B=prompt_length_B,
    )
    return TrainBatch(rollouts, torch.tensor([1.0, -0.5, 0.7, -0.9]), trained_BT, trained_BT / trained_BT.sum())


def _error(tensors: dict[str, Tensor], norm: float, exact: dict[str, Tensor]) -> float:
    """Return the relative error of a gradient, whose direction is that of AdamW's first moment after one update."""
    first = {name: tensors[f"exp_avg.{name}"].cpu().double() for name in exact}
    scale = norm / sum(float(m.square().sum()) for m in first.values()) ** 0.5
    off = sum(float((scale * m - exact[name]).square().sum()) for name, m in first.items())
    return float((off / sum(float(g.square().sum()) for g in exact.values())) ** 0.5)


def serve_miniature(config: RunConfig, limit_s: float, directory: Path) -> str:
    """Start a vLLM server in a directory and check it; see `Probe.vllm`."""
    import sys

    from scalerl.core.rng import stream_key
    from scalerl.training.engines.directory import DirectoryChannel
    from scalerl.training.engines.engine import Lane, Request, Sampling
    from scalerl.training.engines.interrupt import NEVER, LengthRule
    from scalerl.training.engines.replay import check_current
    from scalerl.training.engines.served import Submit, Swap
    from scalerl.training.engines.vllm.checks import Needs
    from scalerl.training.engines.vllm.client import vllm_client
    from scalerl.training.engines.vllm.server import ServerSpec, VllmServer
    from scalerl.training.models.miniature import VOCABULARY, miniature
    from scalerl.training.models.policy import Policy
    from scalerl.training.models.weights import checkpoint_weights

    place, dtype, began = config.placement, config.hardware.dtype, time.monotonic()
    model, name = miniature(config.model, place.tensor_parallel)
    model.to(_dtype(config)).save_pretrained(directory / "model")
    head = config.recipe.fp32_head and dtype != "float32"
    needs = Needs(VOCABULARY, 512, 16, "scalerl_directory", head)
    server = VllmServer(
        ServerSpec(
            str(directory / "model"), 512, 16, directory / "vllm.log", place.vllm_python or sys.executable,
            dtype=dtype, fp32_head=head, tensor_parallel=place.tensor_parallel, start_s=limit_s,
            extra=(*place.vllm_arguments, "--enforce-eager", "--gpu-memory-utilization", "0.2"),
            environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
        )
    )  # fmt: skip
    try:
        server.wait_ready()
        ready_s, channel = time.monotonic() - began, DirectoryChannel(directory / "weights")
        client = vllm_client(
            server, slots=(8, 8), rule=LengthRule(None, NEVER, 64), sampling=Sampling(), needs=needs,
            transfer=channel.transfer(0),
        )  # fmt: skip
        worst = 0.0
        for version in (0, 1, 2):
            policy = Policy(_scaled(model, 1.0 - 0.2 * version).to(_device()), fp32_head=config.recipe.fp32_head)
            channel.send(version, checkpoint_weights(model, policy.weights()))
            sent = {(n, 0): Request((n, 0), (5, 9, 2 + n), stream_key("doctor", version, n)) for n in range(8)}
            client.post(Swap(version))
            client.post(Submit(Lane.TRAINING, tuple(sent.values())))
            pairs: list[Any] = []
            while len(pairs) < len(sent):
                pairs += [(sent[done.id].prompt, done.rollout) for done in client.report(0.1).finished[Lane.TRAINING]]
            difference = check_current(policy, version, pairs)
            assert difference and difference.rollouts, (
                f"a server that was asked for version {version} sampled with another one"
            )
            worst = max(worst, difference.mean)
        client.stop()
    finally:
        server.close()
    return (
        f"{name} in miniature: ready after {ready_s:.0f} s; after each of three swaps, log-probabilities within "
        f"{worst:.1g} nats of the weights that were sent"
    )


def _scaled(model: Any, factor: float) -> Any:
    """Return a copy of a model whose matrices, embedding and head are multiplied by a factor."""
    import torch

    model = copy.deepcopy(model)
    with torch.no_grad():
        for matrix in filter(lambda parameter: parameter.ndim >= 2, model.parameters()):
            matrix.mul_(factor)
    return model


def _device() -> Any:
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def _dtype(config: RunConfig) -> Any:
    import torch

    return getattr(torch, config.hardware.dtype)


def _seconds(action: Callable[[], Any], times: int = 3) -> float:
    """Return the mean seconds of an action, after two to warm up."""
    import torch

    wait: Callable[[], None] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(2):
        action()
    wait()
    began = time.perf_counter()
    for _ in range(times):
        action()
    wait()
    return (time.perf_counter() - began) / times
