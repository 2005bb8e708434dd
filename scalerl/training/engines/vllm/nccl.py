"""Weights over NCCL, directly from the learner's GPU to those of vLLM servers, with vLLM's transfer classes.

The process of trainer rank 0 drives each server's update over HTTP, broadcasts the tensors, and names the version. An
engine only waits until its server reports the version (`NcclTransfer`). vLLM must also be installed in the trainer's
environment. Written from the source of vLLM 0.32 and 0.33 (`vllm/distributed/weight_transfer/`). The tests run its code
of both sides with gloo in the place of NCCL (tests/rollouts/gloo_vllm.py). Not tested on two GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx

from scalerl.core.addresses import reserved_port
from scalerl.core.errors import ConfigError, ProcessFailure, outcome
from scalerl.core.files import write_whole
from scalerl.core.limits import SERVER_LABEL_S, TRANSFER_ABORT_S, TRANSFER_JOIN_S, TRANSFER_LEAVE_S, TRANSFER_NOTICE_S
from scalerl.training.engines.vllm.protocol import (
    FINISH_UPDATE,
    INIT_TRANSFER,
    IS_PAUSED,
    PAUSE,
    RESUME,
    SHUTDOWN_TRANSFER,
    START_UPDATE,
    UNLABELED,
    UPDATE,
    WEIGHT_INFO,
    WORLD_SIZE,
    version_of,
)
from scalerl.training.engines.weights import ServerCall, WeightChannel, WeightTransfer
from scalerl.training.models.weights import WeightLayout

BUFFER = 1 << 28
"""Bytes of one broadcast; both sides hold two of them, and a larger tensor. vLLM's default of 1 GB would need memory
that the servers' cache takes."""
SPARE = 0.9
"""Share of the time limit that this process uses: the loop ends it at the limit, and does not know the servers."""
MOST_FAILURES = 3
"""Transfers in a row in which a server failed, after which the run ends."""
UNABLE, PROBLEM, SENDING = "unable", "problem", "sending"
"""Files next to the servers' addresses: servers that cannot join a group until they are restarted; why a transfer
failed; a transfer is under way. The loop's process reads the first two, the engines the third."""
LOOK_S = 1.0
"""Seconds between two looks for SENDING: the directory may be on a network."""


class ServerFailed(ProcessFailure):
    """A server died or failed in a transfer; the others have no complete weights."""


class NcclChannel(WeightChannel):
    """Sends every version to all servers at once; engines receive nothing.

    Each engine writes the address of its server into a directory when the server is ready, and removes it when it ends.
    """

    capacity = 2
    """The version in use and one that was sent: a third would overwrite one that no engine has used yet."""
    into_engines = True

    def __init__(
        self, layout: WeightLayout, directory: Path, master_address: str = "", timeout_s: float = 600.0
    ) -> None:
        """Prepare the channel; the first `send` connects to the servers.

        Args:
            layout: Names, types and shapes of the model's weights.
            directory: Directory for the addresses, which all processes see; addresses of an earlier run are removed.
            master_address: Address under which the servers' workers reach the process that sends; empty: the address
                of its interface that routes to them.
            timeout_s: Seconds after which the caller ends a process that sends.
        """
        self._layout, self._directory = layout, directory.absolute()  # actors have other current directories
        self._master_address, self._timeout_s = master_address, timeout_s
        self._sender: Any = None
        self._asked_at, self._failures = 0.0, 0
        self._looked_at, self._sending = -math.inf, False
        directory.mkdir(parents=True, exist_ok=True)
        for left in (*directory.glob("server_*"), directory / UNABLE, directory / PROBLEM, directory / SENDING):
            left.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the communicator, which engine processes do not need."""
        return {**self.__dict__, "_sender": None}

    def announce(self, number: int, address: str) -> None:
        """Record the address of an engine's server, http://host:port; empty: it has ended (engine's side)."""
        file = self._directory / f"server_{number}"
        if address:
            write_whole(file, address)
        else:
            file.unlink(missing_ok=True)

    def send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        """Load a version into every server that answers; return when all use it.

        A server that is away gets the weights when it is back (`lost`). If one came or went, all join a new group. If
        one fails during the transfer, the others get no complete weights and stay paused, until the caller has seen
        this from `lost` and sends again.

        Raises:
            ConfigError: vLLM is not installed in this environment, no server answers, or one cannot join.
            RuntimeError: A server hangs, or servers failed in `MOST_FAILURES` transfers in a row.
        """
        write_whole(self._directory / SENDING, str(version))
        try:
            self._send(version, weights)
        finally:
            (self._directory / SENDING).unlink(missing_ok=True)

    def sending(self) -> bool:
        """Return whether a transfer is under way (engine's side).

        Between transfers, a server without weights waits for the trainer, whose update may take longer than any time
        limit of a transfer.
        """
        now = time.monotonic()
        if now - self._looked_at > LOOK_S:
            self._looked_at, self._sending = now, (self._directory / SENDING).exists()
        return self._sending

    def _send(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        limit_s = SPARE * self._timeout_s
        until = time.monotonic() + limit_s
        while not (labels := self._labels()):
            if time.monotonic() > until:
                raise ConfigError(f"vllm: no server answered for {limit_s:g} s; see its log in the run directory")
            time.sleep(0.5)
        if self._sender is not None and (tuple(labels) != self._sender.servers or UNLABELED in labels.values()):
            self.close()
        rest = iter(weights)
        try:
            if self._sender is None:
                self._sender = _Sender(self._layout, self._able(labels), self._master_address, limit_s)
            self._sender.send(version, rest, until - time.monotonic())
        except ServerFailed as error:
            self._fail(error)
            for _ in rest:  # the other ranks gather them together with this one
                pass
        else:
            self._failures = 0

    def _able(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the servers that have left their earlier group; the others wait to be restarted."""
        unable = [address for address in labels if not leave_group(address)]
        write_whole(self._directory / UNABLE, "\n".join(unable))
        if len(unable) == len(labels):
            raise ServerFailed(f"the vLLM servers {', '.join(unable)} do not leave their transfer group")
        return tuple(address for address in labels if address not in unable)

    def _fail(self, error: ServerFailed) -> None:
        self.close()
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise RuntimeError(f"{error}; {self._failures} transfers in a row failed") from None
        write_whole(self._directory / PROBLEM, str(error))

    def lost(self) -> str:
        """Return why a server does not have the latest weights, or nothing; asks the servers every few seconds."""
        problem = self._directory / PROBLEM
        with contextlib.suppress(FileNotFoundError):
            text = problem.read_text(encoding="utf-8")
            problem.unlink()
            return text
        if time.monotonic() - self._asked_at < SERVER_LABEL_S:
            return ""
        labels = set(self._labels().values())
        self._asked_at = time.monotonic()
        return "a vLLM server has started" if UNLABELED in labels or len(labels) > 1 else ""

    def _labels(self) -> dict[str, str]:
        """Return the label of the weights of every server that answers, by its address, in the engines' order.

        Without those that cannot join a group until they are restarted.
        """
        unable, addresses = list[str](), list[str]()
        with contextlib.suppress(FileNotFoundError):
            unable = (self._directory / UNABLE).read_text(encoding="utf-8").split()
        for file in sorted(self._directory.glob("server_*")):
            with contextlib.suppress(FileNotFoundError):  # it is ending
                addresses.append(file.read_text(encoding="utf-8").rstrip("/"))
        if not addresses:
            return {}
        with ThreadPoolExecutor(len(addresses)) as threads:  # the trainer waits for the slowest, not for the sum
            labels = dict(zip(addresses, threads.map(_label, addresses), strict=True))
        return {
            address: label
            for address, label in labels.items()
            if label is not None and (address not in unable or label == UNLABELED)
        }

    def receive(self, version: int) -> Mapping[str, Any]:
        """Raise RuntimeError, because the weights go only into the servers' memory.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("weights sent over NCCL cannot be received again; use rollouts.weights = 'directory'")

    def drop(self, version: int) -> None:
        """Do nothing: a server holds one version."""

    def transfer(self, engine: int) -> WeightTransfer:
        """Return the client that waits until its server has a version."""
        return NcclTransfer()

    def close(self) -> None:
        """Leave the transfer group."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None


class NcclTransfer(WeightTransfer):
    """The learner's process sends the weights; the engine's client only waits for them."""

    backend = "nccl"

    async def apply(self, call: ServerCall, version: int, stored: None) -> None:
        """Poll the server until it has the version; the restarter replaces an engine that waits too long."""
        while version_of((await call("GET", WEIGHT_INFO))["weight_version"]) < version:
            await asyncio.sleep(0.05)


def _label(address: str) -> str | None:
    """Return the label of a server's weights; None if it does not answer."""
    try:
        answer = httpx.get(address + WEIGHT_INFO, timeout=SERVER_LABEL_S, trust_env=False)
    except httpx.TransportError:  # it is ending, or away
        return None
    return str(answer.json()["weight_version"]) if answer.status_code == 200 else None


class _Sender:
    """The objects in the learner's process: vLLM's trainer engine, its weight source, and its client."""

    def __init__(self, layout: WeightLayout, servers: Sequence[str], master_address: str, limit_s: float) -> None:
        try:
            from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
        except ImportError as error:
            raise ConfigError(
                f"rollouts.weights: got 'nccl', which needs vLLM in the trainer's environment too ({error}); install "
                "it there, or use 'directory'"
            ) from None
        self.servers = servers
        self._engine: Any = None
        self._client = ServersClient(servers, limit_s)
        self._source = weight_source(layout)
        with reserved_port() as port:
            info = NCCLTrainerInitInfo(
                rank=0,
                master_address=master_address or address_towards(servers),
                master_port=port,
                world_size=1 + sum(self._client.world_sizes),
                packed_buffer_size_bytes=BUFFER,
            )
            begin = partial(WeightTransferTrainerFactory.trainer_init, info, client=self._client, source=self._source)
            late = ConfigError(
                f"to join it over NCCL at {info.master_address}:{info.master_port}; allow all TCP ports between the "
                "hosts (firewall), set placement.trainer_address to an address that they reach, or use "
                "rollouts.weights = 'directory'"
            )
            self._engine = self._limited(begin, min(TRANSFER_JOIN_S, limit_s), late)

    def send(self, version: int, weights: Iterator[tuple[str, Any]], limit_s: float) -> None:
        self._client.version = version
        self._source.weights = weights
        late = RuntimeError(f"to receive version {version} of the weights over NCCL; see their logs")
        finish_kernels()
        self._limited(self._engine.send_weights, limit_s, late)

    def _limited(self, call: Callable[[], Any], limit_s: float, late: Exception) -> Any:
        """Call vLLM in a thread, which NCCL may block forever, and return the result.

        Raises:
            ServerFailed: A server failed; a transfer has ended.
            RuntimeError: A server failed, but the transfer does not end.
            Exception: `late`, completed by the processes: it took too long. Or the call's own exception.
        """
        done: Future[Any] = Future()
        Thread(target=outcome, args=(call, done), name="weights", daemon=True).start()
        wait((done, self._client.failure), max(0.0, limit_s), FIRST_COMPLETED)
        if done.done() and done.exception() is not None:
            wait((self._client.failure,), TRANSFER_NOTICE_S)
        if self._client.failure.done():
            self._client.close()
            text = str(self._client.failure.exception())
            if self._engine is not None:  # otherwise it joins, with no weights under way
                self._engine.shutdown()  # aborts NCCL, in which the call may wait for the server
                if not wait((done,), TRANSFER_ABORT_S).done:
                    raise RuntimeError(f"{text}; the transfer does not end, because NCCL waits for the server")
            raise ServerFailed(text)
        if not done.done():
            self._client.close()
            raise type(late)(
                f"rollouts.weights: process {os.getpid()} of trainer rank 1 on {socket.gethostname()} waited "
                f"{limit_s:.0f} s for the vLLM servers {', '.join(self.servers)} {late}"
            )
        return done.result()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._client.close()


def finish_kernels() -> None:
    """Wait until the device has computed everything that this process has given it.

    vLLM reads the weights in another thread, on streams of its own, and nothing else orders those after the kernels of
    the optimizer. At its end it waits for its streams itself, so that the next update changes no weight too early.
    """
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def leave_group(address: str) -> bool:
    """Let a server leave an earlier transfer group, and end an update that was not finished; return whether it did."""
    with httpx.Client(base_url=address, timeout=TRANSFER_LEAVE_S, trust_env=False) as client:
        try:
            if client.get(IS_PAUSED).json().get("is_paused"):
                # fails if no update is open; vLLM closes the connection then
                client.post(FINISH_UPDATE, json={}, headers={"connection": "close"})
            return client.post(SHUTDOWN_TRANSFER).status_code == 200
        except (httpx.TransportError, ValueError):  # it does not answer, or is ending
            return False


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
        self.failure: Future[None] = Future()
        """Gets the first error of a server."""
        self._clients = [httpx.Client(base_url=s, timeout=timeout_s, trust_env=False) for s in servers]
        self._threads = ThreadPoolExecutor(len(self._clients))
        try:
            answers = [client.get(WORLD_SIZE).raise_for_status() for client in self._clients]
        except httpx.HTTPError as error:
            self.close()
            raise ServerFailed(f"a vLLM server of {', '.join(servers)}: {error or type(error).__name__}") from None
        self.world_sizes = [answer.json()["world_size"] for answer in answers]

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
        self._threads.shutdown(wait=False)
        for client in self._clients:
            client.close()

    def _all(self, path: str, bodies: Sequence[Any] = ()) -> None:
        """Send a request to all servers in parallel, because they wait for each other inside NCCL."""

        def post(client: Any, body: Any) -> None:
            response = client.post(path, json=body)
            if response.status_code != 200:
                raise RuntimeError(f"POST {path} failed with {response.status_code}: {response.text[:500]}")

        pairs = zip(self._clients, bodies or [None] * len(self._clients), strict=True)
        client_of = {self._threads.submit(post, client, body): client for client, body in pairs}
        for done in as_completed(client_of):
            if error := done.exception():
                failure = ServerFailed(
                    f"the vLLM server at {client_of[done].base_url}: {error or type(error).__name__}"
                )
                if not self.failure.done():
                    self.failure.set_exception(failure)
                raise failure


def address_towards(servers: Sequence[str]) -> str:
    """Return the address of this machine's interface that routes to the servers; loopback only if all are local."""
    addresses = []
    for server in servers:
        parts = urlsplit(server)
        family, kind, _, _, target = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing, because it is UDP
            addresses.append(str(probe.getsockname()[0]))
    return next((address for address in addresses if not ipaddress.ip_address(address).is_loopback), addresses[0])


def weight_source(layout: WeightLayout) -> Any:
    """Return a vLLM `WeightSource` over its attribute `weights`: (name, tensor) pairs in the layout's order.

    Until 0.32, vLLM calls `metadata()` and iterates over the source. From 0.33 on, it reads the property `metadata`,
    which must be cached, and calls `iter_full`.
    """
    import torch
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    places = [ParamMeta(place.name, getattr(torch, place.dtype), place.shape) for place in layout.places]

    class Source(WeightSource):  # type: ignore[misc]
        weights: Iterable[tuple[str, Any]] = ()

        if hasattr(WeightSource, "iter_full"):

            @cached_property
            def metadata(self) -> list[Any]:
                return places

        else:

            def metadata(self) -> list[Any]:
                return places

        def iter_full(self) -> Iterator[tuple[str, Any]]:
            return iter(self.weights)

        __iter__ = iter_full

    return Source()
