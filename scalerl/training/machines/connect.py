"""Connects to a Ray cluster and checks its resources."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection, Mapping
from typing import Any

from scalerl.core.child_signals import same_handlers
from scalerl.core.errors import ConfigError
from scalerl.core.limits import NODE_ANSWER_S, TCP_CONNECT_S
from scalerl.training.placement.devices import Host, shared_free


def connect(address: str, asked_by: str) -> Any:
    """Connect this process to a cluster; return the module `ray`.

    Args:
        address: Argument of `ray.init`: "auto", "local" (a new cluster on this machine) or HOST:PORT.
        asked_by: Option or field that requests the cluster, for messages.

    Raises:
        ConfigError: Ray is not installed, or no cluster answers.
    """
    # an actor without GPUs sees none; Ray's default is to let it see those of the process that started Ray
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # Ray prints colored lines of its raylets into the display; errors of the run give the reasons
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that this process starts reports its use
    try:
        import ray
    except ImportError:
        raise ConfigError(f"{asked_by} needs Ray here and on the cluster: pip install 'scalerl[ray]'") from None
    if ray.is_initialized():
        return ray
    _check_port(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address, asked_by)
    directory = os.getcwd()
    enter = {"worker_process_setup_hook": lambda: os.chdir(directory if os.path.isdir(directory) else ".")}
    options: dict[str, Any] = {"runtime_env": enter}
    if address == "local":
        options["include_dashboard"] = False
    try:
        os.chdir(os.sep)  # Ray puts the current directory first on the path of its workers
        with same_handlers():  # Ray's handler of SIGTERM ends this process at once, without a checkpoint
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{asked_by} {address}: no cluster answers there ({reason}); start one with `ray start --head`, or let "
            "the run start one on this machine with `local`"
        ) from None
    finally:
        os.chdir(directory)
    return ray


def hosts_of(ray: Any) -> list[Host]:
    """Return the nodes of the cluster with their GPUs."""
    nodes = [
        (node["NodeManagerAddress"], int(node["Resources"].get("GPU", 0))) for node in ray.nodes() if node["Alive"]
    ]
    return [Host(address, tuple(map(str, range(count)))) for address, count in nodes]


def shared_memory(ray: Any, hosts: Collection[str]) -> dict[str, int]:
    """Return the free bytes of /dev/shm on nodes of the cluster; a node that does not answer in time is left out."""
    measure = ray.remote(shared_free)
    hosts_of_tasks = {measure.options(num_cpus=0, resources={f"node:{host}": 0.001}).remote(): host for host in hosts}
    done, late = ray.wait(list(hosts_of_tasks), num_returns=len(hosts_of_tasks), timeout=NODE_ANSWER_S)
    for task in late:
        ray.cancel(task, force=True)
    return {hosts_of_tasks[task]: ray.get(task) for task in done}


def _check_port(address: str, asked_by: str) -> None:
    """Raise if nothing listens at HOST:PORT: Ray would retry for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=TCP_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"{asked_by} {address}: no cluster answers there ({error}); give the address that `ray start --head` "
            "prints, or `local` for a cluster on this machine"
        ) from None


def check_resources(ray: Any, needs: Mapping[str, float], what: str) -> None:
    """Check that a cluster has the required cores and GPUs.

    Raises:
        ConfigError: It has fewer; the message begins with `what`.
    """
    have = ray.cluster_resources()
    short = [name for name, need in needs.items() if need > have.get(name, 0.0) + 1e-6]
    if short:
        needed, got = (
            " and ".join(f"{source.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU")) for source in (needs, have)
        )
        raise ConfigError(
            f"{what} need {needed}; the cluster has {got}. Lower trainer_ranks or generators, or add nodes"
        )


def last_line(error: BaseException) -> str:
    """Return the reason of a Ray error: the last non-empty line of the remote traceback, without Ray's advice."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].split(" Worker exit type")[0] if lines else type(error).__name__
