"""Weights over NCCL, directly from the learner's GPU to those of vLLM servers, with vLLM's transfer classes.

The process of trainer rank 0 drives each server's update over HTTP, broadcasts the tensors, and names the version. An
engine only waits until its server reports the version (updates.py). vLLM must also be installed in the trainer's
environment. Written from the source of vLLM 0.32 (`vllm/distributed/weight_transfer/`). Not tested on two GPUs; tested
up to the broadcast, and between two networks with gloo in the place of NCCL.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx

from scalerl.core.errors import ConfigError
from scalerl.models.weights import WeightLayout
from scalerl.rollouts.vllm.protocol import (
    FINISH_UPDATE,
    INIT_TRANSFER,
    PAUSE,
    RESUME,
    START_UPDATE,
    UNLABELED,
    UPDATE,
    WEIGHT_INFO,
    WORLD_SIZE,
)
from scalerl.rollouts.vllm.server import wait_for_server

ASK_S = 5.0
"""Seconds between two questions whether a server was restarted, and time limit of an answer."""


class NcclChannel:
    """Sends every version to all servers at once; engines receive nothing."""

    capacity = 2
    """The version in use and one that was sent: a third would overwrite one that no engine has used yet."""

    def __init__(
        self, layout: WeightLayout, servers: Sequence[str], master_address: str = "", timeout_s: float = 600.0
    ) -> None:
        """Prepare the channel; the first `send` connects to the servers.

        Args:
            layout: Names, types and shapes of the model's weights.
            servers: Addresses, http://host:port.
            master_address: Address under which the servers' workers reach the process that sends; empty: the address
                of its interface that routes to them.
            timeout_s: Seconds that a server may be away, and seconds for one request, which may include a whole
                transfer. The caller must end a process whose transfer takes longer, because NCCL waits forever.
        """
        self._layout, self._servers = layout, tuple(servers)
        self._master_address, self._timeout_s = master_address, timeout_s
        self._sender: Any = None
        self._asked_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the communicator, which engine processes do not need."""
        return {**self.__dict__, "_sender": None}

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Load a version into every server; return when all use it.

        Waits for servers that are away. If one was restarted, all servers join a new transfer group.

        Raises:
            ConfigError: vLLM is not installed in this environment, or a server is away for too long.
            RuntimeError: A server failed; it is left paused, and the transfer group is lost.
        """
        until = time.monotonic() + self._timeout_s
        for server in self._servers:
            wait_for_server(server, max(0.0, until - time.monotonic()))
        if self._restarted():
            self.close()
        if self._sender is None:
            self._sender = _Sender(self._layout, self._servers, self._master_address, self._timeout_s)
        self._sender.send(version, weights)

    def lost(self) -> bool:
        """Return whether a server was restarted and waits for weights; asks the servers every few seconds."""
        if time.monotonic() - self._asked_at < ASK_S:
            return False
        found = self._restarted()
        self._asked_at = time.monotonic()
        return found

    def _restarted(self) -> bool:
        """Return whether a server has the weights that it started with; a server that does not answer is not asked."""
        for server in self._servers:
            try:
                answer = httpx.get(server.rstrip("/") + WEIGHT_INFO, timeout=ASK_S, trust_env=False)
            except httpx.TransportError:
                continue
            if answer.status_code == 200 and answer.json()["weight_version"] == UNLABELED:
                return True
        return False

    def receive(self, version: int) -> Mapping[str, Any]:
        """Raise RuntimeError, because the weights go only into the servers' memory.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("weights sent over NCCL cannot be received again; use rollouts.weights = 'directory'")

    def drop(self, version: int) -> None:
        """Do nothing: a server holds one version."""

    def close(self) -> None:
        """Leave the transfer group."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None


class _Sender:
    """The objects in the learner's process: vLLM's trainer engine, its weight source, and its client."""

    def __init__(self, layout: WeightLayout, servers: Sequence[str], master_address: str, timeout_s: float) -> None:
        try:
            from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
        except ImportError as error:
            raise ConfigError(
                f"rollouts.weights: got 'nccl', which needs vLLM in the trainer's environment too ({error}); install "
                "it there, or use 'directory'"
            ) from None
        self._client = ServersClient(servers, timeout_s)
        self._source = weight_source(layout)
        info = NCCLTrainerInitInfo(
            rank=0,
            master_address=master_address or address_towards(servers),
            master_port=_free_port(),
            world_size=1 + sum(self._client.world_sizes),
        )
        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=self._client, source=self._source)

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        self._client.version = version
        self._source.weights = weights
        self._engine.send_weights()

    def close(self) -> None:
        self._engine.shutdown()
        self._client.close()


class ServersClient:
    """Implements vLLM's `VLLMWeightSyncClient` protocol for several servers, which are updated together.

    vLLM's own HTTP client supports one server and no versions. While weights are loaded, a server is paused and keeps
    the keys and values of its running sequences.
    """

    def __init__(self, servers: Sequence[str], timeout_s: float) -> None:
        """Get each server's number of workers.

        Args:
            servers: Addresses.
            timeout_s: Seconds for one request.
        """
        self.version = 0
        """Version that the next update names."""
        self._clients = [httpx.Client(base_url=s, timeout=timeout_s, trust_env=False) for s in servers]
        self._threads = ThreadPoolExecutor(len(self._clients))
        self.world_sizes = [client.get(WORLD_SIZE).raise_for_status().json()["world_size"] for client in self._clients]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let all workers join the transfer group; ranks are assigned to the servers in order."""
        first, bodies = int(init_info["rank_offset"]), []
        for size in self.world_sizes:
            bodies.append({"init_info": {**init_info, "rank_offset": first}})
            first += size
        self._all(INIT_TRANSFER, bodies)

    def start_weight_update(self) -> None:
        """Pause the servers and prepare them."""
        self._all(PAUSE)
        self._all(START_UPDATE)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Let the servers receive the weights; return when they have."""
        self._all(UPDATE, [{"update_info": update_info}] * len(self._clients))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Name the version and resume the servers."""
        label = str(self.version) if weight_version is None else weight_version
        self._all(FINISH_UPDATE, [{"weight_version": label}] * len(self._clients))
        self._all(RESUME)

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        for client in self._clients:
            client.close()

    def _all(self, path: str, bodies: Sequence[Any] = ()) -> None:
        """Send a request to all servers in parallel, because they wait for each other inside NCCL."""

        def ask(client: Any, body: Any) -> None:
            response = client.post(path, json=body)
            if response.status_code != 200:
                raise RuntimeError(
                    f"the vLLM server at {client.base_url}: POST {path} failed with {response.status_code}: "
                    f"{response.text[:500]}"
                )

        for done in [
            self._threads.submit(ask, client, body)
            for client, body in zip(self._clients, bodies or [None] * len(self._clients), strict=True)
        ]:
            done.result()


def address_towards(servers: Sequence[str]) -> str:
    """Return the address of this machine's interface that routes to the servers; loopback only if all are local."""
    found = []
    for server in servers:
        parts = urlsplit(server)
        family, kind, _, _, target = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing, because it is UDP
            found.append(str(probe.getsockname()[0]))
    return next((address for address in found if not ipaddress.ip_address(address).is_loopback), found[0])


def weight_source(layout: WeightLayout) -> Any:
    """Return a vLLM `WeightSource` over its attribute `weights`: (name, tensor) pairs in the layout's order."""
    import torch
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):  # type: ignore[misc]
        weights: Iterable[tuple[str, Any]] = ()

        def metadata(self) -> list[Any]:
            return [ParamMeta(place.name, getattr(torch, place.dtype), place.shape) for place in layout.places]

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            return iter(self.weights)

    return Source()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
