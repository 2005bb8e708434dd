"""The coordinator as a Ray actor, connected to the trainer over a mutually authenticated TCP connection."""

from __future__ import annotations

import os
import secrets
import socket
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from scalerl.cluster.connect import STARTED_S, last_line
from scalerl.core.errors import ConfigError
from scalerl.rollouts.weights import WeightChannel
from scalerl.rollouts.worker import Build, First, serve


class CoordinatorActor:
    """Runs the coordinator's message loop."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def open(self) -> tuple[str, int]:
        """Listen on the node's address; return host and port."""
        import ray

        self._listener = Listener((ray.util.get_node_ip_address(), 0), authkey=self._key)
        host, port = self._listener.address
        return str(host), int(port)

    def run(self, channel: WeightChannel, build: Build, first: First) -> None:
        """Accept the connection, and run the message loop (`serve` in rollouts/worker.py) until a stop message."""
        connection = self._listener.accept()
        self._listener.close()
        send_at_once(connection)
        serve(connection, channel, build, first)


class RayWorker:
    """The trainer's handle of the coordinator actor; implements WorkerHandle (rollouts/spawned.py)."""

    def __init__(self, ray: Any, channel: WeightChannel, build: Build, first: First) -> None:
        """Start the actor and connect to it.

        Raises:
            ConfigError: The cluster lacks resources.
        """
        self._ray, self.name = ray, "the coordinator (Ray actor)"
        key = secrets.token_bytes(32)
        self._actor = ray.remote(num_cpus=0, max_restarts=0)(CoordinatorActor).remote(key)
        try:
            address = ray.get(self._actor.open.remote(), timeout=STARTED_S)
        except ray.exceptions.RayError as error:
            raise ConfigError(f"{self.name} could not be started on the cluster: {last_line(error)}") from None
        self._run = self._actor.run.remote(channel, build, first)
        self.connection: Connection = Client(address, authkey=key)
        send_at_once(self.connection)

    def obituary(self) -> str:
        """Return a description of how the actor ended."""
        try:
            self._ray.get(self._run, timeout=5)
        except self._ray.exceptions.RayError as error:
            return f"{self.name} ended: {last_line(error)}"
        return f"{self.name} ended"

    def end(self, wait_s: float) -> None:
        """Wait up to `wait_s` for the actor to finish, then kill it."""
        self._ray.wait([self._run], timeout=wait_s)
        self._ray.kill(self._actor)
        self.connection.close()


def send_at_once(connection: Connection) -> None:
    """Disable Nagle's algorithm: a second small message would wait for the acknowledgment of the first."""
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
