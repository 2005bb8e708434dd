"""The checks of `scalerl doctor`: what works on the machines of a placement, what is slow, and what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from scalerl.cluster.devices import Host, Place, check_shared_memory, devices, gpu_problem, this_machine
from scalerl.cluster.memory import BF16, FP32, GB, USABLE
from scalerl.cluster.probe import Probe, Seen
from scalerl.cluster.speed import GPUS, Assumptions
from scalerl.config.base import replace
from scalerl.config.run import RunConfig
from scalerl.core.errors import ConfigError, outcome
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import PASSED, Group, LocalRemote, serve
from scalerl.models.sizes import sizes_of

WORKS, SLOW, FAILS = "works", "works slowly", "does not work"

SLOW_BELOW = 0.5
"""Share of a data sheet's FLOP/s or bandwidth below which a device works slowly."""

LIMIT_S, VLLM_S = 45.0, 110.0
"""Time limits in seconds of a check, and of the check of vLLM, which runs beside the others."""

MARGIN_S = 5.0
"""Seconds by which the processes of a check have a shorter limit than the check, so that its line names them."""

START_S = 15.0
"""Seconds of the limit of vLLM's check for everything but the start of the server."""

WRITTEN = 1 << 28
"""Bytes written to measure the disk."""

SLOW_DISK = 1e8
"""Bytes per second below which the disk of the run directory is slow."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Example: Finding("disk", "does not work", "runs: 3.1 GB are free, ...; free space, or give another --run-dir", 1.2)
    """

    check: str
    verdict: str
    """works, works slowly, or does not work."""
    text: str
    """In one line: what was found; for a problem host, process, cause and cure."""
    seconds: float


Outcome = tuple[str, str]
"""Verdict and text."""


class Site:
    """The machines of a placement, in a process of its own."""

    def __init__(self, config: RunConfig | None, limit_s: float = LIMIT_S) -> None:
        """Store the configuration; None: the lab's, with one trainer per GPU of this machine, or two on CPU."""
        self.given, self.limit_s, self.problem = config, limit_s - MARGIN_S, ""
        self._groups: dict[str, Group] = {}

    def check(self, name: str) -> Outcome:
        """Run a check; raises what it raises."""
        return CHECKS[name](self)

    @cached_property
    def ray(self) -> Any:
        """The module `ray`, connected to the cluster of the configuration; None without one."""
        place = self.given.placement if self.given else None
        if not place or place.backend != "ray" or place.ray_address == "local":
            return None
        from scalerl.cluster.connect import connect

        return connect(place.ray_address, "placement.ray_address")

    @cached_property
    def hosts(self) -> list[Host]:
        """The machines with their GPUs."""
        from scalerl.cluster.connect import hosts_of

        if self.ray:
            return hosts_of(self.ray)
        return [this_machine()]

    @cached_property
    def config(self) -> RunConfig:
        """The configuration with the device and the dtype that it means here."""
        gpus = sum(len(host.gpus) for host in self.hosts)
        config = self.given or RunConfig()
        if not self.given:
            config = replace(config, placement=replace(config.placement, trainer_ranks=gpus or 2))
        device = "cuda" if gpus and config.hardware.device != "cpu" else "cpu"
        if config.hardware.device == "cuda" and not gpus:
            self.problem = f"hardware.device: got 'cuda', but {self._no_gpu()}; allowed: cpu, auto"
        dtype = {"cuda": "bfloat16", "cpu": "float32"}[device]
        dtype = dtype if config.hardware.dtype == "auto" else config.hardware.dtype
        return replace(config, hardware=replace(config.hardware, device=device, dtype=dtype))

    def _no_gpu(self) -> str:
        return (
            "the Ray cluster has no GPU"
            if self.ray
            else f"torch sees no GPU on {socket.gethostname()} ({gpu_problem()})"
        )

    @cached_property
    def table(self) -> Mapping[tuple[str, int], Place]:
        """The table of devices; with too few GPUs, a trainer on each."""
        try:
            return devices(self.config, self.hosts)
        except ConfigError as error:
            self.problem = self.problem or str(error)
        gpus = [(host.name, gpu) for host in self.hosts for gpu in host.gpus]
        return {("trainer", n): Place(host, (gpu,)) for n, (host, gpu) in enumerate(gpus)} or {("trainer", 0): Place()}

    def ask(self, method: str, *arguments: Any, of: str = "first") -> list[Any]:
        """Call a method of Probes and return their answers; the processes serve the next checks, too.

        Args:
            method: Name of the method.
            arguments: Its arguments.
            of: first (trainer), all (sets of GPUs) or generator (the first). On Ray always all hosts.
        """
        return self.group(of).call(method, *arguments, timeout_s=self.limit_s)

    def group(self, of: str) -> Group:
        """Return processes that are shared by the checks; see `ask`."""
        key = "all" if self.ray else "first" if of == "all" and self.config.hardware.device == "cpu" else of
        if key not in self._groups or self._groups[key].death is not None:
            self._groups[key] = self.processes(key)
        return self._groups[key]

    def processes(self, of: str) -> Group:
        """Start Probes and wait until all are ready: trainers, or see `ask`.

        Raises:
            ProcessDied: One did not start.
        """
        if self.ray:
            return _on_hosts(self.ray, list(self.table.values()), self.limit_s)
        rows = [(f"{kind} {n + 1}", kind, at) for (kind, n), at in self.table.items() if kind != "scorer"]
        chosen = {
            "all": list({row[2].gpus: row for row in reversed(rows)}.values())[::-1],  # equal GPUs look the same
            "trainers": [row for row in rows if row[1] == "trainer"],
            "generator": [row for row in rows if row[1] == "generator"][:1],
        }
        host = socket.gethostname()
        group = Group(
            LocalRemote(_serve("127.0.0.1"), f"{host}: {name} (process {{}})", environment=at.environment)
            for name, _, at in chosen.get(of, rows[:1])
        )
        group.answers("start", self.limit_s)
        return group


def _serve(address: str) -> Any:
    return partial(serve, partial(Probe, address), PASSED)


def _on_hosts(ray: Any, rows: list[Place], limit_s: float) -> Group:
    """Start an actor on each host of the rows, with their GPUs; without GPUs, on every host of the cluster."""
    from scalerl.cluster.remote import Actor, RayRemote

    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    counts = dict.fromkeys(nodes, 0) if not any(at.gpus for at in rows) else {}
    for at in rows:
        if at.gpus:
            counts[at.host] = counts.get(at.host, 0) + len(at.gpus)
    remotes = []
    for host, count in counts.items():
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(nodes[host], soft=False)
        options = {"num_cpus": 0, "num_gpus": count, "scheduling_strategy": there}
        remotes.append(RayRemote(ray, Actor, _serve(host), f"{host} ({count} GPUs, Ray actor)", ProcessDied, options))
    group = Group(remotes)
    for remote in remotes:
        remote.placed(limit_s)
    group.answers("start", limit_s)
    return group


# ------------------------------------------------------------------------------------------------------------- checks


def versions(site: Site) -> Outcome:
    """Check the versions on every host against the supported ranges, and against each other."""
    from scalerl.rollouts.vllm.checks import check_version, installed_version

    seen: list[Seen] = site.ask("look")
    place, own = site.config.placement, seen[0].versions
    bad = [f"{one.host}: {problem}" for one in seen for problem in one.unsupported]
    for one in seen[1:]:
        for name in sorted(own.keys() | one.versions.keys()):
            here, there = own.get(name, "none"), one.versions.get(name, "none")
            if here != there:
                bad.append(f"{name} is {here} on {seen[0].host} and {there} on {one.host}; install the same everywhere")
    if place.engine == "vllm" and not place.servers and not site.ray:
        python = place.vllm_python or sys.executable
        own = {**own, "vllm": installed_version(place.vllm_python or sys.executable)}
        try:
            check_version(f"{python} on {seen[0].host}", own["vllm"])
        except ConfigError as error:
            bad.append(str(error))
    text = ", ".join(f"{name} {version}" for name, version in own.items())
    return (FAILS, "; ".join(bad)) if bad else (WORKS, text)


def gpus(site: Site) -> Outcome:
    """Check the GPUs of every process: that they are visible, free, large enough and of one model."""
    seen: list[Seen] = site.ask("look", of="all")
    table, found = site.table, [(one.host, gpu) for one in seen for gpu in one.gpus]
    bad = [site.problem] if site.problem else []
    if any(at.gpus for at in table.values()):
        bad += [f"{one.host}: torch can use no GPU: {one.problem}" for one in seen if one.problem]
    for host, gpu in found:
        if gpu.free < USABLE * gpu.total:
            bad.append(
                f"{host}: {gpu.name}: {gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB are free, runs use {USABLE:.0%}; "
                "end the other programs (`nvidia-smi` lists them)"
            )
        if site.given and gpu.total < USABLE * site.config.placement.gpu_gb * GB:
            bad.append(f"{host}: {gpu.name} has {gpu.total / GB:.0f} GB; set placement.gpu_gb = {gpu.total / GB:.0f}")
    if bad:
        return FAILS, "; ".join(dict.fromkeys(bad))
    if not found:
        return WORKS, f"the run uses the CPU of {seen[0].host}: {os.cpu_count()} cores"
    names = sorted({gpu.name for _, gpu in found})
    text = f"{len(found)} GPUs in {len(seen)} processes: {', '.join(names)}"
    return (SLOW, f"{text}; the slowest one sets the pace: use one model of GPU") if len(names) > 1 else (WORKS, text)


def learner(site: Site) -> Outcome:
    """Check an update of the model in miniature, padded, packed and with shared prompts, against float64."""
    return WORKS, site.ask("learner", site.config)[0]


def head(site: Site) -> Outcome:
    """Check the FP32 head against float64."""
    return WORKS, site.ask("head", site.config)[0]


def speed(site: Site) -> Outcome:
    """Compare a matrix product and a copy on every device with its data sheet."""
    found = [one for answer in site.ask("speed", of="all") for one in answer]
    name, flops, moved = min(found, key=lambda one: one[1])
    text = f"slowest of {len(found)} devices, {name}: {flops / 1e12:.3g} TFLOP/s, {moved / 1e12:.2g} TB/s"
    sheet = next((gpu for gpu in GPUS.values() if gpu.name in name.replace(" ", "")), None)
    if sheet is None:
        return WORKS, text
    shares = flops / sheet.flops, min(moved for _, _, moved in found) / sheet.bytes_per_s
    text += f", {shares[0]:.0%} and {shares[1]:.0%} of the data sheet of {sheet.name}"
    if min(shares) < SLOW_BELOW:
        return SLOW, f"{text}; expected at least {SLOW_BELOW:.0%}: look for a power limit or heat (`nvidia-smi -q`)"
    return WORKS, text


def network(site: Site) -> Outcome:
    """Check TCP between all hosts, then all-reduce and sending between all pairs, over NCCL or gloo."""
    if site.ray:
        return meeting(site.group("all"), site.limit_s, site.config.hardware.device, True)
    with closing(site.processes("trainers")) as group:
        return meeting(group, site.limit_s, site.config.hardware.device, False)


def meeting(group: Group, limit_s: float, device: str, hosts: bool) -> Outcome:
    """Let Probes form a process group and exchange tensors.

    Args:
        group: The processes.
        limit_s: Time limit of each step, seconds.
        device: cuda or cpu.
        hosts: Whether the processes are on different hosts.
    """
    library, variable = ("NCCL", "NCCL_SOCKET_IFNAME") if device == "cuda" else ("gloo", "GLOO_SOCKET_IFNAME")
    addresses = group.call("listen", timeout_s=limit_s)
    for address, problem in zip(addresses, group.call("reach", addresses, timeout_s=limit_s), strict=True):
        if problem:
            source = address.rpartition(":")[0]
            return FAILS, f"{source} cannot connect to {problem}: open all TCP ports between the hosts of the run"
    try:
        group.each("meet", [(addresses[0], n, len(addresses), limit_s) for n in range(len(addresses))], limit_s)
        answers = group.call("exchange", timeout_s=limit_s)
    except ProcessDied as error:
        return FAILS, (
            f"{library} between {', '.join(addresses)}: {error}. Choose the network interface with {variable}, and "
            "open all TCP ports; NCCL_DEBUG=WARN prints the reason"
        )
    reduced = min(rate for rate, _ in answers)
    pairs = [
        (rate, n, (n + shift) % len(answers))
        for n, (_, rates) in enumerate(answers)
        for shift, rate in enumerate(rates, 1)
    ]
    text = f"{library} between {len(answers)} processes: all-reduce {reduced / GB:.2g} GB/s"
    if not pairs:
        return WORKS, text
    rate, n, to = min(pairs)
    text += (
        f", slowest pair {addresses[n].rpartition(':')[0]} to {addresses[to].rpartition(':')[0]} {rate / GB:.2g} GB/s"
    )
    assumed = Assumptions(GPUS["H100"]).network
    if hosts and device == "cuda" and rate < SLOW_BELOW * assumed:
        return SLOW, f"{text}; plans assume {assumed / GB:g} GB/s: check InfiniBand or EFA and {variable}"
    return WORKS, text


def vllm(site: Site) -> Outcome:
    """Check a vLLM server with the model in miniature, or the servers given by address."""
    from scalerl.rollouts.vllm.server import wait_for_server

    if site.config.placement.servers:
        for address in site.config.placement.servers:
            wait_for_server(address, MARGIN_S)
        return (
            WORKS,
            f"{len(site.config.placement.servers)} servers answer; the run checks their settings when it starts",
        )
    return WORKS, site.ask("vllm", site.config, site.limit_s - START_S, of="generator")[0]


def disk(site: Site) -> Outcome:
    """Check free space against the checkpoints and weights of a run in ./runs, and the speed of writing there."""
    config, place = site.config, Path("runs") if os.path.isdir("runs") else Path()
    sizes = outcome(lambda: sizes_of(config).sizes)
    params = 0.0 if sizes.exception() else sizes.result().params
    needed = params * (3 * FP32 * (config.checkpoint.keep + 1) + 4 * BF16 * (config.weights == "directory"))
    free = shutil.disk_usage(place).free
    where = f"{socket.gethostname()}:{place.resolve()}"
    if free < needed:
        return FAILS, (
            f"{where}: {free / GB:.1f} GB are free; {config.checkpoint.keep + 1} checkpoints and the weights that are "
            f"sent need {needed / GB:.1f} GB. Free space, lower checkpoint.keep, or give another --run-dir"
        )
    block, began = os.urandom(1 << 20), time.monotonic()
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(WRITTEN >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    rate = WRITTEN / (time.monotonic() - began)
    text = f"{where}: {free / GB:.0f} GB free, {needed / GB:.2g} GB needed, writes {rate / GB:.2g} GB/s"
    return (SLOW, f"{text}; use a faster disk for --run-dir") if rate < SLOW_DISK else (WORKS, text)


def memory(site: Site) -> Outcome:
    """Check /dev/shm, and the memory that carries weights from the trainer to the engines."""
    config = site.config
    check_shared_memory(site.table)
    sizes = outcome(lambda: sizes_of(config).sizes)
    width = FP32 if config.hardware.dtype == "float32" else BF16
    needed = 0.0 if sizes.exception() else 4.0 * width * sizes.result().params
    needed *= config.weights in ("shared-memory", "object-store")
    if site.ray:
        room, what = site.ray.cluster_resources().get("object_store_memory", 0.0), "Ray's object store"
        cure = "start Ray with a larger --object-store-memory and /dev/shm"
    else:
        room, what, cure = _available(), f"memory of {socket.gethostname()}", "use a machine with more memory"
    if room < needed:
        return (
            FAILS,
            f"{what}: {room / GB:.1f} GB are free; four versions of the weights need {needed / GB:.1f} GB; {cure}",
        )
    shared = shutil.disk_usage("/dev/shm").free
    return WORKS, f"/dev/shm {shared / GB:.1f} GB free; {what}: {room / GB:.1f} GB free, {needed / GB:.2g} GB needed"


def _available() -> float:
    """Return the bytes of memory that this machine can give."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024.0 * int(lines["MemAvailable"].split()[0])


CHECKS: dict[str, Callable[[Site], Outcome]] = {
    "versions": versions,
    "GPUs": gpus,
    "learner": learner,
    "FP32 head": head,
    "speed": speed,
    "network": network,
    "disk": disk,
    "memory": memory,
    "vLLM": vllm,
}
"""The checks in order. To add one, write a function and an entry; its time limit and its process come with it."""


def examine(
    config: RunConfig | None, limit_s: float = LIMIT_S, vllm_s: float = VLLM_S, checks: Mapping[str, Any] = CHECKS
) -> Iterator[Finding]:
    """Run the checks and yield their findings in order.

    The checks run in a second process, one after the other, and in a new one after a crash or a time limit. The check
    of vLLM runs in a third one at the same time.

    Args:
        config: A configuration; None: the lab's, on all GPUs of this machine.
        limit_s: Time limit of each check, seconds.
        vllm_s: Time limit of the check of vLLM, seconds.
        checks: Names of the checks.
    """
    place = config.placement if config else None
    served = place is not None and place.engine == "vllm" and "vLLM" in checks
    on_ray = place is not None and place.backend == "ray" and place.ray_address != "local"
    limits = {name: vllm_s if name == "vLLM" else limit_s for name in checks if name != "vLLM" or served}
    first: Any = _start(config, vllm_s, "vLLM") if served and not on_ray else None  # on Ray, both would want the GPUs
    since, last = time.monotonic(), None
    for name, limit in limits.items():
        if name == "vLLM":
            _end(last)
            last = first or _start(config, limit, name)
        else:
            last, since = last or _start(config, limit, ""), time.monotonic()
            last.tell("check", name)
        finding = _finding(name, last, since, limit)
        last = None if last.ended() else last
        yield finding
    _end(last)


def _start(config: RunConfig | None, limit_s: float, check: str) -> Any:
    """Start a process for checks; tell it to begin one, if given."""
    remote = LocalRemote(partial(serve, partial(Site, config, limit_s), PASSED), "the check")
    remote.receive(limit_s)
    if check:
        remote.tell("check", check)
    return remote


def _end(remote: Any) -> None:
    if remote is not None:
        remote.end()


def _finding(name: str, remote: Any, began: float, limit_s: float) -> Finding:
    """Return the finding of a check that has been asked for; end its process if it has no answer."""
    kind, content = remote.answer(max(0.1, began + limit_s - time.monotonic()))
    if kind == "done":
        verdict, text = content
    else:
        reason = content if kind == "raised" else remote.death(kind, content)
        verdict, text = FAILS, " ".join(str(reason).split())
    if kind not in ("done", "raised"):
        remote.end()
    return Finding(name, verdict, text, round(time.monotonic() - began, 1))
