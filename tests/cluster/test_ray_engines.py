"""Ray: handlers of signals; an engine's time limits, to be placed and then to start, and the end of its server."""

import os
import signal
import sys
import time

import pytest
import runs

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


SERVER = """
import json, pathlib, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[-1]).write_text(json.dumps(worker.pid))
time.sleep(600)
"""


@pytest.mark.slow
def test_the_server_of_a_killed_actor_ends_with_it_and_so_do_the_servers_workers(tmp_path):
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
        RayHandle(ray, begin, "generator 1 of 1", {"num_cpus": 1}, start_s=60.0)
        (actor,) = [pid for pid in runs.descendants(os.getpid()) if "EngineActor" in runs.command_of(pid)]
        started = {pid: born for pid, born in runs.everyone().items() if str(tmp_path) in runs.command_of(pid)}
        started |= {pid: born for pid, born in runs.everyone().items() if pid == int(facts.read_text())}
        assert len(started) >= 3  # the guard, the server and its worker
        os.kill(actor, signal.SIGKILL)
        assert runs.left_of(started, 10.0) == []
    finally:
        ray.shutdown()
