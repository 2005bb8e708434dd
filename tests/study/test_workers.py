"""Workers: real processes, local and on a local Ray; exit codes, logs and orderly stops."""

import subprocess
import sys
import time

import pytest
import runs

from scalerl.core.errors import ConfigError
from scalerl.training.machines.jobs import RayWorkers
from scalerl.training.study.execute import LocalWorkers

SPEAK = [sys.executable, "-c", "import sys; print('said', flush=True); sys.exit(3)"]
PATIENT = [
    sys.executable, "-c",
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('on', flush=True); "
    "time.sleep(60)",
]  # fmt: skip


def code_of(job, seconds=60.0):
    until = time.monotonic() + seconds
    while (code := job.poll()) is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    return code


def wait_for_text(path, text, seconds=60.0):
    until = time.monotonic() + seconds
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_job_has_an_exit_code_and_a_log(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("before\n")
    assert code_of(LocalWorkers(1).start(SPEAK, log)) == 3
    assert log.read_text() == "before\nsaid\n"


def test_a_stopped_process_can_handle_the_signal(tmp_path):
    job = LocalWorkers(1).start(PATIENT, tmp_path / "x.log")
    wait_for_text(tmp_path / "x.log", "on")
    assert job.poll() is None
    job.terminate()
    assert code_of(job) == 143
    job.terminate()  # a second call has no effect


@pytest.fixture(scope="module")
def ray():
    """A local Ray; warnings of its threads and files are ignored."""
    module = pytest.importorskip("ray", reason="needs Ray")
    module.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield module
    module.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_jobs_have_an_exit_code_and_a_log_and_can_be_stopped(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "init", lambda **options: None)  # Ray is initialized by the fixture
    workers = RayWorkers("auto", 0, 1.0, 0.0)
    assert workers.count == 2
    assert code_of(workers.start(SPEAK, tmp_path / "a.log")) == 3
    assert (tmp_path / "a.log").read_text() == "said\n"
    job = workers.start(PATIENT, tmp_path / "b.log")
    wait_for_text(tmp_path / "b.log", "on")
    job.terminate()
    assert code_of(job) in (143, 1)
    with pytest.raises(ConfigError, match="64 CPUs"):
        RayWorkers("auto", 0, 64.0, 0.0)
    assert RayWorkers("auto", 0, 0.5, 0.0, {"CPU": 1.0, "GPU": 0.0}).count == 1  # two runs would leave no core
    with pytest.raises(ConfigError, match="1 GPUs"):
        RayWorkers("auto", 0, 1.0, 0.0, {"CPU": 2.0, "GPU": 1.0})


STUDY = """
import sys, time
from pathlib import Path
from scalerl.training.study.execute import LocalWorkers
LocalWorkers(1).start([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
time.sleep(60)
"""
RUN = """
import signal, time
from scalerl.core.child_signals import obey_study
signal.signal(signal.SIGTERM, lambda *_: (print("a checkpoint", flush=True), exit(143)))
obey_study()
print("begun", flush=True)
time.sleep(60)
"""


def test_a_run_gets_sigterm_when_its_study_is_killed(tmp_path):
    log = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", STUDY, RUN, str(log)]) as study:
        runs.wait_for(lambda: log.exists() and "begun" in log.read_text(), what="the run")
        started = runs.descendants(study.pid)
        study.kill()
    assert len(started) == 1 and not runs.left_of(started, 20.0)
    assert log.read_text() == "begun\na checkpoint\n"
