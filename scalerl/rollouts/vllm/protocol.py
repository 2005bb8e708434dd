"""vLLM's HTTP interface: paths, request bodies, and the answers as records.

Generation uses the token-in-token-out route, `/inference/v1/generate`: it takes and gives token ids, needs no
tokenizer, and its last chunk says which weights sampled which tokens. The routes of the weights exist with
`VLLM_SERVER_DEV_MODE=1` only. Written from the source of vLLM 0.32 (`vllm/entrypoints/scale_out/token_in_token_out/`
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
# clear_cache=false: with the default the keys and values of running sequences are computed again under the new weights
PAUSE = "/pause?mode=keep&clear_cache=false"
RESUME = "/resume"
START_UPDATE = "/start_weight_update"
UPDATE = "/update_weights"
FINISH_UPDATE = "/finish_weight_update"
WEIGHT_INFO = "/weight_info"
IS_PAUSED = "/is_paused"
INIT_TRANSFER = "/init_weight_transfer_engine"
WORLD_SIZE = "/get_world_size"

UNLABELLED = "default"
"""What the server calls the weights that it started with."""

_NO_LOGPROB = -9999.0
"""What the server sends for a log-probability that is NaN or missing."""


class BadAnswer(RuntimeError):
    """The server answered something that its supported versions do not: trying again would not help."""


class BrokenStream(RuntimeError):
    """The server gave up a request in the middle, or refused it for now: it can be tried again."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one request that weights of one version sampled.

    Example: Span(version=12, start=0, end=37)
    """

    version: int
    start: int
    """Index of the first token, counted from the request's own first."""
    end: int
    """One past the last."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer.

    Example: Chunk(tokens=(44, 46), logps=(-0.41, -0.65), reason="length", spans=(Span(12, 0, 2),))
    """

    tokens: tuple[int, ...]
    logps: tuple[float, ...]
    """Of the sampled tokens, as the server's sampler used them."""
    reason: str | None
    """Why the request ended: stop, length; None: more follows."""
    spans: tuple[Span, ...] | None
    """In the last chunk: of the whole answer."""


def generate_body(
    tokens: Sequence[int], max_tokens: int, sampling: Sampling, request_id: str, salt: str, stream_interval: int
) -> dict[str, Any]:
    """Return the body of a request that continues `tokens`.

    No seed is sent: on CPU a request with a seed kills the server when it has to be computed again (0.32).

    Args:
        tokens: prompt, and what was sampled of the completion so far.
        max_tokens: tokens to sample at most.
        sampling: temperature, nucleus, stop tokens.
        request_id: for the server's log.
        salt: requests with other salts share no prefix in the server's cache.
        stream_interval: tokens a chunk.
    """
    parameters = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": max_tokens,
        "stop_token_ids": list(sampling.stop),
        "ignore_eos": True,  # what ends a sequence is `stop_token_ids`, not the model's configuration
        "logprobs": 0,  # the sampled token's only
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
    """Read one event of a stream; None for an event without content.

    Raises:
        BrokenStream: the server reports an error, or an abort that nobody here asked for.
        BadAnswer: the event is not what vLLM sends.
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
        raise BadAnswer(f"it sent {data[:200]!r}, which is no answer of {GENERATE} ({error!r})") from None
    if reason in ("abort", "error"):
        raise BrokenStream(f"the server ended the request itself: {reason}")
    if of != tokens:
        raise BadAnswer(f"it sent {len(tokens)} tokens with log-probabilities of {len(of)} others: {data[:200]!r}")
    if _NO_LOGPROB in logps:
        raise BadAnswer(
            "a sampled token has no log-probability, which vLLM reports for NaN: the weights or the activations are "
            "not finite"
        )
    return Chunk(tokens, logps, reason, spans)


def _spans(spans: Any) -> tuple[Span, ...] | None:
    return None if spans is None else tuple(Span(version_of(s["version"]), s["start"], s["end"]) for s in spans)


def version_of(label: str) -> int:
    """Return the version that a label of the server names; weights it started with count as 0.

    Raises:
        BadAnswer: somebody else gives labels, so somebody else sends weights.
    """
    if label == UNLABELLED:
        return 0
    if not (isinstance(label, str) and label.isdigit()):
        raise BadAnswer(f"it calls its weights {label!r}; versions sent from here are numbers: who else updates it?")
    return int(label)


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
