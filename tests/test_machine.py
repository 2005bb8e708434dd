"""The memory that a run may use: the smallest of machine, control groups and limits of the process."""

import json
import resource

import pytest
import torch

from scalerl.cli.main import main
from scalerl.core import files, machine
from scalerl.core.errors import outcome
from scalerl.core.machine import host_memory, sees_gpu
from scalerl.core.processes import LACKED_MEMORY, fault

GB = 10**9
MEMINFO = {"proc/meminfo": "MemTotal: 24000000 kB\nMemFree: 100 kB\nMemAvailable: 20000000 kB\n"}
TWO = "0::/a/b\n"
MOUNT_TWO = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
ONE = "9:cpu,cpuacct:/\n4:memory:/a/b\n0::/\n"
MOUNT_ONE = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def tree(root, **files):
    for name, text in {**MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group(limit, used, cached=0, version=2):
    names = ("memory.max", "memory.current", "inactive_file")
    names = names if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return lambda place: {
        f"{place}/{names[0]}": f"{limit}\n", f"{place}/{names[1]}": f"{used}\n",
        f"{place}/memory.stat": f"anon 5\n{names[2]} {cached}\n",
    }  # fmt: skip


@pytest.fixture(autouse=True)
def no_limits(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_without_limits_it_is_the_machines(tmp_path):
    found = host_memory(tree(tmp_path))
    assert (found.total, found.free, found.limit) == (24e6 * 1024, 20e6 * 1024, "this machine")


def test_a_control_group_limits_it_and_its_page_cache_is_free(tmp_path):
    files = group(8 * GB, 3 * GB, cached=2 * GB)("sys/fs/cgroup/a/b")
    found = host_memory(tree(tmp_path, **files, **{"proc/self/cgroup": TWO, "proc/self/mountinfo": MOUNT_TWO}))
    assert (found.total, found.free) == (8e9, 7e9) and found.limit == "the control group (memory.max)"


def test_the_smallest_limit_of_the_groups_above_counts_and_max_is_none(tmp_path):
    files = group("max", 3 * GB)("sys/fs/cgroup/a/b") | group(6 * GB, 5 * GB)("sys/fs/cgroup/a")
    found = host_memory(tree(tmp_path, **files, **{"proc/self/cgroup": TWO, "proc/self/mountinfo": MOUNT_TWO}))
    assert (found.total, found.free) == (6e9, 1e9)


@pytest.mark.parametrize("inside", ["/", "/a/b"], ids=["host", "container"])
def test_control_groups_of_version_1_count_also_if_only_the_own_one_is_mounted(tmp_path, inside):
    place = "sys/fs/cgroup/memory" + ("/a/b" if inside == "/" else "")
    mount = MOUNT_ONE.replace(" / ", f" {inside} ", 1)
    files = group(4 * GB, 1 * GB, version=1)(place) | group(2**63 - 4096, 1, version=1)("sys/fs/cgroup/other")
    found = host_memory(tree(tmp_path, **files, **{"proc/self/cgroup": ONE, "proc/self/mountinfo": mount}))
    assert (found.total, found.free) == (4e9, 3e9)


@pytest.mark.parametrize(("which", "used", "name"), [("RLIMIT_AS", "VmSize", "-v"), ("RLIMIT_DATA", "VmData", "-d")])
def test_limits_of_the_process_count(tmp_path, monkeypatch, which, used, name):
    number = getattr(resource, which)
    most = lambda asked: (8 * GB if asked == number else resource.RLIM_INFINITY, 0)  # noqa: E731
    monkeypatch.setattr(resource, "getrlimit", most)
    found = host_memory(tree(tmp_path, **{"proc/self/status": f"Name: python\n{used}:\t1000000 kB\n"}))
    assert (found.total, found.free) == (8e9, 8e9 - 1.024e9) and f"ulimit {name}" in found.limit


def test_a_machine_without_proc_has_no_known_limit(tmp_path):
    assert host_memory(tmp_path).total == float("inf")


def test_a_gpu_is_seen_by_its_device_file_unless_it_is_hidden(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dev").mkdir()
    assert not sees_gpu(tmp_path)
    (tmp_path / "dev/nvidia0").touch()
    assert sees_gpu(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not sees_gpu(tmp_path)


def test_errors_of_python_and_torch_about_memory_are_told_as_such():
    for action in (lambda: bytearray(10**15), lambda: torch.empty(10**15)):
        text = fault(outcome(action).exception())[0]
        assert text.startswith(LACKED_MEMORY) and "the limit is" in text
    assert fault(ValueError("no such thing"))[0] == "ValueError: no such thing"


@pytest.mark.parametrize(("name", "reward"), [("points.csv", "pass_rate"), ("log.jsonl", "eval/accuracy")])
def test_a_file_that_takes_more_memory_than_is_free_is_not_begun(tmp_path, monkeypatch, capsys, name, reward):
    rows = [{"step": i, reward: 0.2 + 0.01 * i} for i in range(1, 40)]
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("\n".join([f"step,{reward}", *(f"{row['step']},{row[reward]}" for row in rows), ""]))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    size, words = path.stat().st_size, ["fit", str(path)]
    monkeypatch.setattr(files, "LARGE_FILE_BYTES", size)
    monkeypatch.setattr(machine, "host_memory", lambda: machine.Memory(9e12, 8.0 * size - 1.0, "this machine"))
    assert main(words) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{path} has 0.0 GB; reading it would take about 0.0 GB of memory, and 0.0 GB are free" in told
    assert f"every 10th: `awk 'NR % 10 == 1' {name} > part{path.suffix}`" in told
    monkeypatch.setattr(machine, "host_memory", lambda: machine.Memory(9e12, 8.0 * size, "this machine"))
    assert main(words) == 0
