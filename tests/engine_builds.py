"""Code that tests run in other processes; a separate module, so that torch is loaded only if needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from scripted_engine import STOP, ScriptedDecoder, scripted_engine

from scalerl.training.engines.engine import Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule


@dataclass(frozen=True)
class Scripted:
    """Makes scripted engines; sent to a process by pickling."""

    engines: int = 1
    fail: str = ""
    delay_s: float = 0.0

    def __call__(self):
        if self.fail == "raise":
            raise ValueError("no such model: nowhere/at-all")
        if self.fail == "exit":
            os._exit(7)
        return [
            scripted_engine(slots=4, mean_tokens=6, max_tokens=20, delay_s=self.delay_s) for _ in range(self.engines)
        ]


@dataclass(frozen=True)
class Served:
    """Makes a pair of scripted engines that sample on their own; sent to a process by pickling."""

    def __call__(self):
        from scalerl.training.config.placement import Placement
        from scalerl.training.engines.hosted import HostedEngines
        from scalerl.training.engines.local.slot_engine import SlotEngine
        from scalerl.training.engines.served import Restarter

        decoder, rule = ScriptedDecoder(6.0), LengthRule(None, NEVER, 20)
        receive = lambda version: {"version": version}  # noqa: E731
        pair = [SlotEngine(decoder, 4, rule, (STOP,), refill=1, receive=receive) for _ in range(2)]
        return Restarter(lambda: HostedEngines(pair), "generator 2 of 3", 4, Placement(), print).engines


@dataclass(frozen=True)
class Torch:
    """Makes an engine of a tiny model that receives its weights over a channel; sent to a process by pickling."""

    channel: Any

    def __call__(self):
        import torch
        from tiny_models import tiny_model

        from scalerl.training.engines.local.torch_engine import torch_engine
        from scalerl.training.models.policy import Policy

        torch.set_num_threads(1)
        rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=12)
        policy = Policy(tiny_model("qwen3", seed=77))
        sampling = Sampling(stop=(1,))
        receive = self.channel.receive
        engine = torch_engine(policy, slots=3, prompt_tokens=4, rule=rule, sampling=sampling, refill=1, receive=receive)
        return [engine]


class Seen:
    """Makes engines and learners that report environment variables of their process."""

    version, work = 0, None

    def __init__(self, name="", place=None):
        self.name, self.place = name, place

    def __call__(self):
        return [self, self]

    @staticmethod
    def learner():
        return Seen()

    @staticmethod
    def raised(channel):
        raise RuntimeError(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}")

    def occupancy(self):
        return None

    def environment(self):
        return dict(os.environ)

    def check(self, name):
        return os.environ.get(name)


def answer_weights(channel, connection):
    """Receive each requested version and send back its bytes."""
    import torch

    torch.set_num_threads(1)
    while (version := connection.recv()) is not None:
        received = channel.receive(version)
        connection.send({name: tensor.clone().flatten().view(torch.uint8).numpy() for name, tensor in received.items()})
