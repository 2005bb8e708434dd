"""Starting, checking and ending a vLLM server."""

import dataclasses
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import torch.distributed as dist
from fake_vllm import VOCABULARY
from vllm_setup import NEEDS, wait_for

from scalerl.core.addresses import reserved_port
from scalerl.core.errors import ConfigError
from scalerl.training.engines.engine import RoutingShape
from scalerl.training.engines.vllm import server as server_module
from scalerl.training.engines.vllm.checks import check_server
from scalerl.training.engines.vllm.server import SERVER_CODE, ServerSpec, VllmServer, command, environment

HERE = Path(__file__).parent

# ------------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version_name": "0.31.4"}, "0.31.4"),
        ({"development": False}, "VLLM_SERVER_DEV_MODE=1"),
        ({"scale_out": False}, "--enable-scale-out"),
        ({"processed": False}, "--logprobs-mode"),
        ({"max_model_len": 199}, "--max-model-len 199"),
        ({"vocabulary": VOCABULARY + 1}, "more tokens"),
        ({"vocabulary": VOCABULARY - 1}, "fewer tokens"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_unsuitable_server_is_a_one_line_error_with_the_remedy(server, change, message):
    for name, value in change.items():
        setattr(server, name, value)
    with pytest.raises(ConfigError, match=message) as caught:
        check_server(server.address, NEEDS)
    assert "\n" not in str(caught.value) and server.address in str(caught.value)


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (None, "does not return the experts"),
        ((2, 2, 8), r"\(6, 2, 2\) and type uint8; expected integers for 6 tokens, 3 layers and 2 active"),
        ((3, 2, 16), "experts 0 to 12; the model has 0 to 7"),
    ],
)
def test_a_server_without_the_models_experts_is_an_error(server, experts, message):
    server.experts = experts
    with pytest.raises(ConfigError, match=f"{message}.*--enable-return-routed-experts"):
        check_server(server.address, dataclasses.replace(NEEDS, routing=RoutingShape(3, 2, 8)))


def test_a_server_without_sampling_masks_is_an_error_under_top_p(server):
    needs = dataclasses.replace(NEEDS, nucleus=True)
    with pytest.raises(ConfigError, match=r"4 tokens, but 0 sampling masks.*--return-sampling-mask"):
        check_server(server.address, needs)
    server.masks = True
    assert check_server(server.address, needs) == []


def test_another_weight_transfer_and_a_head_in_bf16_are_errors(server):
    with pytest.raises(ConfigError, match="needed: 'nccl'"):
        check_server(server.address, dataclasses.replace(NEEDS, backend="nccl"))
    server.settings["model_config"]["dtype"] = "torch.bfloat16"
    needs = dataclasses.replace(NEEDS, fp32_head=True)
    with pytest.raises(ConfigError, match="--hf-over"):
        check_server(server.address, needs)
    server.settings["model_config"]["hf_overrides"] = {"head_dtype": "float32"}
    assert check_server(server.address, needs) == []


def test_an_address_without_a_vllm_server_is_an_error(server):
    with pytest.raises(ConfigError, match="no answer"):
        check_server("http://127.0.0.1:9", NEEDS)
    server.settings = []
    with pytest.raises(ConfigError, match="vLLM server"):
        check_server(server.address, NEEDS)


def test_a_server_that_accepts_weights_from_a_network_gives_a_warning():
    from scalerl.training.engines.vllm.checks import _warn_of_network

    for address in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"):
        assert _warn_of_network(address) == []
    for address in ("http://10.0.0.7:8000", "http://gpu-7:8000"):
        (note,) = _warn_of_network(address)
        assert address in note and "keep that network private" in note


def test_a_server_that_an_earlier_run_left_in_the_middle_of_an_update_is_resumed(server):
    server.unpaused.clear()
    server.partial = True
    check_server(server.address, NEEDS)
    assert server.unpaused.is_set()


# ------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def spec(tmp_path):
    """A specification whose Python is the fake server."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_vllm.py"} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return ServerSpec(
        model="some/model", max_model_len=300, max_num_seqs=9, log=tmp_path / "logs" / "vllm.log", python=str(program)
    )


def after(line, name):
    return line[line.index(name) + 1]


def test_the_command_line_sets_what_the_engine_relies_on(spec):
    line = command(dataclasses.replace(spec, dtype="bfloat16", fp32_head=True, extra=("--enforce-eager",)), 8123, "own")
    assert line[1:3] == ["-m", "vllm.entrypoints.openai.api_server"] and line[-1] == "--enforce-eager"
    expected = {
        "--model": "some/model", "--host": "127.0.0.1", "--port": "8123", "--max-model-len": "300",
        "--served-model-name": "own",
        "--max-num-seqs": "9", "--logprobs-mode": "processed_logprobs", "--generation-config": "vllm",
        "--worker-extension-cls": "scalerl_weights.WorkerExtension", "--tensor-parallel-size": "1",
    }  # fmt: skip
    assert {name: after(line, name) for name in expected} == expected
    assert json.loads(after(line, "--weight-transfer-config")) == {"backend": "scalerl_directory"}
    assert json.loads(after(line, "--hf-overrides")) == {"head_dtype": "float32"}
    assert {"--enable-scale-out", "--skip-tokenizer-init"} <= set(line)


def test_the_server_sees_only_the_code_that_it_loads(spec):
    added = dataclasses.replace(spec, environment={"VLLM_CPU_KVCACHE_SPACE": "1"})
    made = environment(added, {"PATH": "/bin", "PYTHONPATH": "/ours"})
    assert made == {
        "PATH": "/bin", "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPATH": str(SERVER_CODE), "PYTHONSAFEPATH": "1",
    }  # fmt: skip
    assert sorted(path.name for path in SERVER_CODE.glob("*.py")) == ["scalerl_adapters.py", "scalerl_weights.py"]


def test_a_server_in_fp32_multiplies_in_fp32_unless_the_user_says_otherwise(spec):
    exact = dataclasses.replace(spec, dtype="float32")
    assert environment(exact, {})["TRITON_F32_DEFAULT"] == "ieee" and "TRITON_F32_DEFAULT" not in environment(spec, {})
    chosen = dataclasses.replace(exact, environment={"TRITON_F32_DEFAULT": "tf32"})
    assert environment(chosen, {})["TRITON_F32_DEFAULT"] == "tf32"


# ------------------------------------------------------------------------------------------------------------ process


def answers(address):
    try:
        return httpx.get(f"{address}/health", trust_env=False, timeout=1.0).status_code == 200
    except httpx.TransportError:
        return False


def test_a_server_starts_is_checked_and_ends(spec):
    server = VllmServer(spec)
    server.wait_ready()
    assert server.obituary() is None and check_server(server.address, NEEDS) == []
    assert "fake vLLM at" in server.reason()
    server.close()
    assert not answers(server.address)


def test_the_error_of_a_failed_start_is_one_line_with_the_reason(spec):
    server = VllmServer(dataclasses.replace(spec, extra=("--die",)))
    with pytest.raises(ConfigError) as caught:
        server.wait_ready()
    assert "out of luck" in str(caught.value) and "\n" not in str(caught.value)


TAKEN = "OSError: [Errno 98] Address already in use"


@pytest.fixture
def unlucky(spec, tmp_path):
    """A specification of a server that finds its port taken a number of times."""

    def make(times):
        (tmp_path / "fake").write_bytes(Path(spec.python).read_bytes())
        (tmp_path / "fake").chmod(0o755)
        Path(spec.python).write_text(
            f"#!/bin/sh\necho >> {tmp_path}/starts\n"
            f'[ $(wc -l < {tmp_path}/starts) -gt {times} ] && exec {tmp_path}/fake "$@"\n'
            f"echo '{TAKEN}'\nexit 1\n"
        )
        return spec

    return make


def test_a_server_whose_port_is_taken_starts_on_another_one(unlucky):
    server = VllmServer(unlucky(2))
    first = server.address
    server.wait_ready()
    assert answers(server.address) and server.address != first
    server.close()


def test_three_taken_ports_are_an_error_with_cause_and_cure(unlucky, tmp_path):
    server = VllmServer(unlucky(99))
    with pytest.raises(ConfigError, match=r"Address already in use .*3 ports of 127.0.0.1 were tried.*ss -ltnp"):
        server.wait_ready()
    assert len((tmp_path / "starts").read_text().splitlines()) == 3


def test_a_reserved_port_is_only_for_the_server_that_is_told_it():
    host = "127.0.0.1"
    with reserved_port(host) as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for _ in range(200):
            with reserved_port(host) as another:
                assert another != port
        with socket.create_server(("127.0.0.1", port)) as told:  # sets SO_REUSEADDR, as vLLM does
            told.listen()
            socket.create_connection(("127.0.0.1", port)).close()
    for uv in (True, False):
        with reserved_port(host) as port:
            store = dist.TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=5), use_libuv=uv)
            store.set("a", "b")
            del store


CORE = "(EngineCore pid=7) ERROR 11-23 05:08:31 [core.py:15] "
VALIDATED = """(APIServer pid=23) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
  Value error, sampling distribution replay requires Model Runner V2 [type=value_error, input_value=ArgsKwargs((), {'mo\
del_co... 'shutdown_timeout': 0}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
FIELD = """pydantic_core._pydantic_core.ValidationError: 2 validation errors for CacheConfig
block_size
  Input should be greater than 0 [type=greater_than, input_value=-1, input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/greater_than
swap_space
  Input should be greater than 0 [type=greater_than, input_value=-1, input_type=int]
"""
LOGS = {
    "pydantic, of a record": (VALIDATED, "sampling distribution replay requires Model Runner V2"),
    "pydantic, of a field": (FIELD, "block_size: Input should be greater than 0"),
    "a usage message": ("usage: api_server.py\n  [--x]\napi_server.py: error: unrecognized arguments: --no",
                        "api_server.py: error: unrecognized arguments: --no"),
    "another process": (f"{CORE}Traceback (most recent call last):\n{CORE}  raise ValueError(\n{CORE}ValueError: "
                        "the cache is too large\nTraceback:\nRuntimeError: Engine core failed. See root cause above.\n"
                        "nanobind: leaked 4 instances!", "ValueError: the cache is too large"),
    "a warning": ("(APIServer pid=2) WARNING 11-23 05:09:11 [base.py:380] ValueError: no tokenizer\nINFO: loading\n",
                  "no error in its log, which ends with 'INFO: loading'"),
    "only a consequence": (f"INFO: ok\n{CORE}EngineDeadError: issue. See stack trace (above) for the root cause.\nbye",
                           "EngineDeadError: issue. See stack trace (above) for the root cause."),
}  # fmt: skip
"""Ends of logs of vLLM 0.32, shortened, and their reasons."""


@pytest.mark.parametrize("log", LOGS)
def test_the_reason_of_a_death_is_the_last_error_that_is_not_a_consequence(spec, log):
    server = VllmServer(spec)
    server.close()
    text, reason = LOGS[log]
    spec.log.write_text(text)
    assert server.reason() == f"{reason} (log: {spec.log})"


def test_a_server_that_takes_too_long_is_ended(spec):
    slow = Path(spec.python)
    slow.write_text("#!/bin/sh\necho loading\nexec sleep 600\n")
    server = VllmServer(dataclasses.replace(spec, start_s=0.5))
    with pytest.raises(ConfigError, match="start_timeout_s"):
        server.wait_ready()
    assert server.obituary() is not None


HELPER = """
import pathlib, pickle, sys, time
from scalerl.training.engines.vllm.server import VllmServer
server = VllmServer(pickle.loads(pathlib.Path("spec").read_bytes()))
server.wait_ready()
print(server.address, flush=True)
time.sleep(600)
"""


def test_a_server_ends_when_its_parent_is_killed(spec, tmp_path):
    import pickle

    (tmp_path / "spec").write_bytes(pickle.dumps(spec))
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, "-c", HELPER], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE
    )
    address = parent.stdout.readline().decode().strip()
    assert answers(address)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not answers(address))


def test_a_server_ignores_a_hangup_and_can_be_terminated(tmp_path):
    guard, log = Path(server_module.__file__).with_name("guard.py"), tmp_path / "log"
    with subprocess.Popen([sys.executable, guard, log, "cat", "/proc/self/status"], stdin=subprocess.PIPE) as started:
        assert started.wait() == 0  # standard input stays open, because its end terminates the server
    ignored = int(next(line.split()[1] for line in log.read_text().splitlines() if line.startswith("SigIgn")), 16)
    assert [n for n in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) if ignored >> (n - 1) & 1] == [signal.SIGHUP]


def test_an_engine_reports_at_once_how_its_server_died(spec, tmp_path):
    from vllm_setup import PLAIN, Files, direct, drain, requests

    from scalerl.training.engines.directory import DirectoryTransfer
    from scalerl.training.engines.engine import Sampling
    from scalerl.training.engines.process_engine import EngineDied
    from scalerl.training.engines.vllm.client import vllm_client

    server = VllmServer(spec)
    server.wait_ready()
    engine, _ = direct(
        vllm_client(
            server,
            slots=(4, 4),
            rule=PLAIN,
            sampling=Sampling(),
            needs=NEEDS,
            transfer=DirectoryTransfer(Files(tmp_path)),
        )
    )
    engine.submit(requests(4))
    server.close()
    with pytest.raises(EngineDied, match="signal 15"):
        engine.submit(requests(100, first=4))
        drain(engine)
    engine.client.stop()
