"""The table of devices: by hand for every backend, and as the environment of the processes."""

import dataclasses
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine_builds import Seen
from generator_specs import generator_spec

from scalerl.core.errors import ConfigError
from scalerl.training.config import LAB, HuggingFaceModel, RunConfig
from scalerl.training.config.base import replace
from scalerl.training.config.data import PromptFile
from scalerl.training.config.placement import Placement
from scalerl.training.config.run import Evaluation, Hardware
from scalerl.training.engines.build import EngineSpec, local_engines
from scalerl.training.engines.channels import CHANNELS
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.vllm.nccl import NcclChannel
from scalerl.training.learner.rank_processes import RankProcesses
from scalerl.training.loop.resolve import place_processes
from scalerl.training.models.weights import WeightLayout
from scalerl.training.placement.devices import (
    Devices,
    Host,
    devices,
    devices_held,
    needs,
    this_machine,
)
from scalerl.training.placement.sizes import UNREAD, RunSizes

BASE = RunConfig(
    model=HuggingFaceModel(path="Qwen/Qwen3-0.6B"),
    data=(PromptFile(path="p.jsonl", task="math"),),
    hardware=Hardware(device="cuda", dtype="bfloat16"),
)


def table_of(hosts=None, trainer_bytes=float, **placement):
    return devices(RunSizes.of(replace(BASE, placement=Placement(**placement)), UNREAD), hosts, trainer_bytes)


def gpus(table):
    """Return (host, ids) by process, as `generator 0`."""
    return {f"{kind} {number}": (at.host, *at.gpus) for (kind, number), at in table.items()}


HERE = Host("here", ("4", "5", "6", "7"))
NODES = [Host("a", ("0", "1", "2")), Host("b", ("0", "1", "2", "3"))]


@pytest.mark.parametrize(
    ("hosts", "placement", "expected"),
    [
        ([HERE], {}, "trainer 0: here 4, generator 0: here 4"),
        # torch engines share the GPUs of the ranks in turn
        ([HERE], {"trainer_ranks": 2, "generators": 3},
         "trainer 0: here 4, trainer 1: here 5, generator 0: here 4, generator 1: here 5, generator 2: here 4"),
        ([HERE], {"engine": "vllm", "generators": 3},
         "generator 0: here 5, generator 1: here 6, generator 2: here 7, trainer 0: here 4"),
        ([HERE], {"engine": "vllm", "servers": ("http://x:1",), "tensor_parallel": 2},
         "trainer 0: here 4, generator 0: http://x:1 0 1"),
        # node a has one GPU left after the ranks, too few for an engine
        (NODES, {"backend": "ray", "engine": "vllm", "trainer_ranks": 2, "tensor_parallel": 2, "generators": 2},
         "trainer 0: a 0, trainer 1: a 1, generator 0: b 0 1, generator 1: b 2 3"),
        (NODES, {"backend": "ray"}, "trainer 0: a 0, generator 0: a 1"),
    ],
    ids=["torch", "torch-ranks", "vllm", "servers", "ray-vllm", "ray-torch"],
)  # fmt: skip
def test_the_table_of_every_backend_by_hand(hosts, placement, expected):
    found = gpus(table_of(hosts, **placement))
    assert sorted(f"{process}: {' '.join(at)}" for process, at in found.items()) == sorted(expected.split(", "))


@pytest.mark.parametrize(
    ("placement", "expected", "counts"),
    [
        # torch engines share the trainer's GPU, and so does the engine of evaluations
        ({}, "trainer 0: 4, generator 0: 4, evaluator 0: 4", (1, 1, 1)),
        # its own GPU is not one of training
        ({"gpus_per_generator": 1}, "trainer 0: 4, generator 0: 5, evaluator 0: 6", (2, 1, 1)),
        ({"gpus_per_generator": 2, "gpus": 1}, "trainer 0: 4, generator 0: 4, evaluator 0: 4", (1, 1, 1)),
    ],
)  # fmt: skip
def test_an_evaluation_process_is_placed_like_one_more_engine_and_counted_apart(placement, expected, counts):
    config = replace(BASE, placement=Placement(**placement), evaluation=Evaluation(overlap=True))
    table = devices(RunSizes.of(config, UNREAD), [HERE])
    assert sorted(f"{kind}: {at[1]}" for kind, at in gpus(table).items()) == sorted(expected.split(", "))
    assert devices_held(table) == Devices(*counts)


def test_too_few_gpus_for_an_evaluation_process_are_an_error_that_names_it():
    config = replace(BASE, placement=Placement(gpus_per_generator=2, generators=2), evaluation=Evaluation(overlap=True))
    with pytest.raises(ConfigError, match=r"2 generators of 2 GPUs, one more for evaluation.overlap, 7 GPUs in total"):
        devices(RunSizes.of(config, UNREAD), [HERE])
    assert ("evaluator", 0) not in devices(RunSizes.of(BASE, UNREAD), [HERE])


def test_without_gpus_no_process_gets_one_and_ray_gets_the_same_cores():
    config = replace(LAB, placement=Placement(backend="ray", trainer_ranks=2, generators=4), hardware=Hardware(
        device="cpu", generator_threads=2, trainer_threads=3))  # fmt: skip
    table = devices(RunSizes.of(config, UNREAD))
    assert all(at.environment == {} for at in table.values())
    assert needs(table) == {"CPU": 2 + 3, "GPU": 0}


def test_vllm_shares_the_only_gpu_and_gets_what_the_trainer_leaves():
    # 90% of 80 GB are usable; the trainer takes 20 GB = 25%, and two servers get 65% / 2 each
    table = table_of([Host("here", ("0",), 80.0)], lambda: 20e9, engine="vllm", generators=2)
    assert gpus(table) == {name: ("here", "0") for name in ("trainer 0", "generator 0", "generator 1")}
    assert table["generator", 0].share == table["generator", 1].share == 0.32
    with pytest.raises(ConfigError, match=r"leaves 2% for each server; allowed: at least 5%.*Use more GPUs"):
        table_of([Host("here", ("0",), 80.0)], lambda: 70e9, engine="vllm")


@pytest.mark.parametrize(
    ("hosts", "placement", "message"),
    [
        (
            [Host("here", ("0", "1"))],
            {"trainer_ranks": 3},
            "4 GPUs in total; this machine has, .* 2, .* 1 left",
        ),
        (
            [Host("a", ("0", "1")), Host("b", ("0", "1"))],
            {"backend": "ray", "engine": "vllm", "tensor_parallel": 3},
            "4 GPUs in total; the cluster has 4, and no host has 3 left",
        ),
    ],
)
def test_too_few_gpus_are_an_error_with_the_numbers(hosts, placement, message):
    with pytest.raises(ConfigError, match=message):
        table_of(hosts, **placement)


@pytest.mark.parametrize("visible", [None, "5,3,GPU-a1"])
def test_the_ids_of_this_machine_are_those_that_the_process_was_given(visible, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_machine().gpus == tuple((visible or "0,1,2").split(","))


def test_a_run_on_more_gpus_than_allowed_is_an_error_at_the_start_too():
    with pytest.raises(ConfigError, match=r"3 GPUs in total; allowed: placement.gpus = 2. Lower"):
        table_of([HERE], engine="vllm", generators=2, gpus=2)
    assert len(table_of([HERE], generators=3, gpus=1)) == 4  # torch engines share the trainer's


# ---------------------------------------------------------------------------------------------------- as environment


def specs_of(config, table, tmp_path, build=None):
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=40)
    generator = generator_spec(
        config, str(tmp_path), 12, rule=rule, stop=(1,), run=tmp_path, make_engines=local_engines, devices=table
    )
    channel = DirectoryChannel(tmp_path / "weights")
    return [EngineSpec(generator, channel, number) for number in range(config.placement.engines)]


@pytest.fixture
def four_gpus(monkeypatch):
    """A machine with four GPUs, of which the first three are visible."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=80e9))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,3")


def ended(process):
    process.kill()
    process.join()


def test_torch_engines_see_the_gpus_of_their_rows(four_gpus):
    config = replace(BASE, placement=Placement(generators=2, gpus_per_generator=1))
    table = place_processes(config).devices
    pairs = local_engines([Seen(f"generator {n + 1}", table["generator", n]) for n in range(2)], print)
    try:
        assert [pair.training._call("environment")["CUDA_VISIBLE_DEVICES"] for pair in pairs] == ["2", "3"]
    finally:
        for pair in pairs:
            ended(pair.training._process._process)


@pytest.mark.slow
def test_trainer_ranks_see_one_gpu_each(four_gpus):
    table = place_processes(replace(BASE, placement=Placement(trainer_ranks=3))).devices
    own = [table["trainer", n].environment for n in range(3)]
    ranks = RankProcesses([Seen.learner] * 3, environments=own, timeout_s=60)
    try:
        assert ranks.call("check", "CUDA_VISIBLE_DEVICES", timeout_s=60) == ["1", "2", "3"]
    finally:
        ranks.close()


def test_vllm_servers_are_started_on_the_gpus_of_their_rows(four_gpus, tmp_path):
    program = tmp_path / "python"
    fake = Path(__file__).parents[1] / "rollouts/fake_vllm.py"
    program.write_text(f'#!/bin/sh\n[ "$1" = -I ] || exec {sys.executable} {fake} "$@"\n')  # -I asks for the version
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    from scalerl.training.engines.vllm.launch import server_engines

    place = Placement(engine="vllm", generators=2, vllm_python=str(program))
    hardware, rollouts = replace(BASE.hardware, dtype="float32"), replace(BASE.rollouts, weights="nccl")
    resolved = place_processes(replace(BASE, placement=place, hardware=hardware, rollouts=rollouts))
    channel = CHANNELS["nccl"](WeightLayout.of([]), tmp_path, resolved.config.placement, None)
    assert isinstance(channel, NcclChannel)
    specs = [
        dataclasses.replace(spec, channel=channel) for spec in specs_of(resolved.config, resolved.devices, tmp_path)
    ]
    engines = server_engines(specs, print)
    try:
        assert sorted(seen_by_servers(tmp_path)) == ["2", "3"]
        assert list(channel._labels().values()) == ["default", "default"] and channel.lost()
    finally:
        for training, _ in engines:
            training._restarter._future.result().stop()


def seen_by_servers(tmp_path):
    """Return CUDA_VISIBLE_DEVICES of the running servers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
            if b"fake_vllm.py" in line and b"guard.py" not in line and str(tmp_path).encode() in line:
                pairs = (process / "environ").read_bytes().decode().split("\0")
                found.append(dict(pair.split("=", 1) for pair in pairs if pair)["CUDA_VISIBLE_DEVICES"])
        except (FileNotFoundError, ProcessLookupError):  # it has ended since then
            continue
    return found
