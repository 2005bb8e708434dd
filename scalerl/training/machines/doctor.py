"""The checks of `scalerl doctor`: what works on the machines of a placement, what is slow, and what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.limits import DOCTOR_CALL_S, DOCTOR_START_S, DOCTOR_SWAPS_S, TCP_CONNECT_S
from scalerl.core.machine import host_memory
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import PASSED, LocalRemote, RemoteGroup, serve
from scalerl.training.config.base import replace
from scalerl.training.config.run import RunConfig
from scalerl.training.machines.memory import CHANNEL_VERSIONS, check_disk, disk_bytes, gb, sent_bytes
from scalerl.training.machines.probe import HostReport, Probe
from scalerl.training.machines.speed import GPUS, Assumptions
from scalerl.training.placement.devices import (
    DRIVERS,
    GB,
    USABLE,
    Host,
    Place,
    check_shared_memory,
    devices,
    gpu_problem,
    this_machine,
)
from scalerl.training.placement.sizes import UNREAD, RunSizes

WORKS, SLOW, FAILS = "works", "works slowly", "does not work"

RANKS_PER_CORE = 8
"""Most trainer ranks that are started on a CPU, per core."""

SLOW_BELOW = 0.5
"""Share of the bandwidth that plans assume below which a pair of hosts is slow."""

CheckResult = tuple[str, str]
"""Verdict and text."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Example: Finding("room", "does not work", "node-1:/runs: 3.1 GB are free, ...; free space, or ...", 1.2)
    """

    check: str
    verdict: str
    """works, works slowly, or does not work."""
    text: str
    """One line: what it saw; for a problem host, process, cause and cure."""
    seconds: float


class Site:
    """The machines of a placement, in a process of its own."""

    def __init__(
        self,
        config: RunConfig | None,
        limit_s: float = DOCTOR_CALL_S,
        hosts: Sequence[Host] = (),
        start_s: float = DOCTOR_START_S,
    ) -> None:
        """Find the machines and their GPUs.

        Args:
            config: The configuration; None: the lab's, with one trainer per GPU of this machine, or two on CPU.
            limit_s: Time limit of a call to a process, seconds.
            hosts: The machines; empty: this one or, with `placement.backend = "ray"`, those of the cluster.
            start_s: Time limit of the start of a process or a server, seconds.

        Raises:
            ConfigError: The cluster does not answer, or there are more ranks than this machine can start.
        """
        from scalerl.training.machines.connect import connect, hosts_of

        self._groups: dict[str, RemoteGroup] = {}
        self.given, self.limit_s, self.start_s, self.problem = config is not None, limit_s, start_s, ""
        config = config or RunConfig()
        place, hardware = config.placement, config.hardware
        elsewhere = place.backend == "ray" and place.ray_address != "local"
        self.ray = connect(place.ray_address, "placement.ray_address") if elsewhere else None
        hosts = hosts or (hosts_of(self.ray) if self.ray else [this_machine()])
        gpus = [(host.name, gpu) for host in hosts for gpu in host.gpus]
        if not self.given:
            config = replace(config, placement=replace(place, trainer_ranks=len(gpus) or 2))
        if hardware.device == "cuda" and not gpus:
            reason = "the Ray cluster has no GPU" if self.ray else f"torch sees no GPU on {_HOST} ({gpu_problem()})"
            self.problem = f"hardware.device: got 'cuda', but {reason}; allowed: cpu, auto"
        device, dtype = ("cuda", "bfloat16") if gpus and hardware.device != "cpu" else ("cpu", "float32")
        dtype = dtype if hardware.dtype == "auto" else hardware.dtype
        most = RANKS_PER_CORE * (os.cpu_count() or 1)
        if device == "cpu" and not self.ray and config.placement.trainer_ranks > most:
            raise ConfigError(
                f"placement.trainer_ranks: got {config.placement.trainer_ranks}, each a process on this machine; "
                f"allowed without GPUs: 1 to {most}"
            )
        self.config: RunConfig = replace(config, hardware=replace(hardware, device=device, dtype=dtype))
        try:
            self.table = devices(RunSizes.of(self.config, UNREAD), hosts)
        except ConfigError as error:  # too few GPUs: the other checks use those that there are
            self.problem = str(error)
            self.table = {("trainer", n): Place(host, (gpu,)) for n, (host, gpu) in enumerate(gpus)}

    def check(self, name: str) -> CheckResult:
        """Run a check; raises what it raises."""
        return DOCTOR_CHECKS[name](self)

    def ask(self, method: str, *arguments: Any, of: str = "first") -> list[Any]:
        """Call a method of Probes and return their answers; see `group`."""
        return self.group(of).call(method, *arguments, timeout_s=self.limit_s)

    def group(self, of: str) -> RemoteGroup:
        """Return processes with Probes, which the checks share.

        Args:
            of: all sets of GPUs, the first trainer, or the first generator; always all hosts on Ray.
        """
        key = "hosts" if self.ray else "first" if of == "all" and self.config.hardware.device == "cpu" else of
        if key not in self._groups or self._groups[key].death is not None:
            self._groups[key] = self.processes(key)
        return self._groups[key]

    def processes(self, of: str) -> RemoteGroup:
        """Start the Probes of a group, or of all trainers, and wait until they are ready; raises ProcessDied."""
        if of == "hosts":
            return _on_hosts(self.ray, list(self.table.values()), self.start_s)
        rows = [(f"{kind} {n + 1}", at) for (kind, n), at in self.table.items()]
        selected = [row for row in rows if row[0].startswith("generator" if of == "generator" else "trainer")]
        if of == "all":  # processes that share GPUs see the same
            selected = list({at.gpus: (name, at) for name, at in reversed(rows) if at.gpus}.values())[::-1]
        group = RemoteGroup(
            LocalRemote(_serve("127.0.0.1"), f"{_HOST}: {name} (process {{}})", environment=at.environment)
            for name, at in (selected if of in ("all", "trainers") else selected[:1])
        )
        group.answers("start", self.start_s)
        return group


_HOST = socket.gethostname()


def _serve(address: str) -> Any:
    return partial(serve, partial(Probe, address), PASSED)


def _on_hosts(ray: Any, places: Sequence[Place], limit_s: float) -> RemoteGroup:
    """Start an actor on each host of the places, with their GPUs; without GPUs, on every host of the cluster."""
    from scalerl.training.machines.remote import Actor, RayRemote

    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    counts = {host: sum(len(at.gpus) for at in places if at.host == host) for host in nodes}
    remotes = []
    for host, count in counts.items():
        if count or not any(counts.values()):
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(nodes[host], soft=False)
            options = {"num_cpus": 0, "num_gpus": count, "scheduling_strategy": strategy}
            name = f"{host} ({count} GPUs, Ray actor)"
            remotes.append(RayRemote(ray, Actor, _serve(host), name, ProcessDied, options))
    for remote in remotes:
        remote.placed(limit_s)
    group = RemoteGroup(remotes)
    group.answers("start", limit_s)
    return group


# ------------------------------------------------------------------------------------------------------------- checks


def versions(site: Site) -> CheckResult:
    """Check the versions on every host against the supported ranges, and against each other."""
    place = site.config.placement
    serves = place.engine == "vllm" and not place.servers
    python = (place.vllm_python or sys.executable) if serves else ""
    reports: list[HostReport] = site.ask("look", python)
    first = reports[0]
    bad = [f"{report.host}: {problem}" for report in reports for problem in report.unsupported]
    bad += [
        f"{name} is {first.versions.get(name)} on {first.host} and {report.versions.get(name)} on {report.host}; "
        "install the same everywhere"
        for report in reports[1:]
        for name in sorted(first.versions.keys() | report.versions.keys())
        if first.versions.get(name) != report.versions.get(name)
    ]
    installed = dict(first.versions)
    if cuda := installed.get("cuda"):
        needed = DRIVERS.get(int(cuda.split(".")[0]), "?")
        installed["driver"] = f"{installed.get('driver') or 'none'} (CUDA {cuda} needs {needed})"
    return (FAILS, "; ".join(bad)) if bad else (WORKS, ", ".join(f"{name} {installed[name]}" for name in installed))


def gpus(site: Site) -> CheckResult:
    """Check the GPUs of every process: that they are visible, free, large enough and of one model."""
    reports: list[HostReport] = site.ask("look", of="all")
    bad = [site.problem] if site.problem else []
    users = reports if site.config.hardware.device == "cuda" else []
    bad += [f"{report.host}: torch can use no GPU: {report.problem}" for report in users if report.problem]
    visible = [(f"{report.host}: {gpu.limit}", gpu) for report in users for gpu in report.gpus]
    for name, gpu in visible:
        if gpu.free < USABLE * gpu.total:
            bad.append(f"{name}: {gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB are free; end the programs on it "
                       "(`nvidia-smi` lists them)")  # fmt: skip
        if site.given and gpu.total < USABLE * site.config.placement.gpu_gb * GB:
            bad.append(f"{name} has {gpu.total / GB:.0f} GB; set placement.gpu_gb = {gpu.total / GB:.0f}")
    if bad:
        return FAILS, "; ".join(dict.fromkeys(bad))
    if not visible:
        return WORKS, f"the run uses the CPU of {_HOST}: {os.cpu_count()} cores"
    names = sorted({gpu.limit for _, gpu in visible})
    text = f"{len(visible)} GPUs in {len(reports)} processes: {', '.join(names)}"
    return (SLOW, f"{text}; the slowest sets the pace: use one model of GPU") if len(names) > 1 else (WORKS, text)


def network(site: Site) -> CheckResult:
    """Check TCP between all hosts, then all-reduce and sending between all pairs, over NCCL or gloo."""
    device = site.config.hardware.device
    if site.ray:  # the shared processes hold the GPUs
        return meeting(site.group("all"), site.limit_s, device)
    with closing(site.processes("trainers")) as group:
        return meeting(group, site.limit_s, device)


def meeting(group: RemoteGroup, limit_s: float, device: str) -> CheckResult:
    """Let Probes form a process group and exchange tensors, on cuda or cpu; each step has the time limit."""
    library, variable = ("NCCL", "NCCL_SOCKET_IFNAME") if device == "cuda" else ("gloo", "GLOO_SOCKET_IFNAME")
    addresses, meetings = zip(*group.call("listen", timeout_s=limit_s), strict=True)
    hosts = [address.rpartition(":")[0] for address in addresses]
    for host, problem in zip(hosts, group.call("reach", addresses, timeout_s=limit_s), strict=True):
        if problem:
            return FAILS, f"{host} cannot connect to {problem}: open all TCP ports between the hosts of the run"
    try:
        group.call("meet", meetings, limit_s, timeout_s=limit_s)
        answers = group.call("exchange", timeout_s=limit_s)
    except ProcessDied as error:
        return FAILS, (
            f"{library} between {', '.join(addresses)}: {error}. Choose the network interface with {variable}, open "
            "all TCP ports, and see the reason with NCCL_DEBUG=WARN"
        )
    if len(hosts) == 1:
        return WORKS, f"{library} starts in the only process"
    text = f"{library} between {len(hosts)} processes: all-reduce {min(answer[0] for answer in answers) / GB:.2g} GB/s"
    rate, n, to = min(
        (rate, n, (n + 1 + k) % len(hosts)) for n, answer in enumerate(answers) for k, rate in enumerate(answer[1])
    )
    text += f", slowest pair {hosts[n]} to {hosts[to]} {rate / GB:.2g} GB/s"
    assumed = Assumptions(GPUS["H100"]).network
    if device == "cuda" and len(set(hosts)) > 1 and rate < SLOW_BELOW * assumed:
        return SLOW, f"{text}; plans assume {assumed / GB:g} GB/s: check InfiniBand or EFA and {variable}"
    return WORKS, text


def room(site: Site) -> CheckResult:
    """Check the disk of ./runs, /dev/shm, and the memory that carries weights to the engines."""
    from scalerl.training.machines.connect import shared_memory

    config, place = site.config, Path("runs") if os.path.isdir("runs") else Path()
    check_shared_memory(site.table, partial(shared_memory, site.ray) if site.ray else None)
    text = f"{place.resolve()}: {shutil.disk_usage(place).free / GB:.0f} GB free"
    try:
        run = RunSizes.of(config)
    except ConfigError:  # those of a model that is elsewhere are not known
        return WORKS, text
    check_disk(run, place)
    weights, memory = CHANNEL_VERSIONS * sent_bytes(run), host_memory().free
    if memory < weights and run.channel == "shared-memory":
        return FAILS, (
            f"memory of {_HOST}: {gb(memory)} GB are free; four versions of the weights need {gb(weights)} GB. Use "
            "rollouts.weights = 'directory', or more memory"
        )
    return WORKS, f"{text}, {disk_bytes(run) / GB:.2g} GB needed"


def vllm(site: Site) -> CheckResult:
    """Check a vLLM server with the model in miniature, or that the servers given by address answer."""
    from scalerl.training.engines.vllm.server import wait_for_server

    for address in site.config.placement.servers:
        wait_for_server(address, TCP_CONNECT_S)
    if servers := site.config.placement.servers:
        return WORKS, f"{len(servers)} servers answer; the run checks their settings when it starts"
    group, limit_s = site.group("generator"), site.start_s + DOCTOR_SWAPS_S
    return WORKS, group.call("vllm", site.config, site.start_s, timeout_s=limit_s)[0]


DOCTOR_CHECKS: dict[str, Callable[[Site], CheckResult]] = {
    "versions": versions,
    "GPUs": gpus,
    "learner": lambda site: (WORKS, site.ask("learner", site.config)[0]),
    "FP32 head": lambda site: (WORKS, site.ask("head", site.config)[0]),
    "network": network,
    "room": room,
    "vLLM": vllm,
}
"""The checks in order. To add one, write a function and an entry."""


def examine(
    config: RunConfig | None,
    limit_s: float = DOCTOR_CALL_S,
    checks: Iterable[str] = DOCTOR_CHECKS,
    start_s: float = DOCTOR_START_S,
) -> Iterator[Finding]:
    """Run checks and yield their findings, in a second process, and in a new one after a crash or a time limit.

    Args:
        config: A configuration; None: the lab's, on all GPUs of this machine.
        limit_s: Time limit of each call to a process, seconds.
        checks: Names of the checks.
        start_s: Time limit of the start of a process or a server, seconds.
    """
    remote: Any = None
    for name in checks:
        if name == "vLLM" and (config is None or config.placement.engine != "vllm"):
            continue
        start, limit = time.monotonic(), 3 * limit_s + 2 * start_s  # a check may start processes and a server
        if remote is None:
            remote = LocalRemote(partial(serve, partial(Site, config, limit_s, (), start_s), PASSED), "the check")
            kind, content = remote.answer(limit)
            if kind != "done":
                yield _finding("placement", remote, kind, content, start)
                break
        remote.tell("check", name)
        kind, content = remote.answer(limit)
        yield _finding(name, remote, kind, content, start)
        if kind not in ("done", "raised"):
            remote.end()
            remote = None
    if remote is not None:
        remote.end()


def host_notes(config: RunConfig) -> list[str]:
    """Return what `versions` and `GPUs` find at the start of a run on GPUs, unless all is well.

    Notes, not errors: a GPU that others use may still have room for the run.
    """
    if config.hardware.device != "cuda":
        return []
    findings = examine(config, checks=["versions", "GPUs"])
    return [f"{finding.check}: {finding.text} (scalerl doctor)" for finding in findings if finding.verdict != WORKS]


def _finding(name: str, remote: Any, kind: str, content: Any, start: float) -> Finding:
    verdict, text = content if kind == "done" else (FAILS, content if kind == "raised" else remote.death(kind, content))
    return Finding(name, verdict, " ".join(str(text).split()), round(time.monotonic() - start, 1))
