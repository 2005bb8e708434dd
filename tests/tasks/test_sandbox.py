"""Detection of a machine's sandbox, transfer of values to it, and errors without one."""

import contextlib
import shutil
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import report_of

from scalerl.core.errors import ConfigError
from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards.sandbox import box, commands, detect
from scalerl.training.rewards.sandbox.guest.plain import NotPlain, dumps, loads


def crossed(value):
    """Return a value as it arrives in another sandbox."""
    return loads(dumps(value), str)


def nested(values):
    return st.lists(values) | st.lists(values).map(tuple) | st.dictionaries(st.text(), values)


@settings(max_examples=50)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), nested))
def test_plain_data_is_transferred_unchanged(value):
    assert repr(crossed(value)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        frozenset("ab"),
        range(1, 9, 3),
        Decimal("1.10"),
        -(2**9999),
        "\ud800",
    ],
)
def test_other_built_in_values_keep_their_type(value):
    assert crossed(value) == value and type(crossed(value)) is type(value)


def test_instances_of_subclasses_become_their_base_types():
    class Liar(str):
        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    values = loads(dumps([Liar("x"), {Liar("k"): True}]))
    assert values == ["x", {"k": True}] and type(values[0]) is str and values[0] != "y"


def test_an_iterator_stays_an_iterator():
    items = crossed(i * i for i in range(3))
    assert items != [0, 1, 4] and list(items) == [0, 1, 4]


@pytest.mark.parametrize("value", [(1,), {1}, {1: 2}, iter([])])
def test_the_process_outside_reads_only_values_of_json(value):
    with pytest.raises(NotPlain):
        loads(dumps([value]))


def test_an_object_is_transferred_only_if_it_is_kept():
    kept = []
    data = dumps([object], lambda value: kept.append(value) or 0)
    assert kept == [object] and loads(data, lambda number: f"stand-in {number}") == ["stand-in 0"]
    with pytest.raises(TypeError, match="a type is not plain data"):
        dumps(object)
    with pytest.raises(NotPlain):
        loads(data)


@given(st.binary(max_size=40))
def test_any_bytes_give_a_value_or_a_known_error(data):
    for remote, errors in ((None, NotPlain), (str, (NotPlain, TypeError, ValueError, ArithmeticError))):
        with contextlib.suppress(errors):
            assert dumps(loads(data, remote), lambda other: 0)


@pytest.mark.parametrize("data", [b"", b"x", b"i\0\0\0\4\0", b"l\xff\xff\xff\xff", b"u\0\0\0\1\xff"])
def test_broken_values_are_refused(data):
    with pytest.raises(NotPlain):
        loads(data)


# --------------------------------------------------------------------------------------------------- detection


def test_a_machine_without_a_sandbox_is_refused_with_instructions(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    message = (
        r"scoring.sandbox.mode: this machine has no sandbox .*: the program bwrap is not installed. "
        r"Install bubblewrap .*--scoring.sandbox.mode unsafe"
    )
    with pytest.raises(ConfigError, match=message):
        detect.offer(Sandbox())


def test_a_sandbox_that_does_not_start_is_refused_with_its_error(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken) if name == "bwrap" else None)
    with pytest.raises(ConfigError, match="No permissions"):
        detect.offer(Sandbox(mode="bubblewrap"))


def test_bubblewrap_requires_libseccomp(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/true" if name == "bwrap" else None)
    with pytest.raises(ConfigError, match="the package pyseccomp is missing"):
        detect.offer(Sandbox())


def test_bubblewrap_gets_every_namespace_and_a_read_only_tree():
    pytest.importorskip("pyseccomp", exc_type=(ImportError, RuntimeError))
    words = commands.bubblewrap(Sandbox(), "/usr/bin/true").words
    for name in ("user", "pid", "net", "ipc", "uts"):
        assert f"--unshare-{name}" in words
    assert "--unshare-cgroup-try" in words and "--remount-ro" in words
    assert not {"--bind", "--bind-try", "--dev", "--proc", "--tmpfs", "--share-net"} & set(words)


def test_a_custom_python_has_its_packages():
    try:
        detect.offer(Sandbox(mode="bubblewrap"))
    except ConfigError as error:
        pytest.skip(f"no sandbox here: {error}")
    program = "try:\n    import numpy\n    print(numpy.arange(4).sum())\nexcept ImportError:\n    print('none')"
    commands = [detect.offer(Sandbox(python=python)) for python in ("", sys.executable)]
    assert [report_of(command, program)["output"] for command in commands] == [b"none\n", b"6\n"]


# ---------------------------------------------------------------------------------------------------- control groups


def tree(tmp_path, delegated):
    """Create a hierarchy like the kernel's, with the group `job` of this process and its delegated controllers."""
    job = tmp_path / "cgroup" / "job"
    job.mkdir(parents=True)
    for place, controllers in ((job, delegated), (job.parent, "")):
        (place / "cgroup.subtree_control").write_text(controllers)
        (place / "cgroup.procs").write_text("")
    own = tmp_path / "own"
    own.write_text("12:devices:/x\n0::/job\n")
    return tmp_path / "cgroup", own, job


def test_groups_are_created_if_memory_and_pids_are_delegated(tmp_path):
    root, own, job = tree(tmp_path, "cpu memory pids\n")
    assert box.group_parent(root, own) == job
    group = box.ControlGroup(job, memory=1 << 30, processes=80)
    assert (group.path / "memory.max").read_text() == "1073741824" and (group.path / "pids.max").read_text() == "80"
    done = subprocess.run([*group.entering(), "echo", "inside"], capture_output=True, text=True)
    assert done.stdout == "inside\n" and (group.path / "cgroup.procs").read_text() == "0\n"


@pytest.mark.parametrize("delegated", ["", "cpu pids\n", "memory\n"])
def test_there_are_no_groups_without_delegated_controllers(tmp_path, delegated):
    root, own, _ = tree(tmp_path, delegated)
    assert box.group_parent(root, own) is None
    assert box.group_parent(root, tmp_path / "no such file") is None
