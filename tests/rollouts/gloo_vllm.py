"""vLLM's own code for weights over NCCL on CPU: gloo takes the place of the communicator, and streams do nothing.

Trainer and worker run vLLM's classes, its packed tensors, its rendezvous and its messages. Real servers load it through
gloo_worker.py, trainers call `replace` if vLLM is installed and `use` otherwise. As a program, with vLLM's worker-side
engine behind the routes of the fake server:

    gloo_vllm.py serve SOURCE HOST PORT FILE     writes the weights that it receives to FILE

SOURCE is a directory with vLLM's Python files in `vllm/`: only those of the transfer are loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=20)
TRANSFER = "vllm.distributed.weight_transfer"
LOADED = ("base", "factory", "nccl_common", "nccl_engine", "packed_tensor")
"""vLLM's modules of the transfer over NCCL."""
BUFFER = 24
"""Bytes of a packed buffer in tests: the tensors of `weights` need two."""

# ------------------------------------------------------------------------------- what is replaced, in any process


class Gloo:
    """Stands for PyNcclCommunicator, over the rendezvous that vLLM has made."""

    def __init__(self, group: Any, device: Any) -> None:
        store = dist.PrefixStore("gloo", group.store)
        self._group = dist.ProcessGroupGloo(store, group.rank, group.world_size, LIMIT)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        self._group.broadcast(torch.Tensor.as_subclass(tensor, torch.Tensor), src).wait()

    def destroy(self) -> None:
        self._group = None


class Stream:
    """Stands for streams and events of a device: everything has happened when it was called."""

    def __init__(self, device: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def record(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...


class Buffer(torch.Tensor):
    """A tensor on the CPU that takes streams."""

    def record_stream(self, stream: Any) -> None: ...


class Torch:
    """torch as vLLM's transfer sees it."""

    Event = Stream
    cuda = types.SimpleNamespace(
        Stream=Stream, stream=contextlib.nullcontext, current_stream=Stream, is_available=lambda: False
    )
    accelerator = types.SimpleNamespace(
        current_device_index=lambda: 0, current_stream=Stream, synchronize=lambda: None, is_available=lambda: False
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(*sizes: Any, **options: Any) -> torch.Tensor:
        return torch.empty(*sizes, **options).as_subclass(Buffer)


def replace() -> None:
    """Put gloo and `Torch` into vLLM's modules."""
    import vllm.distributed.device_communicators.pynccl as pynccl

    for name in LOADED:
        module = __import__(f"{TRANSFER}.{name}", fromlist=["torch"])
        if hasattr(module, "torch"):
            module.torch = Torch()
    pynccl.PyNcclCommunicator = Gloo


# --------------------------------------------------------------------------------------------- from the source alone


class Absent(types.ModuleType):
    """Stands for modules of vLLM that its transfer imports and does not need here: loggers, settings, reloading."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 128 if name.isupper() else type(name, (), {}) if name[0].isupper() else MagicMock()


@dataclass
class Finder:
    """Finds vLLM's modules of the transfer in a directory, and `Absent` for all others."""

    source: Path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ("vllm", "pybase64"):
            return None
        if name in {f"{TRANSFER}.{part}" for part in LOADED} | {"vllm.distributed.utils"}:
            return spec_from_file_location(name, self.source.joinpath(*name.split(".")).with_suffix(".py"))
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def use(source: Path) -> None:
    """Make the transfer of an unpacked vLLM importable in this process, over gloo."""
    sys.meta_path.insert(0, Finder(source))
    replace()


# -------------------------------------------------------------------------------------------------- what tests send


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    """Return three tensors of 24, 8 and 20 bytes."""
    return [
        ("a", torch.full((2, 3), float(version))),
        ("b", torch.arange(4).to(torch.bfloat16) * version),
        ("c", torch.arange(5.0) - version),
    ]


def channel_to(*servers: str, **options: Any) -> Any:
    """Return a channel for `weights` whose servers have been announced."""
    from scalerl.training.engines.vllm.nccl import NcclChannel
    from scalerl.training.models.weights import WeightLayout

    channel = NcclChannel(WeightLayout.of(weights(0)), Path(tempfile.mkdtemp(prefix="servers-")), **options)
    for number, address in enumerate(servers):
        channel.announce(number, address)
    return channel


@dataclass
class Sender:
    """The learner of one rank, whose send sends `weights`; made inside the process of the rank."""

    source: Path
    kills: int = 0
    """Process that dies between the two buffers of version 2."""

    def __call__(self) -> Sender:
        from scalerl.training.engines.vllm import nccl

        use(self.source)
        nccl.BUFFER = BUFFER
        return self

    def send(self, version: int, channel: Any) -> None:
        channel.send(version, self.weights(version))

    def weights(self, version: int) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights(version):
            if name == "c" and version == 2 and self.kills:
                os.kill(self.kills, signal.SIGKILL)
                self.kills = 0
            yield name, tensor


# ---------------------------------------------------------------------------------------------------------- programs


def serve(host: str, port: int, file: Path) -> None:
    """Run a server without a model: the fake's routes, and one worker with vLLM's engine."""
    from fake_vllm import FakeVllm, Handler

    engine_of = __import__(f"{TRANSFER}.nccl_engine", fromlist=["x"]).NCCLWeightTransferEngine
    place = types.SimpleNamespace(data_parallel_index=0, world_size=1, rank=0)
    received: dict[str, Any] = {}

    class Model(torch.nn.Module):
        def load_weights(self, pairs: Any) -> None:
            received.update({name: tensor.tolist() for name, tensor in pairs})

    engine = engine_of(None, types.SimpleNamespace(parallel_config=place, model_config=None), "cpu", Model())

    class WorkerHandler(Handler):
        def call(self, function: Any, *values: Any) -> None:
            try:
                function(*values)
            except (RuntimeError, ValueError, dist.DistError) as error:
                return self.answer(500, {"error": str(error)[:300]})
            self.answer(200, {})

        def on_init_weight_transfer_engine(self, body: dict) -> None:
            received["master"] = body["init_info"]["master_address"]
            self.call(lambda: engine.init_transfer_engine(engine.parse_init_info(body["init_info"])))

        def on_shutdown_weight_transfer_engine(self, body: dict | None) -> None:
            assert not self.fake.partial, "vLLM does not leave a group during an update"
            self.call(engine.shutdown)

        def on_update_weights(self, body: dict) -> None:
            def update() -> None:
                engine.update_weights(body["update_info"])
                file.write_text(json.dumps(received))

            self.call(update)

    with FakeVllm(port, host=host, handler=WorkerHandler) as server:
        print(server.address, flush=True)
        threading.Event().wait()


def main(word: str, source: str, host: str, port: str, file: str) -> None:
    """Run the program."""
    assert word == "serve"
    use(Path(source))
    serve(host, int(port), Path(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
