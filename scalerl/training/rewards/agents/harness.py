"""One run of an agent's program: its environment, its time limit, and the reward that it prints.

The program never gets the environment of the run. No process that it starts outlives it (launcher.py).
"""

from __future__ import annotations

import json
import math
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from scalerl.core.child_signals import SAFE_PATH
from scalerl.core.errors import short
from scalerl.core.files import parse_json
from scalerl.core.limits import PROGRAM_END_S
from scalerl.core.plugins import finite_number
from scalerl.core.printable import encodable
from scalerl.training.rewards.agents import launcher

PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV",
    "CONDA_PREFIX", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""Environment variables of the run that every program gets, with those that begin with LC_; none holds a key."""

DIRECTORY = Path(__file__).parent
LAUNCHER = (sys.executable, "-I", "-S", str(DIRECTORY / "launcher.py"))

OUTPUT = 1 << 20
"""Bytes at the end of a program's standard output in which the reward is looked for."""
ERROR_BYTES = 1 << 12
"""Bytes at the end of its standard error that a message may contain."""
LOOK_AGAIN_S = 0.1
"""Seconds between looks at the clock."""

ALLOWED_RESULTS = (
    'a last line such as {"reward": 0.5}, with `reward`, or `rewards`, a list with a number for each turn of the '
    "policy or an object of numbers by the ids of its answers, and further numbers"
)
ID = re.compile(r"(?:chat)?cmpl-([1-9][0-9]{0,8})")
"""Id of an answer of the endpoint, which has the number of the turn from 1."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended.

    Example: ProgramEnd(reward=1.0, metrics={"steps": 3.0})
    """

    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """Its own numbers."""
    problem: str = ""
    """Reason for which it gave no reward."""
    rewards: Mapping[int, float] | tuple[float, ...] = ()
    """Rewards of turns: of all, or by their numbers from 0; empty: the last turn has `reward`."""


def run(
    settings: Mapping[str, Any],
    row: Mapping[str, Any],
    base_url: str,
    key: str,
    own_s: Callable[[], float],
    stopped: Callable[[], bool],
) -> ProgramEnd:
    """Run the program of an agent until it ends; return its report.

    Args:
        settings: Settings of its task (`AgentTask.settings`).
        row: Row of the rollout, which JSON can hold.
        base_url: Address of the endpoint.
        key: Key of the rollout; it never appears in the report.
        own_s: Function that returns the seconds that count for the time limit.
        stopped: Function that returns whether the rollout is no longer needed.
    """
    name = settings["function"] or settings["command"][0]
    command = list(settings["command"]) or [sys.executable, str(DIRECTORY / "call.py"), settings["function"]]
    environment = environment_of(settings, base_url, key)
    process: Process
    if settings.get("imported_once"):
        process = nursery_of(settings, environment).start(environment, row)
    else:
        process = subprocess.Popen(
            [*LAUNCHER, kind_of_launcher(), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            start_new_session=True,
        )  # fmt: skip
    text = json.dumps(row).encode()
    tails = {process.stdout: b"", process.stderr: b""}
    late = _follow(process, len(text).to_bytes(8, "little") + text, tails, settings["rollout_s"], own_s, stopped)
    output, complaint = (part.decode("utf-8", "replace").replace(key, "KEY") for part in tails.values())
    if late:
        return ProgramEnd(problem=f"{name} took longer than data.rollout_s = {settings['rollout_s']:g} s")
    if process.returncode:
        said = " ".join((complaint or output)[-500:].split())
        return ProgramEnd(problem=encodable(f"{name} ended with exit code {process.returncode}: {said}"))
    return read_report(output, name)


@cache
def uncontained() -> str:
    """Return why programs of agents have no namespace of processes on this machine; empty: they have one."""
    probe = subprocess.run(
        [*LAUNCHER, launcher.PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}
    )
    return " ".join(probe.stderr.split()) or f"exit code {probe.returncode}" if probe.returncode else ""


def kind_of_launcher() -> str:
    """Return how a launcher runs a program here: the first word of its command line."""
    return launcher.SUPERVISED if uncontained() else launcher.CONTAINED


def environment_of(settings: Mapping[str, Any], base_url: str, key: str) -> dict[str, str]:
    """Return the environment of a program: nothing of the run's but paths, language and what the user lists."""
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("LC_")}
    kept |= {name: os.environ[name] for name in settings["environment"] if name in os.environ}
    # a function is imported from where the run would import it, such as the directory of the user's script
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    safe = dict([SAFE_PATH]) | found if settings["function"] else {}
    return kept | safe | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key, "OPENAI_MODEL": settings["model"]}


class Forked:
    """A launcher that a nursery forked, with what is used here of a `Popen`."""

    def __init__(self, ends: Sequence[int]) -> None:
        """Take our ends of its standard input, output and error, and of the pipe with its id and exit code."""
        self.stdin: IO[bytes] = os.fdopen(ends[0], "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(ends[1], "rb", buffering=0)
        self.stderr: IO[bytes] = os.fdopen(ends[2], "rb", buffering=0)
        self._status: IO[bytes] = os.fdopen(ends[3], "rb", buffering=0)
        self._pid, self.returncode = self._status.read(4), 0

    def wait(self) -> int:
        """Wait for its end; return the exit code."""
        code = self._status.read(1)
        self._status.close()
        self.returncode = code[0] if code else 128 + signal.SIGKILL
        return self.returncode

    def kill(self) -> None:
        """Kill the launcher, which did not end in time."""
        with suppress(ProcessLookupError):
            os.kill(int.from_bytes(self._pid, "little") or 1 << 30, signal.SIGKILL)


Process = subprocess.Popen[bytes] | Forked


class Nursery:
    """A process that has imported a function and forks its calls (nursery.py)."""

    def __init__(self, function: str, environment: Mapping[str, str]) -> None:
        """Start it; it ends with this process."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(DIRECTORY / "nursery.py"), function, str(theirs.fileno()), kind_of_launcher()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=dict(environment),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self._lock = threading.Lock()

    def start(self, variables: Mapping[str, str], row: Mapping[str, Any]) -> Forked:
        """Fork a call.

        Args:
            variables: Its environment.
            row: Row of the rollout, whose columns other than `task` are what the function is prepared for.

        Raises:
            OSError: The process has ended.
        """
        pairs = [os.pipe() for _ in range(4)]
        ours = [pairs[0][1], *(read for read, _ in pairs[1:])]
        theirs = [pairs[0][0], *(write for _, write in pairs[1:])]
        own = {name: variables[name] for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")}
        wanted = {name: value for name, value in row.items() if name not in ("prompt", "task")}
        message = json.dumps({"variables": own, "prepare": wanted}).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [message], theirs)
        except OSError:
            for file in ours:
                os.close(file)
            raise
        finally:
            for file in theirs:
                os.close(file)
        return Forked(ours)

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End it; calls under way go on."""
        self._socket.close()


_NURSERIES: dict[str, Nursery] = {}
_NURSERIES_LOCK = threading.Lock()


def nursery_of(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Nursery:
    """Return the process of a function, which starts when it is needed."""
    shared = {name: value for name, value in environment.items() if not name.startswith("OPENAI_")}
    key = json.dumps([settings["function"], shared], sort_keys=True)
    with _NURSERIES_LOCK:
        if key in _NURSERIES and _NURSERIES[key].ended:
            _NURSERIES.pop(key).close()
        if key not in _NURSERIES:
            _NURSERIES[key] = Nursery(settings["function"], shared)
        return _NURSERIES[key]


def _follow(
    process: Process,
    text: bytes,
    tails: dict[Any, bytes],
    limit_s: float,
    own_s: Callable[[], float],
    stopped: Callable[[], bool],
) -> bool:
    """Write the row, and read the output until the launcher ends; return whether the program was late.

    Consumes: the output. Produces: the end of the output in `tails`. Waits for: the launcher. Unblocked by: its end, or
    the time limit, at which the end of its standard input makes it kill the program.
    """
    assert process.stdin is not None
    late, deadline, unread = False, math.inf, len(tails)
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as ready:
        for file in tails:
            ready.register(file, selectors.EVENT_READ)
        ready.register(process.stdin, selectors.EVENT_WRITE)
        while unread:
            for event, _ in ready.select(LOOK_AGAIN_S):
                if event.fileobj is process.stdin:
                    text = _write(event.fd, text)
                    if not text:
                        ready.unregister(process.stdin)
                elif part := os.read(event.fd, 1 << 16):
                    most = OUTPUT if event.fileobj is process.stdout else ERROR_BYTES
                    tails[event.fileobj] = (tails[event.fileobj] + part)[-most:]
                else:
                    ready.unregister(event.fileobj)
                    unread -= 1
            late = late or own_s() > limit_s
            if deadline == math.inf and (late or stopped()):
                if text:
                    ready.unregister(process.stdin)
                    text = b""
                process.stdin.close()
                deadline = time.monotonic() + PROGRAM_END_S
            if time.monotonic() > deadline:
                process.kill()
                break
    process.wait()
    for file in (process.stdin, *tails):
        file.close()
    return late


def _write(pipe: int, text: bytes) -> bytes:
    """Write as much of a text as a pipe takes; return the rest, empty if the launcher has ended."""
    try:
        return text[os.write(pipe, text[: 1 << 16]) :]
    except BlockingIOError:
        return text
    except BrokenPipeError:
        return b""


def read_report(output: str, name: str) -> ProgramEnd:
    """Return the report in the last line of an output that is a JSON object.

    Args:
        output: Text of the standard output.
        name: Name of the program, for messages.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if not line.startswith("{"):
            continue
        try:
            values = parse_json(line)
        except ValueError:
            continue
        rewards = _rewards(values.pop("rewards", ()))
        numbers = {encodable(str(key)): finite_number(value) for key, value in values.items()}
        reward = numbers.pop("reward", math.fsum(_values(rewards)) if rewards else None)
        if rewards is None or reward is None or None in numbers.values():
            return ProgramEnd(problem=encodable(f"{name} printed {short(line)}; allowed: {ALLOWED_RESULTS}"))
        return ProgramEnd(reward, {key: value for key, value in numbers.items() if value is not None}, "", rewards)
    last = f"printed {short(lines[-1])} last" if lines else "printed nothing"
    return ProgramEnd(problem=encodable(f"{name} {last}; allowed: {ALLOWED_RESULTS}"))


def _rewards(given: Any) -> Mapping[int, float] | tuple[float, ...] | None:
    """Return rewards of turns as a program gives them: a list, or an object by ids of answers; None: they are wrong."""
    by_id = isinstance(given, dict)
    if not by_id and not isinstance(given, list | tuple):
        return None
    values = [value for value in map(finite_number, given.values() if by_id else given) if value is not None]
    places = [int(found[1]) - 1 for found in map(ID.fullmatch, given) if found] if by_id else []
    if len(values) < len(given) or (by_id and len(set(places)) < len(given)):
        return None
    return dict(zip(places, values, strict=True)) if by_id else tuple(values)


def _values(rewards: Mapping[int, float] | tuple[float, ...] | None) -> Sequence[float]:
    return [] if rewards is None else list(rewards.values()) if isinstance(rewards, Mapping) else rewards


def rewards_of(report: ProgramEnd, turns: int) -> tuple[float, ...]:
    """Return the rewards of all turns of a rollout; empty if the program gave none.

    Raises:
        ValueError: The program did not give a reward of each turn, or of one that there was not.
    """
    given = report.rewards
    if isinstance(given, Mapping):
        if max(given, default=0) >= turns:
            raise ValueError(f"the program returned a reward of turn {max(given) + 1} after {turns} turns of the "
                             "policy; allowed: `rewards` of answers that it got")  # fmt: skip
        return tuple(given.get(turn, 0.0) for turn in range(turns)) if given else ()
    if given and len(given) != turns:
        raise ValueError(f"the program returned {len(given)} rewards of {turns} turns of the policy; allowed: one of "
                         "each turn, in the order of the answers, or an object with the ids of answers")  # fmt: skip
    return given
