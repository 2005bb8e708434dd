"""Time limits of an engine's start on Ray: to be placed, then to start."""

import time

import pytest

from scalerl.rollouts.process_engine import EngineDied

ray = pytest.importorskip("ray", reason="needs Ray")


@pytest.mark.slow
def test_an_engine_has_its_limit_twice_to_be_placed_and_to_start_and_a_server_reports_first():
    from scalerl.cluster.engines import RayLife

    def slow():  # pickled by value, because the actor cannot import this file
        time.sleep(16.0)  # longer than the limit of a server, which reports this itself

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(EngineDied, match=r"generator 1 of 1: after 1 s .*start_timeout_s.* not placed"):
            RayLife(ray, slow, "generator 1 of 1", {"num_cpus": 2}, start_s=1.0)
        RayLife(ray, slow, "generator 1 of 1", {"num_cpus": 1}, start_s=15.0).kill()
    finally:
        ray.shutdown()
