"""Whatever process dies, nothing is left of a server: no worker, no segment of shared memory, no temporary file."""

import getpass
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from vllm_setup import wait_for

from scalerl.training.engines.vllm import server as server_module

GUARD = Path(server_module.__file__).with_name("guard.py")

SERVER = '''
"""A server and two workers that ignore SIGTERM, one of them with a process group of its own.

Each maps a segment of its own, that of the server, and one of another program."""
import json, mmap, os, pathlib, signal, socket, subprocess, sys, tempfile, time

facts, role, used = sys.argv[1], sys.argv[2], sys.argv[3:]
own = f"/dev/shm/scalerl-test-{os.getpid()}"
pathlib.Path(own).write_bytes(bytes(4096))
names, maps = [own], []
for name in (own, *used):
    with open(name, "r+b") as file:
        maps.append(mmap.mmap(file.fileno(), 4096))
pids = [os.getpid()]
if role != "server":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if role == "group":
    os.setpgid(0, 0)
if role == "server":
    for kind in ("worker", "group"):
        command = [sys.executable, __file__, facts, kind, own, *used]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        told = json.loads(worker.stdout.readline())
        pids, names = pids + told["pids"], names + told["names"]
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.join(tempfile.gettempdir(), "0" * 36))
told = {"pids": pids, "names": names, "files": tempfile.gettempdir()}
if role == "server":
    pathlib.Path(facts + ".new").write_text(json.dumps(told))
    os.rename(facts + ".new", facts)
print(json.dumps(told), flush=True)
ends = pathlib.Path(facts + ".end")
while not ends.exists() or role != "server":
    time.sleep(0.02)
sys.exit(3)
'''

PARENT = """
import subprocess, sys, threading
guard = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE)
print(guard.pid, flush=True)
def end():
    sys.stdin.read()
    guard.stdin.write(b"end\\n")
    guard.stdin.close()
threading.Thread(target=end, daemon=True).start()
print(guard.wait(), flush=True)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def child_of(pid):
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.fixture
def started(tmp_path):
    """Return (parent, guard's process id, facts, name of a segment that this process uses too)."""
    program, facts = tmp_path / "server.py", tmp_path / "facts"
    program.write_text(SERVER)
    shared = Path(f"/dev/shm/scalerl-test-shared-{os.getpid()}")
    shared.write_bytes(bytes(4096))
    with open(shared, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    command = [str(GUARD), str(tmp_path / "log"), sys.executable, str(program), str(facts), "server", str(shared)]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    guard = int(parent.stdout.readline())
    wait_for(facts.exists)
    told = json.loads(facts.read_text())
    yield parent, guard, told, shared, facts
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    mapped.close()
    shared.unlink()
    for pid in filter(alive, told["pids"]):  # of a test that failed
        kill(pid)


def kill(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


DEATHS = {
    "nothing dies, and the parent asks for the end": lambda parent, guard, server: parent.stdin.close(),
    "a child of an actor, and the actor, as Ray kills them": lambda parent, guard, server: kill(guard, parent.pid),
    "the process that runs the server": lambda parent, guard, server: kill(child_of(guard)),
    "the server": lambda parent, guard, server: kill(server),
}


@pytest.mark.parametrize("death", DEATHS)
def test_nothing_of_a_server_is_left_whichever_process_dies(death, started):
    parent, guard, facts, shared, _ = started
    pids, names, files = facts["pids"], facts["names"], Path(facts["files"])
    second = child_of(guard)
    assert len(pids) == 3 and all(map(alive, pids)) and all(map(os.path.exists, names))
    assert "0" * 36 in os.listdir(files) and files.stat().st_mode & 0o777 == 0o700
    assert os.getsid(second) == second and {os.getsid(pid) for pid in pids} == {pids[0]}
    DEATHS[death](parent, guard, pids[0])
    wait_for(lambda: not any(map(alive, [*pids, guard, second])))
    wait_for(lambda: not files.exists())
    assert not any(map(os.path.exists, names)) and shared.exists()  # this process uses the latter


def test_the_code_of_a_server_that_ends_itself_is_returned_and_its_workers_end(started):
    parent, _, facts, _, path = started
    Path(f"{path}.end").touch()
    assert int(parent.stdout.readline()) == 3  # only after everything is gone
    assert not any(map(alive, facts["pids"])) and not os.path.exists(facts["files"])
    assert not any(map(os.path.exists, facts["names"]))


@pytest.mark.slow
def test_segments_are_removed_although_the_processes_that_used_them_died_at_once(started):
    parent, _, facts, _, _ = started
    time.sleep(6.0)  # the guard looks every 5 s
    kill(*reversed(facts["pids"]))
    assert int(parent.stdout.readline()) == 137  # only after everything is gone
    assert not any(map(os.path.exists, facts["names"]))


COMPILES = """
import getpass, os, tempfile
cache = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"  # where torch has its precompiled headers
os.makedirs(cache, exist_ok=True)
open(f"{cache}/header", "w").close()
print(tempfile.gettempdir())
"""


def test_a_server_has_a_short_temporary_directory_of_its_own_and_keeps_the_cache_of_compiled_code(tmp_path):
    long, short = tmp_path / ("long" * 20), Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
    long.mkdir()
    for usual, parent in ((short, short), (long, Path("/tmp"))):
        seen = tmp_path / f"seen {usual.name}"
        command = [sys.executable, str(GUARD), str(seen), sys.executable, "-c", COMPILES]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "TMPDIR": str(usual)}) as guard:
            assert guard.wait() == 0
        files = Path(seen.read_text().strip())
        assert files.parent == parent and files.name.startswith("vllm-") and not files.exists()
        assert [path.name for path in usual.rglob("*")] == [f"torchinductor_{getpass.getuser()}", "header"]
    shutil.rmtree(short)


def test_a_program_that_does_not_exist_is_an_error_in_the_log(tmp_path):
    before = set(Path("/tmp").glob("vllm-*"))
    with subprocess.Popen([sys.executable, str(GUARD), str(tmp_path / "log"), "no-such-python"], stdin=-1) as guard:
        assert guard.wait() == 127
    assert (tmp_path / "log").read_text().startswith("FileNotFoundError: ") and set(
        Path("/tmp").glob("vllm-*")
    ) <= before
