"""Checks of a vLLM server before a run; every error is one line with a remedy."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from scalerl.core.addresses import is_loopback
from scalerl.core.errors import ConfigError
from scalerl.core.limits import PYTHON_ANSWER_S, SERVER_PROBE_S
from scalerl.training.engines.engine import RoutingShape
from scalerl.training.engines.vllm.protocol import (
    FINISH_UPDATE,
    GENERATE,
    IS_PAUSED,
    MODELS,
    RESUME,
    SERVER_INFO,
    START_UPDATE,
    VERSION_ROUTE,
    WEIGHT_INFO,
    BadAnswer,
    experts_of_tokens,
    nuclei_of,
)
from scalerl.training.engines.vllm.server import ADAPTERS, NO_VLLM
from scalerl.training.placement.devices import driver_advice

OLDEST, NEWEST = (0, 32), (0, 34)
"""Supported versions of vLLM: at least OLDEST, below NEWEST."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of an engine on its server.

    Example: Needs(vocabulary=151936, positions=18432, sequences=512, backend="nccl", fp32_head=True)
    """

    vocabulary: int
    """Rows of the policy's LM head."""
    positions: int
    """Tokens of the longest prompt plus completion, including the phrase."""
    sequences: int
    """Sequences decoded together by all engines of the server."""
    backend: str
    """Backend in --weight-transfer-config."""
    fp32_head: bool = False
    """Whether logits must be computed in FP32 although the weights are not FP32."""
    routing: RoutingShape | None = None
    """Shape of the experts that it must report; None: none."""
    nucleus: bool = False
    """Whether it must report the ids that a token was sampled from, for top-p below 1."""


def check_server(address: str, needs: Needs) -> list[str]:
    """Check a running server; resume it if an earlier run left it paused.

    Returns:
        Warnings for the user.

    Raises:
        ConfigError: The server does not meet the requirements.
    """
    with httpx.Client(base_url=address, timeout=SERVER_PROBE_S, trust_env=False) as client:
        try:
            check_version(address, client.get(VERSION_ROUTE).json()["version"])
            _check_development_mode(address, client)
            notes = _check_settings(address, client, needs)
            _check_length(address, client, needs)
            if client.get(IS_PAUSED).json()["is_paused"]:
                _resume(client, needs)
            _check_logprobs(address, client, needs)
            _check_vocabulary(address, client, needs)
        except httpx.TransportError as error:
            raise ConfigError(
                f"vllm: no answer from {address} ({error or type(error).__name__}); start a server there, or give the "
                "address of a running one"
            ) from None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"vllm: {address} does not answer like a vLLM server ({error!r}); check the address"
            ) from None
    return [*notes, *_warn_of_network(address)]


def _resume(client: httpx.Client, needs: Needs) -> None:
    """Resume a server that an earlier run left paused, perhaps in the middle of an update.

    Layers of an open or failed update have no weights, so that one request would end the server. An update without
    tensors gives them back, and the engine's first swap replaces them. The first request fails if an update is open.
    Adapters are replaced without such an update, which would remove them.
    """
    for path in (RESUME,) if needs.backend == ADAPTERS else (START_UPDATE, FINISH_UPDATE, RESUME):
        client.post(path, json={}, headers={"connection": "close"})  # vLLM closes it after an error


def installed_version(python: str) -> str:
    """Return the version of vLLM that a Python has; empty if it has none."""
    code = (
        "import importlib.metadata as m; "
        "print(*(m.version(name) for name in m.packages_distributions().get('vllm', ())[:1]))"
    )
    return output_of(python, code)


def installed_cuda(python: str) -> str:
    """Return the CUDA that the torch of a Python is built with, such as 13.0, without importing it; empty if none."""
    code = (
        "import importlib.util as u, pathlib as p, re; s = u.find_spec('torch'); "
        "t = p.Path(s.origin).with_name('version.py').read_text() if s else ''; "
        "print(*re.findall(r\"cuda(?:: *[^=]+)? *= *'([\\d.]+)'\", t)[:1])"
    )
    return output_of(python, code)


def output_of(python: str, code: str) -> str:
    """Return what a Python prints for a piece of code; empty if it does not run, or does not answer in time."""
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=PYTHON_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def server_problems(python: str, version: str, driver: str) -> list[str]:
    """Return why the vLLM of a Python cannot serve on this host: its version, or a CUDA that the driver does not run.

    Args:
        python: The Python.
        version: Version of its vLLM; empty: none.
        driver: Version of the NVIDIA driver; empty: none, and the server computes on the CPU.
    """
    problems = []
    try:
        check_version(python, version)
    except ConfigError as error:
        problems.append(str(error))
    if advice := driver_advice(installed_cuda(python) or "0", driver) if driver else "":
        problems.append(f"{python}: {advice}")
    return problems


def check_version(where: str, got: str) -> None:
    """Check a version of vLLM, given as text.

    Raises:
        ConfigError: It is not supported.
    """
    if not got:
        raise ConfigError(f"vllm: {where} {NO_VLLM}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", got)[:2])
    if not OLDEST <= numbers < NEWEST:
        allowed = f">={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, NEWEST))}"
        raise ConfigError(f"vllm: {where} runs version {got}; allowed: {allowed}; install another vLLM there")


def _check_development_mode(address: str, client: httpx.Client) -> None:
    if client.get(WEIGHT_INFO).status_code == 404:
        raise ConfigError(
            f"vllm: {address} has no routes for weights ({WEIGHT_INFO} is missing); start it with "
            "VLLM_SERVER_DEV_MODE=1 in its environment"
        )


def _check_settings(address: str, client: httpx.Client, needs: Needs) -> list[str]:
    settings = client.get(SERVER_INFO).json()["vllm_config"]
    backend = (settings["weight_transfer_config"] or {}).get("backend")
    if needs.backend == ADAPTERS:
        if not settings["lora_config"]:
            raise ConfigError(f"vllm: {address} takes no adapters; start it with --enable-lora")
    elif needs.backend and backend != needs.backend:
        raise ConfigError(
            f"vllm: {address} takes weights by {backend!r}; needed: {needs.backend!r}; start it with "
            f'--weight-transfer-config \'{{"backend": "{needs.backend}"}}\''
        )
    model = settings["model_config"]
    fp32 = "float32" in str(model["dtype"]) or (model["hf_overrides"] or {}).get("head_dtype") == "float32"
    if needs.fp32_head and not fp32:
        raise ConfigError(
            f"vllm: {address} computes its logits in {model['dtype']}; recipe.fp32_head needs FP32; start it with "
            '--hf-overrides \'{"head_dtype": "float32"}\''
        )
    together = settings["scheduler_config"]["max_num_seqs"]
    if together < needs.sequences:
        return [
            f"the vLLM server at {address} decodes {together} sequences together, but {needs.sequences} are sent; the "
            f"rest waits in the server. Start it with --max-num-seqs {needs.sequences}, or lower rollouts.slots"
        ]
    return []


def _check_length(address: str, client: httpx.Client, needs: Needs) -> None:
    length = client.get(MODELS).json()["data"][0]["max_model_len"]
    if length < needs.positions:
        raise ConfigError(
            f"vllm: {address} has --max-model-len {length}; needed: {needs.positions} for the longest prompt and "
            "completion; start it with that, or lower recipe.length's limits"
        )


def _probe(client: httpx.Client, tokens: list[int], **sampling: Any) -> httpx.Response:
    parameters = {"max_tokens": 4, "logprobs": 0, "ignore_eos": True, "detokenize": False, **sampling}
    return client.post(GENERATE, json={"token_ids": tokens, "sampling_params": parameters})


def _check_logprobs(address: str, client: httpx.Client, needs: Needs) -> None:
    """Sample with top_k = 1: log-probabilities are 0 after the sampler's processing, and below 0 before it."""
    answer = _probe(client, [0, 1, 0], temperature=1.0, top_k=1)
    if answer.status_code in (403, 404):
        raise ConfigError(f"vllm: {address} has no {GENERATE}; start it with --enable-scale-out")
    if answer.status_code != 200:
        raise ConfigError(f"vllm: {address} rejects a request with {answer.status_code}: {answer.text[:300]}")
    choice = answer.json()["choices"][0]
    logps = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    if not logps or max(map(abs, logps)) > 1e-4:
        raise ConfigError(
            f"vllm: {address} gives log-probabilities {logps} for a sample from a single allowed token; expected 0; "
            "start it with --logprobs-mode processed_logprobs"
        )
    if choice.get("weight_versions") is None:
        raise ConfigError(f"vllm: {address} does not report which weights sampled a token (weight_versions)")
    if needs.nucleus:
        try:
            nuclei_of(choice.get("sampling_mask"), choice["token_ids"])
        except BadAnswer as error:
            raise ConfigError(
                f"vllm: {address}: {error}; recipe.top_p below 1 needs a server on GPUs that was started with "
                "--return-sampling-mask"
            ) from None
    if needs.routing is not None:
        try:  # the last token was not processed
            experts_of_tokens(choice.get("routed_experts"), 3 + len(logps) - 1, needs.routing)
        except BadAnswer as error:
            raise ConfigError(
                f"vllm: {address}: {error}; recipe.routing_replay = 'on' needs a server on GPUs that was started with "
                "--enable-return-routed-experts"
            ) from None


def _check_vocabulary(address: str, client: httpx.Client, needs: Needs) -> None:
    """Sample with only the last token id allowed, then with only the next id, which must not exist."""
    more = {"top_k": 1} if needs.nucleus else {}  # vLLM requires it with sampling masks
    last, beyond = (
        _probe(client, [0], temperature=1.0, allowed_token_ids=[token], **more).status_code == 200
        for token in (needs.vocabulary - 1, needs.vocabulary)
    )
    if not last or beyond:
        size = "more" if beyond else "fewer"
        raise ConfigError(
            f"vllm: {address} serves a model with {size} tokens than the policy's {needs.vocabulary}; start it with "
            "the policy's model"
        )


def _warn_of_network(address: str) -> list[str]:
    if is_loopback(urlsplit(address).hostname or ""):
        return []
    return [
        f"the vLLM server at {address} accepts weights and paths of files to read from everyone who can reach it: keep "
        "that network private (docs/vllm.md)"
    ]
