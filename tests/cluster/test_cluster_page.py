"""examples/gpus, docs/cluster.md and docs/scale.md: every configuration passes a dry run, the commands exist."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from commands import call

from scalerl import cli
from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.placement.choices import loop_device
from scalerl.training.placement.devices import Host, devices
from scalerl.training.placement.sizes import UNREAD, RunSizes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cluster.md").read_text()
FILES = [ROOT / "examples/gpus" / name for name in re.findall(r"`([\w.-]+\.toml)` \|$", PAGE, re.M)]
BLOCKS = [file.read_text() for file in FILES]
PAPER = (ROOT / "examples/gpus/paper-80gpus.toml").read_text()


def with_prompts(block, file):
    """Return a configuration with a prompt file that exists."""
    return re.sub(r'"(/shared/)?\w+\.jsonl"', f'"{file}"', block)


@pytest.mark.usefixtures("no_prospect")
@pytest.mark.parametrize("block", BLOCKS, ids=[file.stem for file in FILES])
def test_a_configuration_passes_a_dry_run(block, tmp_path, prompt_file, capsys):
    file = tmp_path / "run.toml"
    file.write_text(with_prompts(block, prompt_file))
    assert cli.main(["train", str(file), "--dry-run"]) == 0
    out = capsys.readouterr().out
    gpus = re.search(r"^gpus = (\d+)", block, re.M)
    where = "one GPU for both" if gpus and gpus[1] == "1" else f"{gpus[1]} GPUs" if gpus else "one trainer process"
    assert where in next(line for line in out.splitlines() if line.startswith("# placement: "))


def test_the_kuberay_example_places_the_papers_run_on_its_workers_and_no_process_on_its_head(tmp_path):
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((ROOT / "examples/kuberay.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert job["kind"] == "RayJob" and "scalerl train" in job["spec"]["entrypoint"]
    head = Host("head", tuple(map(str, range(int(cluster["headGroupSpec"]["rayStartParams"]["num-gpus"])))))
    gpus = tuple(map(str, range(int(container["resources"]["limits"]["nvidia.com/gpu"]))))
    workers = [Host(f"worker {n}", gpus) for n in range(group["replicas"])]
    file = tmp_path / "run.toml"
    file.write_text(PAPER)
    config = read_config(file, [])
    table = devices(RunSizes.of(config, UNREAD), [head, *workers])
    used = [(at.host, gpu) for (kind, _), at in table.items() if kind != "scorer" for gpu in at.gpus]
    assert len(used) == len(set(used)) == 80 and head.name not in dict(used) and loop_device(config) == "cpu"


STANDS_IN = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',  # both nodes are this machine
    "scontrol": "printf '%s\\n' $NODES",
    "getent": 'echo "127.0.0.1 STREAM $2"',
    "scalerl": (
        'echo "$*" >> "$LOG"; mkdir -p "$RUN"; touch "$RUN/config.toml"; '
        "python -c \"import os, ray; ray.init(address='auto', log_to_driver=False); "
        "alive, seven = sum(n['Alive'] for n in ray.nodes()), ray.get(ray.remote(lambda: 7).remote()); "
        "print(os.environ['RAY_ADDRESS'], alive, seven)"
        '" >> "$LOG"; exit ${CODE:-0}'
    ),
}


@pytest.fixture
def slurm(tmp_path):
    """Return a function that runs the script as Slurm does, with stand-ins for its programs, over a real Ray.

    A token that Ray has left in the home directory, as after any run with ray_address = "local", must not matter.
    """
    pytest.importorskip("ray", reason="needs Ray")
    short = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # paths of sockets have at most 107 characters
    bin, home = tmp_path / "venv/bin", tmp_path / "home/.ray"
    bin.mkdir(parents=True)
    home.mkdir(parents=True)
    (home / "auth_token").write_text("0" * 64)
    for name, text in STANDS_IN.items():
        (bin / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (bin / name).chmod(0o755)
    path = os.pathsep.join([str(bin), str(Path(sys.executable).parent), os.environ["PATH"]])
    (bin / "activate").write_text(f"export PATH={path!r}\n")
    log, run = tmp_path / "log", tmp_path / "run"

    def job(nodes, port, **more):
        own = {
            "HOME": str(home.parent), "VIRTUAL_ENV": str(bin.parent), "NODES": nodes, "LOG": str(log), "RUN": str(run),
            "RAY_PORT": str(port), "RAY_TMPDIR": str(short), "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_NAME": "job",
            "SLURM_GPUS_ON_NODE": "1", "PATH": path,
        }  # fmt: skip
        own = {**{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}, **own, **more}
        words = ["bash", str(ROOT / "examples/slurm.sh"), "c.toml", str(run)]
        with (tmp_path / "out").open("w") as out:
            done = subprocess.run(words, env=own, stdout=out, stderr=out, timeout=150)
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return done.returncode, lines, (tmp_path / "out").read_text()

    yield job
    for entry in Path("/proc").glob("[0-9]*"):  # Ray's processes drain for 30 s
        with contextlib.suppress(OSError, ProcessLookupError):
            if str(short).encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    shutil.rmtree(short, ignore_errors=True)


@pytest.mark.slow
def test_the_slurm_example_starts_a_cluster_and_a_requeued_job_resumes_on_other_nodes(slurm):
    first, other = (port for port in map(free_low_port, range(2)))
    code, lines, out = slurm("node-1 node-2", first)
    assert code == 0, out
    assert lines[0].startswith("train c.toml --placement.ray_address auto --run-dir")
    assert lines[1] == f"127.0.0.1:{first} 2 7"  # both nodes have joined, and a task has run
    code, lines, out = slurm("node-3", other, CODE="3")
    assert code == 3, out  # that of the run
    assert lines[0].startswith("resume ") and lines[0].endswith(" --placement.ray_address auto")
    assert lines[1] == f"127.0.0.1:{other} 1 7"


def free_low_port(number):
    """Return a free port outside the range from 10002 to 19999, in which Ray's workers listen."""
    for port in range(6400 + 200 * number, 6600 + 200 * number):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    pytest.skip("no free port")


def test_a_resume_asks_the_cluster_of_its_options_and_not_the_old_one(tmp_path, capsys, monkeypatch):
    """The head of the saved address may be gone: a requeued job of Slurm gets other nodes."""
    (tmp_path / "config.toml").write_text(
        'preset = "lab"\n[placement]\nbackend = "ray"\nray_address = "10.9.9.9:6379"\n'
    )
    asked = []

    def connect(address, asked_by):
        asked.append(address)
        raise ConfigError("no cluster here")

    monkeypatch.setattr("scalerl.training.loop.resolve.connect", connect)
    code, _, text = call(capsys, "resume", tmp_path, "--placement.ray_address", "127.0.0.1:7")
    assert code == 2 and "no cluster here" in text and asked == ["127.0.0.1:7"]
