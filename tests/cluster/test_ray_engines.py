"""Ray: handlers of signals; an engine's time limits, to be placed and then to start, and the end of its server."""

import os
import signal
import sys
import time

import pytest
import runs

from scalerl.training.engines.process_engine import EngineDied

ray = pytest.importorskip("ray", reason="needs Ray")


@pytest.mark.slow
def test_connecting_to_a_cluster_keeps_the_handlers_of_this_process(handlers):
    """Ray sets a handler for SIGTERM that ends the process at once, without a checkpoint."""
    from scalerl.core.child_signals import STOPPING
    from scalerl.training.machines.connect import connect

    got = []
    for number in STOPPING:
        signal.signal(number, lambda number, frame: got.append(number))
    connect("local", "--ray")
    try:
        for number in STOPPING:
            os.kill(os.getpid(), number)
    finally:
        ray.shutdown()
    assert got == list(STOPPING)


@pytest.mark.slow
def test_an_engine_has_its_limit_twice_to_be_placed_and_to_start_and_a_server_reports_first():
    from scalerl.training.machines.engines import RayHandle

    def slow():  # pickled by value, because the actor cannot import this file
        time.sleep(16.0)  # longer than the limit of a server, which reports this itself

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(EngineDied, match=r"generator 1 of 1: after 1 s .*start_timeout_s.* not placed"):
            RayHandle(ray, slow, "generator 1 of 1", {"num_cpus": 2}, start_s=1.0)
        RayHandle(ray, slow, "generator 1 of 1", {"num_cpus": 1}, start_s=15.0).stop()
    finally:
        ray.shutdown()


SERVER = """
import json, pathlib, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[-1]).write_text(json.dumps(worker.pid))
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["replaced", "killed"])
@pytest.mark.slow
def test_the_server_of_an_actor_ends_with_it_and_so_do_the_servers_workers(how, tmp_path):
    """Ray kills the children of an actor, and nothing below them."""
    from scalerl.training.machines.engines import RayHandle

    program, python, facts = tmp_path / "server.py", tmp_path / "python", tmp_path / "facts"
    program.write_text(SERVER)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    words = {"model": "m", "max_model_len": 9, "max_num_seqs": 9, "log": tmp_path / "log", "python": str(python)}

    def begin():  # pickled by value
        from scalerl.training.engines.vllm.server import ServerSpec, VllmServer

        server = VllmServer(ServerSpec(**words, extra=(str(facts),)))
        while not facts.exists():
            time.sleep(0.05)

        class EngineHandle:
            process = server

            def report(self, wait_s):
                time.sleep(wait_s)

        return EngineHandle()

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        handle = RayHandle(ray, begin, "generator 1 of 1", {"num_cpus": 1}, start_s=60.0)
        (actor,) = [pid for pid in runs.descendants(os.getpid()) if "EngineActor" in runs.command_of(pid)]
        started = {pid: born for pid, born in runs.everyone().items() if str(tmp_path) in runs.command_of(pid)}
        started |= {pid: born for pid, born in runs.everyone().items() if pid == int(facts.read_text())}
        assert len(started) >= 3  # the guard, the server and its worker
        if how == "replaced":
            handle.stop()
        else:
            os.kill(actor, signal.SIGKILL)
        assert runs.left_of(started, 10.0) == []
    finally:
        ray.shutdown()
