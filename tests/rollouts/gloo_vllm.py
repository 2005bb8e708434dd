"""vLLM's classes for weights over NCCL with gloo in the place of NCCL, and a server whose workers use them.

As programs: `gloo_vllm.py serve HOST PORT FILE` runs a server that writes the weights that it receives to FILE;
`gloo_vllm.py send ADDRESS` sends version 3 to it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fake_vllm import FakeVllm, Handler

LIMIT = timedelta(seconds=20)


def join(address: str, port: int, rank: int, size: int) -> Any:
    """Join a group as vLLM does: rank 0 listens on the address, the others connect to it."""
    listen = {}
    if rank == 0:
        listening = socket.create_server((address, port))
        listen = {"master_listen_fd": listening.detach()}
    store = dist.TCPStore(address, port, size, rank == 0, LIMIT, use_libuv=False, **listen)
    return dist.ProcessGroupGloo(store, rank, size, LIMIT)


@dataclass
class InitInfo:
    """Stands for NCCLTrainerInitInfo."""

    rank: int
    master_address: str
    master_port: int
    world_size: int
    packed_buffer_size_bytes: int


class Trainer:
    """Stands for NCCLTrainerWeightTransferEngine, which follows the same order of requests and broadcasts."""

    @classmethod
    def trainer_init(cls, info: InitInfo, *, client: Any, source: Any) -> Trainer:
        made = cls()
        made.client, made.source = client, source
        where = {"master_address": info.master_address, "master_port": info.master_port}
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(
                client.init_weight_transfer_engine, {**where, "rank_offset": 1, "world_size": info.world_size}
            )
            made.group = join(info.master_address, info.master_port, 0, info.world_size)
            asked.result()
        return made

    def send_weights(self) -> None:
        places = [(meta.name, str(meta.dtype)[6:], list(meta.shape)) for meta in self.source.metadata()]
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(self.client.update_weights, {"places": places})
            for _, tensor in self.source:
                self.group.broadcast(tensor.contiguous(), 0).wait()
            asked.result()
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        self.group = None


class WorkerHandler(Handler):
    """The routes for weights, with one worker in a group."""

    def on_init_weight_transfer_engine(self, body: dict) -> None:
        info = body["init_info"]
        self.fake.bodies.append(body)
        try:
            self.fake.group = join(info["master_address"], info["master_port"], info["rank_offset"], info["world_size"])
        except (RuntimeError, dist.DistError) as error:
            return self.answer(500, {"error": str(error)[:300]})
        self.answer(200, {})

    def on_shutdown_weight_transfer_engine(self, body: dict | None) -> None:
        if self.fake.stuck:
            time.sleep(30.0)  # its workers wait inside NCCL
        assert not self.fake.partial, "vLLM does not leave a group during an update"
        self.fake.group = None
        self.answer(200, {})

    def on_update_weights(self, body: dict) -> None:
        got = {}
        for name, dtype, shape in body["update_info"]["places"]:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            try:
                self.fake.group.broadcast(tensor, 0).wait()
            except RuntimeError as error:
                return self.answer(500, {"error": str(error)[:300]})
            got[name] = tensor.tolist()
        master = self.fake.bodies[-1]["init_info"]["master_address"]
        Path(self.fake.file).write_text(json.dumps({"weights": got, "master": master}))
        self.answer(200, {})


def install(modules: Any = sys.modules) -> None:
    """Make the classes importable under vLLM's names."""
    parent = "vllm.distributed.weight_transfer"
    base, engine, factory = (types.ModuleType(f"{parent}.{name}") for name in ("base", "nccl_engine", "factory"))
    base.ParamMeta = lambda name, dtype, shape: types.SimpleNamespace(name=name, dtype=dtype, shape=shape)
    base.WeightSource, engine.NCCLTrainerInitInfo, factory.WeightTransferTrainerFactory = object, InitInfo, Trainer
    packages = [types.ModuleType(name) for name in ("vllm", "vllm.distributed", parent)]
    modules.update({module.__name__: module for module in (*packages, base, engine, factory)})


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    return [("a", torch.full((2, 3), float(version))), ("b", torch.arange(4).to(torch.bfloat16) * version)]


def channel_to(*servers: str, **options: Any) -> Any:
    """Return a channel for `weights`, over gloo, whose servers have been announced."""
    from scalerl.models.weights import WeightLayout
    from scalerl.rollouts.vllm.nccl import NcclChannel

    channel = NcclChannel(WeightLayout.of(weights(0)), Path(tempfile.mkdtemp(prefix="servers-")), **options)
    for number, address in enumerate(servers):
        channel.announce(number, address)
    return channel


@dataclass
class Sender:
    """The learner of one rank, whose send sends `weights`; made inside the process of the rank."""

    kills: int = 0
    """Process that dies between the two tensors of version 2."""

    def __call__(self) -> Sender:
        install()
        return self

    def send(self, version: int, channel: Any) -> None:
        channel.send(version, self.weights(version))

    def weights(self, version: int) -> Iterator[tuple[str, torch.Tensor]]:
        for number, pair in enumerate(weights(version)):
            if number == 1 and version == 2 and self.kills:
                os.kill(self.kills, signal.SIGKILL)
                self.kills = 0
            yield pair


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        with FakeVllm(int(sys.argv[3]), host=sys.argv[2], handler=WorkerHandler) as server:
            server.file, server.stuck = sys.argv[4], "stuck" in sys.argv
            signal.signal(signal.SIGUSR1, lambda *_: setattr(server, "stuck", True))
            print(server.address, flush=True)
            threading.Event().wait()
    install()
    channel_to(sys.argv[2], timeout_s=40.0).send(3, weights(3))
    print("sent", flush=True)
