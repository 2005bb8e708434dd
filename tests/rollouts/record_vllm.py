"""Records the answers of a real vLLM server, for test_vllm_recorded.py.

Usage: record_vllm.py http://127.0.0.1:8000 WEIGHTS.safetensors. The server must be freshly started as
in docs/vllm.md, with a model of 48 tokens; the file has weights for it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx

from scalerl.training.engines.engine import Sampling
from scalerl.training.engines.vllm import protocol
from scalerl.training.engines.vllm.protocol import (
    FINISH_UPDATE,
    GENERATE,
    HEALTH,
    IS_PAUSED,
    MODELS,
    PAUSE,
    RESUME,
    SERVER_INFO,
    START_UPDATE,
    UPDATE,
    VERSION_ROUTE,
    WEIGHT_INFO,
    generate_body,
)

FILE = Path(__file__).with_name("vllm_recorded.json")
KEPT = ("weight_transfer_config", "model_config", "scheduler_config")
"""Recorded settings of the server; the rest describes the machine."""


def main(address: str, weights: str) -> None:
    protocol.STREAM_INTERVAL = 3
    probe = {"max_tokens": 4, "logprobs": 0, "ignore_eos": True, "detokenize": False, "temperature": 1.0}
    first = generate_body((5, 9, 2), 7, Sampling(stop=(1,)), "scalerl-train-0", "0.0")
    second = generate_body((5, 9, 2), 7, Sampling(stop=(1,)), "scalerl-train-1", "1.7")
    wanted = {id(first): '"finish_reason":"length"', id(second): '"finish_reason":"stop"'}
    questions = [
        ("GET", HEALTH, None), ("GET", VERSION_ROUTE, None), ("GET", WEIGHT_INFO, None), ("GET", SERVER_INFO, None),
        ("GET", MODELS, None), ("GET", IS_PAUSED, None),
        ("POST", GENERATE, {"token_ids": [0, 1, 0], "sampling_params": {**probe, "top_k": 1}}),
        ("POST", GENERATE, {"token_ids": [0], "sampling_params": {**probe, "allowed_token_ids": [47]}}),
        ("POST", GENERATE, {"token_ids": [0], "sampling_params": {**probe, "allowed_token_ids": [48]}}),
        ("POST", GENERATE, first),
        ("POST", PAUSE, None), ("POST", START_UPDATE, None), ("POST", UPDATE, {"update_info": {"path": weights}}),
        ("POST", FINISH_UPDATE, {"weight_version": "7"}), ("GET", WEIGHT_INFO, None), ("POST", RESUME, None),
        ("POST", GENERATE, second),
        ("POST", START_UPDATE, None), ("POST", UPDATE, {"update_info": {"path": "/not/there.safetensors"}}),
    ]  # fmt: skip
    exchanges = []
    with httpx.Client(base_url=address, timeout=60.0, trust_env=False) as client:
        for method, path, body in questions:
            response = client.request(method, path, json=body)
            while wanted.get(id(body), "") not in response.text:
                response = client.request(method, path, json=body)
            answer = response.text
            if path == SERVER_INFO:
                settings = response.json()["vllm_config"]
                answer = json.dumps({"vllm_config": {name: _plain(settings[name]) for name in KEPT}})
            if path == UPDATE:
                body = {"update_info": {"path": "/weights/version_00000007.safetensors"}}
            exchanges.append(
                {"method": method, "path": path, "body": body, "status": response.status_code,
                 "type": response.headers.get("content-type", ""), "answer": answer}
            )  # fmt: skip
            print(response.status_code, method, path)
    FILE.write_text(json.dumps(exchanges, indent=1) + "\n")


def _plain(settings: dict | None) -> dict | None:
    """Omit values with paths of the machine, and nested values."""
    if settings is None:
        return None
    return {
        name: value
        for name, value in settings.items()
        if (not isinstance(value, dict | list) and "/" not in str(value)) or name == "hf_overrides"
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
