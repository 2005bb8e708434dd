"""Weights over NCCL, directly from the learner's GPU to those of vLLM servers, with vLLM's transfer classes.

The learner's process drives each server's update over HTTP, broadcasts the tensors, and names the version. An engine
only waits until its server reports the version (updates.py). vLLM must also be installed in the learner's environment.
Written from the source of vLLM 0.32 (`vllm/distributed/weight_transfer/`). Not tested on two GPUs; tested up to the
broadcast.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scalerl.config.base import ConfigError
from scalerl.models.layout import WeightLayout
from scalerl.rollouts.vllm.protocol import (
    FINISH_UPDATE,
    INIT_TRANSFER,
    PAUSE,
    RESUME,
    START_UPDATE,
    UPDATE,
    WORLD_SIZE,
)


class NcclChannel:
    """Sends every version to all servers at once; engines receive nothing."""

    capacity = 2
    """The version in use and one that was sent: a third would overwrite one that no engine has used yet."""

    def __init__(
        self, layout: WeightLayout, servers: Sequence[str], master_address: str = "127.0.0.1", timeout_s: float = 600.0
    ) -> None:
        """Prepare the channel; the first `send` connects to the servers.

        Args:
            layout: names, types and shapes of the model's weights.
            servers: addresses, http://host:port.
            master_address: address under which the servers' workers reach this process.
            timeout_s: seconds for one request to a server, which may include a whole transfer.
        """
        self._layout, self._servers = layout, tuple(servers)
        self._master_address, self._timeout_s = master_address, timeout_s
        self._sender: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the communicator, which engine processes do not need."""
        return {**self.__dict__, "_sender": None}

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Load a version into every server; return when all use it.

        Raises:
            ConfigError: vLLM is not installed in this environment.
            RuntimeError: a server failed; it is left paused, and the transfer group is lost.
        """
        if self._sender is None:
            self._sender = _Sender(self._layout, self._servers, self._master_address, self._timeout_s)
        self._sender.send(version, weights)

    def receive(self, version: int) -> Mapping[str, Any]:
        """Raise RuntimeError, because the weights go only into the servers' memory.

        Raises:
            RuntimeError: always.
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
            master_address=master_address,
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
            servers: addresses.
            timeout_s: seconds for one request.
        """
        import httpx

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
