"""vLLM's HTTP interface: paths, request bodies, and parsed answers.

Generation uses the token-in-token-out route, `/inference/v1/generate`: it takes and returns token ids, needs no
tokenizer, and its last chunk names the weights that sampled each token. The routes for weights exist only with
`VLLM_SERVER_DEV_MODE=1`. Written from the source of vLLM 0.32 (`vllm/entrypoints/scale_out/token_in_token_out/`
and `vllm/entrypoints/rl/online/api_router.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.rollouts.engine import Sampling

GENERATE = "/inference/v1/generate"
VERSION = "/version"
MODELS = "/v1/models"
HEALTH = "/health"
SERVER_INFO = "/server_info?config_format=json"
# with the default, clear_cache=true, the server recomputes keys and values of running sequences with the new weights
PAUSE = "/pause?mode=keep&clear_cache=false"
RESUME = "/resume"
START_UPDATE = "/start_weight_update"
UPDATE = "/update_weights"
FINISH_UPDATE = "/finish_weight_update"
WEIGHT_INFO = "/weight_info"
IS_PAUSED = "/is_paused"
INIT_TRANSFER = "/init_weight_transfer_engine"
SHUTDOWN_TRANSFER = "/shutdown_weight_transfer_engine"
WORLD_SIZE = "/get_world_size"

UNLABELED = "default"
"""The server's label for the weights that it started with."""

_NO_LOGPROB = -9999.0
"""Value that the server sends for a log-probability that is NaN or missing."""


class BadAnswer(RuntimeError):
    """The server gave an answer that no supported version gives; retrying does not help."""


class BrokenStream(RuntimeError):
    """The server aborted a request or rejected it temporarily; it can be retried."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one request that one version sampled.

    Example: Span(version=12, start=0, end=37)
    """

    version: int
    start: int
    """Index of the first token within the request's completion."""
    end: int
    """Index after the last token."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of an answer.

    Example: Chunk(tokens=(44, 46), logps=(-0.41, -0.65), reason="length", spans=(Span(12, 0, 2),))
    """

    tokens: tuple[int, ...]
    logps: tuple[float, ...]
    """Log-probabilities of the sampled tokens, as the server's sampler used them."""
    reason: str | None
    """Why the request ended: stop or length; None: more chunks follow."""
    spans: tuple[Span, ...] | None
    """Versions of the whole answer; only in the last chunk."""


def generate_body(
    tokens: Sequence[int], max_tokens: int, sampling: Sampling, request_id: str, salt: str, stream_interval: int
) -> dict[str, Any]:
    """Return the body of a request that continues `tokens`.

    No seed is sent: on CPU, vLLM 0.32 crashes when it has to recompute a request with a seed.

    Args:
        tokens: Prompt and completion so far.
        max_tokens: Maximum number of tokens to sample.
        sampling: Temperature, nucleus, stop tokens.
        request_id: Id of the request in the server's log.
        salt: Text; only requests with the same salt share entries of the server's prefix cache.
        stream_interval: Tokens per chunk.
    """
    parameters = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": max_tokens,
        "stop_token_ids": list(sampling.stop),
        "ignore_eos": True,  # `stop_token_ids` ends a sequence, not the model's configuration
        "logprobs": 0,  # only that of the sampled token
        "detokenize": False,
        "stream_interval": stream_interval,
    }
    return {
        "request_id": request_id,
        "token_ids": list(tokens),
        "sampling_params": parameters,
        "stream": True,
        "cache_salt": salt,
    }


def parse_chunk(data: bytes) -> Chunk | None:
    """Parse one event of a stream; return None for an event without content.

    Raises:
        BrokenStream: The server reports an error, or an abort that was not requested.
        BadAnswer: The event is not in vLLM's format.
    """
    try:
        event = json.loads(data)
        if "error" in event:
            raise BrokenStream(f"the server reports: {_message(event['error'])}")
        if not event["choices"]:
            return None
        choice = event["choices"][0]
        tokens, reason = tuple(choice["token_ids"] or ()), choice["finish_reason"]
        entries = ((choice["logprobs"] or {}).get("content") or ()) if tokens else ()
        logps, of = tuple(entry["logprob"] for entry in entries), tuple(entry["token_id"] for entry in entries)
        spans = _spans(choice["weight_versions"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BadAnswer(f"it sent {data[:200]!r}, which is not an answer of {GENERATE} ({error!r})") from None
    if reason in ("abort", "error"):
        raise BrokenStream(f"the server ended the request itself: {reason}")
    if of != tokens:
        raise BadAnswer(
            f"it sent {len(tokens)} tokens, but log-probabilities of {len(of)} other tokens: {data[:200]!r}"
        )
    if _NO_LOGPROB in logps:
        raise BadAnswer(
            "a sampled token has no log-probability, which vLLM reports for NaN: the weights or the activations are "
            "not finite"
        )
    return Chunk(tokens, logps, reason, spans)


def _spans(spans: Any) -> tuple[Span, ...] | None:
    return None if spans is None else tuple(Span(version_of(s["version"]), s["start"], s["end"]) for s in spans)


def version_of(label: str) -> int:
    """Return the version of a server's label; the weights that it started with are version 0.

    Raises:
        BadAnswer: The label is not a number, so another client sends weights.
    """
    if label == UNLABELED:
        return 0
    if not (isinstance(label, str) and label.isdigit()):
        raise BadAnswer(
            f"it labels its weights {label!r}, but scalerl labels them with numbers: another client updates this server"
        )
    return int(label)


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
