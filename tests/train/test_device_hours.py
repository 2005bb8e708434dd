"""Device-hours: which devices count, work while the clock is paused, and resumed runs."""

from types import SimpleNamespace

import pytest

from scalerl.training.config import LAB
from scalerl.training.config.base import replace
from scalerl.training.config.placement import Placement
from scalerl.training.config.run import Hardware
from scalerl.training.loop.progress import RunCompute, Stopwatch
from scalerl.training.placement.devices import Devices, devices, devices_held
from scalerl.training.placement.sizes import UNREAD, RunSizes


def on_gpus(**placement):
    return replace(LAB, hardware=Hardware(device="cuda"), placement=Placement(**placement))


@pytest.mark.parametrize(
    ("placement", "held"),
    [
        ({}, Devices(1, 1)),
        ({"generators": 3}, Devices(1, 1)),  # processes of one GPU
        ({"backend": "ray", "trainer_ranks": 4, "generators": 3}, Devices(7, 3)),
        (
            {"backend": "ray", "engine": "vllm", "trainer_ranks": 4, "generators": 3, "tensor_parallel": 2},
            Devices(10, 6),
        ),
        ({"engine": "vllm", "servers": ["http://a:1", "http://b:1"], "tensor_parallel": 4}, Devices(9, 8)),
    ],
)
def test_a_run_holds_its_ranks_and_the_gpus_of_its_engines(placement, held):
    assert devices_held(devices(RunSizes.of(on_gpus(**placement), UNREAD))) == held


def test_a_run_on_cpu_holds_one_device():
    assert devices_held(
        devices(RunSizes.of(replace(LAB, placement=Placement(trainer_ranks=2, generators=2))))
    ) == Devices(1, 1)


def test_generation_during_a_checkpoint_counts_the_devices_of_the_engines():
    pipeline = SimpleNamespace(busy_since_mark=lambda: 600.0)
    compute = RunCompute(Stopwatch(3600.0), Devices(held=10, generating=6), pipeline)
    compute.clock.add(compute.generated_s())
    # an hour of ten devices, and ten minutes of six
    assert compute.device_hours == pytest.approx(10 + 1)
