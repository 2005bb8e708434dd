"""Starts a vLLM server: its command line, and a process that ends together with this one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from scalerl.core.addresses import reserved_port
from scalerl.core.errors import ConfigError
from scalerl.core.limits import SERVER_HEALTH_S
from scalerl.training.engines.vllm.protocol import HEALTH, MODELS

SERVER_CODE = Path(__file__).parent / "inside"
"""Directory of the code that the server loads."""

ADAPTERS = "scalerl_adapters"
"""Backend of a server that takes adapters; it needs no weight transfer."""
EXTENSIONS = {"scalerl_directory": "scalerl_weights.WorkerExtension", ADAPTERS: "scalerl_adapters.WorkerExtension"}
"""Code in INSIDE that the workers load, by backend."""

NO_VLLM = (
    "has no vLLM; install it there (pip install 'scalerl[cluster]'), or give a Python that has it: "
    "placement.vllm_python, or --vllm-python of scalerl eval"
)
"""What follows the name of such a Python."""

_PREFIX = re.compile(r"^\(\w+ pid=\d+\) (?:[A-Z]+ \S+ \S+ \[[^]]*\] )?")
"""Process, level, time and place before vLLM's messages."""
_ERROR = re.compile(r"(?:[\w./-]+: )?[\w.]*(?:[Ee]rror|Exception)(?:: .|$)")
"""The last line of a traceback, or of a usage message."""
_VALIDATED = re.compile(r"\s+(?:Value error, |Assertion failed, )?(.*?) \[type=\w+, input_")
"""A message of pydantic, with the type of the error and the input, which is long and no help."""
_ELSEWHERE = re.compile("root cause|see stack trace", re.IGNORECASE)
"""Errors of a process that only say that another one has failed."""
_OCCUPIED = re.compile("address already in use|EADDRINUSE", re.IGNORECASE)
"""Words of a server, or of torch in its workers, that found a port taken."""
_STARTS = 3
"""Ports that are tried, in a row."""
_REASON_LINES = 300
"""Lines at the end of a log among which the reason of a death is searched; the tracebacks of its processes fit."""


@dataclass(frozen=True)
class ServerSpec:
    """Settings of a server to start.

    Example: ServerSpec(model="Qwen/Qwen3-8B", max_model_len=18432, max_num_seqs=256, log=Path("runs/a/vllm.log"))
    """

    model: str
    """Directory or hub name of the policy."""
    max_model_len: int
    """Tokens of the longest prompt plus completion, including the phrase."""
    max_num_seqs: int
    """Sequences decoded together by all engines of the server."""
    log: Path
    """File for its output."""
    python: str = "python"
    """Python of an environment with vLLM."""
    backend: str = "scalerl_directory"
    """Backend by which it receives weights: scalerl_directory, scalerl_adapters or nccl; empty: it receives none."""
    dtype: str = "auto"
    """Dtype of the weights: auto, float32 or bfloat16."""
    fp32_head: bool = False
    """Whether to compute logits in FP32 although the weights are not FP32."""
    tensor_parallel: int = 1
    """GPUs that share the model."""
    host: str = "127.0.0.1"
    """Interface to listen on. Everyone who can reach it can change its weights: use loopback or a private network."""
    start_s: float = 1200.0
    """Seconds allowed until it is ready, which includes loading and compiling the model."""
    extra: tuple[str, ...] = ()
    """Additional vLLM arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables."""


def command(spec: ServerSpec, port: int, name: str) -> list[str]:
    """Return the command line of a server, which gives its model a name that no other server has."""
    line = [
        spec.python, "-m", "vllm.entrypoints.openai.api_server", "--model", spec.model,
        "--served-model-name", name, "--host", spec.host, "--port", str(port), "--enable-scale-out",
        "--skip-tokenizer-init",
        "--generation-config", "vllm", "--logprobs-mode", "processed_logprobs", "--dtype", spec.dtype,
        "--max-model-len", str(spec.max_model_len), "--max-num-seqs", str(spec.max_num_seqs),
        "--tensor-parallel-size", str(spec.tensor_parallel), "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if spec.backend in EXTENSIONS:
        line += ["--worker-extension-cls", EXTENSIONS[spec.backend]]
    if spec.backend not in ("", ADAPTERS):
        line += ["--weight-transfer-config", json.dumps({"backend": spec.backend})]
    if spec.fp32_head and spec.dtype != "float32":
        line += ["--hf-overrides", json.dumps({"head_dtype": "float32"})]
    return [*line, *spec.extra]


def environment(spec: ServerSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: the inherited one, with the routes for weights and the path of INSIDE.

    In FP32, Triton's attention would multiply in TF32, with log-probabilities off by up to 0.004 nats (H100).
    """
    path = os.pathsep.join(part for part in (str(SERVER_CODE), spec.environment.get("PYTHONPATH", "")) if part)
    required = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1"}
    if spec.backend == ADAPTERS:
        required["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if spec.dtype == "float32":
        required["TRITON_F32_DEFAULT"] = "ieee"
    return {**inherited, **required, **spec.environment, "PYTHONPATH": path}  # the inherited path is not for its Python


class VllmServer:
    """A server that this process starts; it ends with this process, even if that is killed (guard.py)."""

    def __init__(self, spec: ServerSpec) -> None:
        """Start the server; call `wait_ready` next."""
        self.spec, self.address, self._name = spec, "", f"scalerl-{secrets.token_hex(8)}"
        self._port = ExitStack()
        self._start()

    def _start(self) -> None:
        spec = self.spec
        port = self._port.enter_context(reserved_port(spec.host))  # vLLM binds it when it has loaded its code
        self.address = f"http://{spec.host}:{port}"
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        spec.log.write_bytes(b"")
        line = [sys.executable, str(Path(__file__).with_name("guard.py")), str(spec.log)]
        line += command(spec, port, self._name)  # which a name among the user's arguments replaces
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, env=environment(spec, os.environ))

    def wait_ready(self) -> None:
        """Wait until the server answers; if its port has been taken, start it again on another one.

        Raises:
            ConfigError: It ended or took longer than `start_s`; the message has the reason in its log.
        """
        for left in reversed(range(_STARTS)):
            own = not any(word.startswith("--served-model-name") for word in self.spec.extra)
            ready = _answers(self.address, self.spec.start_s, self.obituary, self._name if own else "")
            self._port.close()
            if ready:
                return
            death, last = self.obituary(), self.reason()
            self.close()
            if death is None or not _OCCUPIED.search(self.spec.log.read_text(errors="replace")):
                break
            if left:
                self._start()
            else:
                death += f". {_STARTS} ports of {self.spec.host} were tried; see which program takes them: ss -ltnp"
        if death is None:
            limit = f"{self.spec.start_s:g} s (placement.start_timeout_s)"
            raise ConfigError(f"vllm: the server was not ready after {limit}; {last}")
        if "No module named 'vllm'" in death:
            death = f"{self.spec.python} {NO_VLLM}"
        raise ConfigError(f"vllm: the server did not start: {death}")

    def obituary(self) -> str | None:
        """Return in one line how it ended and why, by its log; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        return f"its process {how}; {self.reason()}"

    def reason(self) -> str:
        """Return the last error in its log, or the last line if there is none, and the path of the log."""
        text = self.spec.log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and " WARNING " not in line[:40]][-_REASON_LINES:]
        plain = [_PREFIX.sub("", line) for line in lines]
        errors = [
            _validated(plain[at + 1 : at + 3]) or line if "validation error" in line else line
            for at, line in enumerate(plain)
            if _ERROR.match(line)
        ]
        causes = [error for error in errors if not _ELSEWHERE.search(error)]
        last = f"no error in its log, which ends with {plain[-1]!r}" if plain else "its log is empty"
        return f"{(causes or errors or [last])[-1].strip()[:500]} (log: {self.spec.log})"

    def close(self) -> None:
        """End the server and wait until nothing of it is left."""
        self._port.close()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, or was closed, already
            self._process.stdin.write(b"end\n")  # lets the server shut down before it is killed
            self._process.stdin.close()
        self._process.wait()


def _validated(lines: Sequence[str]) -> str:
    """Return the message of pydantic's first error, without its input; empty if the lines hold none.

    The lines after the first are a field's name, unless the error is of the whole record, and an indented message.
    """
    for count, line in enumerate(lines):
        if found := _VALIDATED.match(line):
            return ": ".join([*lines[:count], found[1]])
    return ""


def wait_for_server(address: str, limit_s: float) -> None:
    """Wait until a server given by address answers.

    Raises:
        ConfigError: It did not answer within `limit_s` seconds.
    """
    if not _answers(address, limit_s):
        raise ConfigError(f"vllm: no answer from {address} for {limit_s:g} s; restart the server")


def _answers(address: str, limit_s: float, death: Callable[[], str | None] = lambda: None, name: str = "") -> bool:
    """Wait until a server answers, has died, or the time is up; return whether it answers.

    Args:
        address: Its address.
        limit_s: Seconds.
        death: Function that returns how it ended; None while it runs.
        name: Name of its model: another program may answer at a port that it has not got. Empty: any.
    """
    end = time.monotonic() + limit_s
    with httpx.Client(base_url=address, timeout=SERVER_HEALTH_S, trust_env=False) as client:
        while death() is None and time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError):
                if client.get(HEALTH).status_code == 200 and (not name or name in client.get(MODELS).text):
                    return True
            time.sleep(0.2)
    return False
