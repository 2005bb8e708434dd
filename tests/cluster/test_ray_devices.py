"""A cluster with GPUs that the driver does not have: Ray gives out ids without GPUs, so this needs none."""

import os
from pathlib import Path

import pytest
import torch
from engine_builds import Scripted, Seen
from rank_builds import learner_spec
from test_devices import BASE, specs_of

from scalerl.core.errors import ConfigError
from scalerl.training.config.base import replace
from scalerl.training.config.placement import Placement
from scalerl.training.config.run import Hardware
from scalerl.training.learner.ranks import serve_rank
from scalerl.training.loop.resolve import place_processes
from scalerl.training.placement.choices import loop_device
from scalerl.training.placement.sizes import UNREAD, RunSizes

ray = pytest.importorskip("ray", reason="needs Ray")

pytestmark = pytest.mark.filterwarnings("ignore")

ON_RAY = replace(
    BASE,
    hardware=Hardware(trainer_threads=1, generator_threads=1),
    placement=Placement(backend="ray", trainer_ranks=2, generators=3, gpus_per_generator=2),
)


@pytest.fixture(scope="module")
def cluster():
    """A node with 8 GPUs and few cores."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)  # the actors import modules of the tests
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
        ray.init(address="local", num_cpus=8, num_gpus=8, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.mark.slow
def test_the_device_is_that_of_the_cluster_and_not_of_the_driver(cluster):
    assert not torch.cuda.is_available()
    config = place_processes(ON_RAY).config
    assert config.hardware.device == "cuda" and config.hardware.dtype == "bfloat16"
    one = replace(config, placement=replace(config.placement, trainer_ranks=1))
    assert not RunSizes.of(one, UNREAD).in_loop and loop_device(one) == "cpu"
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        place_processes(replace(ON_RAY, hardware=Hardware(device="cuda"), placement=Placement()))


@pytest.mark.slow
def test_engines_and_ranks_get_different_gpus_from_ray(cluster, tmp_path, monkeypatch):
    from scalerl.training.engines.hosted import HostedEngines
    from scalerl.training.machines import engines
    from scalerl.training.machines.ranks import RayRanks

    resolved = place_processes(ON_RAY)
    config = resolved.config

    def begin(spec):
        (tmp_path / spec.name).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        return HostedEngines(Scripted(2)(), spec.name)

    def meet(spec, channels, end):
        end.answer("done", "")
        end.next()
        serve_rank(Seen, channels)(end)

    monkeypatch.setitem(engines.BEGIN, "torch", begin)
    monkeypatch.setattr("scalerl.training.machines.ranks._meet", meet)
    spec = learner_spec(config, "", ranks=config.placement.trainer_ranks)
    ranks = RayRanks(cluster, spec, [], resolved.devices["trainer", 0].resources)
    pairs = engines.actor_engines(specs_of(config, resolved.devices, tmp_path), print)
    try:
        seen = [(tmp_path / f"generator {n} of 3").read_text() for n in (1, 2, 3)]
        seen += ranks.call("check", "CUDA_VISIBLE_DEVICES", timeout_s=60)
        assert [len(ids.split(",")) for ids in seen] == [2, 2, 2, 1, 1]
        assert sorted(",".join(seen).split(",")) == list("01234567")
    finally:
        ranks.close()
        for pair in pairs:
            pair[0]._restarter._future.result().stop()
