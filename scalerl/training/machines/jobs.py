"""Runs the processes of a study as tasks on a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.core.child_signals import environment_of_run
from scalerl.training.machines.connect import check_resources, connect


class RayJob:
    """A task on a Ray cluster."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def poll(self) -> int | None:
        """Return the exit code; None while it runs; 1 if the task was lost with its node."""
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            return int(self._ray.get(self._reference))
        except self._ray.exceptions.RayError:
            return 1

    def terminate(self) -> None:
        """Interrupt the task, which sends SIGTERM to its process."""
        self._ray.cancel(self._reference)


class RayWorkers:
    """Tasks on a Ray cluster whose nodes share the file system of the study and have scalerl installed."""

    def __init__(
        self, address: str, count: int, cpus: float, gpus: float, actors: Mapping[str, float] | None = None
    ) -> None:
        """Connect to a cluster.

        Args:
            address: Argument of `ray.init`: "auto", "local", or HOST:PORT.
            count: Number of parallel tasks; 0: as many as fit on the cluster.
            cpus: Cores per run.
            gpus: Number of GPUs per run.
            actors: Cores (CPU) and GPUs of the actors of a run. The number of tasks leaves room for them, because runs
                that occupy the whole cluster would wait for their actors forever.

        Raises:
            ConfigError: Ray is not installed, or the cluster does not answer or is too small for one run.
        """
        self._ray = ray = connect(address, "--ray")
        have, actors = ray.cluster_resources(), actors or {}
        needs = {"CPU": cpus + actors.get("CPU", 0.0), "GPU": gpus + actors.get("GPU", 0.0)}
        check_resources(ray, needs, f"--ray {address}: a run and its actors")
        room = min((have.get(name, 0.0) // need for name, need in needs.items() if need), default=1.0)
        self.count = max(1, int(min(room, count or room)))
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_to_its_end)

    def start(self, command: Sequence[str], log: Path) -> RayJob:
        """Submit a task."""
        return RayJob(self._ray, self._task.remote(list(command), str(log), os.getcwd()))


def run_to_its_end(command: list[str], log: str, directory: str) -> int:
    """Run a process on the node of the task; if the task is interrupted, the process gets SIGTERM."""
    with open(log, "ab") as out:
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env=environment_of_run(),
        )  # fmt: skip
        try:
            while process.poll() is None:
                time.sleep(0.2)  # not wait(): Ray's interrupt takes effect between two instructions, not inside a call
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
        return process.wait()
