"""vLLM's HTTP interface: paths, request bodies, and parsed answers.

Generation uses the token-in-token-out route, `/inference/v1/generate`: it takes and returns token ids, needs no
tokenizer, and its last chunk names the weights that sampled each token. The routes for weights exist only with
`VLLM_SERVER_DEV_MODE=1`. Written from the source of vLLM 0.32 (`vllm/entrypoints/scale_out/token_in_token_out/`
and `vllm/entrypoints/rl/online/api_router.py`).
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.core.errors import ProcessFailure
from scalerl.core.types import ExpertArray, IntArray
from scalerl.training.engines.engine import RoutingShape, Sampling
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.weights import ServerCall

GENERATE = "/inference/v1/generate"
VERSION_ROUTE = "/version"
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
LOAD_ADAPTER = "/v1/load_lora_adapter"
RPC = "/collective_rpc"
SET_VERSION = "/update_weight_version"

UNLABELED = "default"
"""The server's label for the weights that it started with."""

STREAM_INTERVAL = 16
"""Tokens per chunk. Larger chunks cost the client less time; a broken request loses up to one chunk."""

_ALL = 1 << 30
"""A top_k that vLLM lowers to the vocabulary: sampling masks require one, and a smaller one would cut the nucleus."""

_NO_LOGPROB = -9999.0
"""Value that the server sends for a log-probability that is NaN or missing."""


class BadAnswer(ProcessFailure):
    """The server gave an answer that no supported version gives; retrying does not help."""


class BrokenStream(ProcessFailure):
    """The server aborted a request or rejected it temporarily; it can be retried."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
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
    spans: tuple[VersionSpan, ...] | None
    """Versions of the whole answer; only in the last chunk."""
    nuclei: Any = None
    """Ids that each token was sampled from, as `nuclei_of` reads them; None without --return-sampling-mask."""
    experts: str | None = None
    """Experts of the whole answer as `experts_of_tokens` reads them; only in the last chunk of a server that records
    them."""


def generate_body(
    tokens: Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    request_id: str,
    salt: str,
    experts: bool = False,
    adapter: str = "",
) -> dict[str, Any]:
    """Return the body of a request that continues `tokens`.

    No seed is sent: on CPU, vLLM 0.32 crashes when it has to recompute a request with a seed.

    Args:
        tokens: Prompt and completion so far.
        max_tokens: Maximum number of tokens to sample.
        sampling: Temperature, nucleus, stop tokens.
        request_id: Id of the request in the server's log.
        salt: Text; only requests with the same salt share entries of the server's prefix cache.
        experts: Whether to request the experts of the last of `tokens` and of those that follow.
        adapter: Name of the adapter to sample with; empty: none.
    """
    parameters = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": max_tokens,
        "stop_token_ids": list(sampling.stop),
        "ignore_eos": True,  # `stop_token_ids` ends a sequence, not the model's configuration
        "logprobs": 0,  # only that of the sampled token
        "detokenize": False,
        "stream_interval": STREAM_INTERVAL,
    }
    parameters |= {"routed_experts_prompt_start": len(tokens) - 1} if experts else {}
    parameters |= {"top_k": _ALL} if sampling.top_p < 1 else {}
    return {
        "request_id": request_id,
        "token_ids": list(tokens),
        "sampling_params": parameters,
        "stream": True,
        "cache_salt": salt,
        **({"model": adapter} if adapter else {}),
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
    for token, logp in zip(tokens, logps, strict=True):
        if logp == _NO_LOGPROB or not math.isfinite(logp):
            raise BadAnswer(
                f"it sampled token {token}, which has no log-probability (got {logp:g}, which vLLM reports for NaN): "
                "the weights or the activations are not finite"
            )
    return Chunk(tokens, logps, reason, spans, choice.get("sampling_mask"), choice.get("routed_experts"))


def nuclei_of(masks: Any, tokens: Sequence[int]) -> list[IntArray]:
    """Read the ids that each token was sampled from under top-p, such as [[3, 7], [7]].

    Raises:
        BadAnswer: There is not one set of ids for each token, or a token is not in its set.
    """
    sets = [] if masks is None else masks
    if not (isinstance(sets, list) and len(sets) == len(tokens)):
        count = len(sets) if isinstance(sets, list) else f"no list of ({str(masks)[:40]!r})"
        raise BadAnswer(f"it sent {len(tokens)} tokens, but {count} sampling masks")
    for token, ids in zip(tokens, sets, strict=True):
        if not (isinstance(ids, list) and token in ids and all(type(id) is int and 0 <= id < 1 << 31 for id in ids)):
            raise BadAnswer(f"it sampled token {token}, but its sampling mask is {str(ids)[:40]!r}, without that token")
    return [np.asarray(ids, np.int32) for ids in sets]


def experts_of_tokens(text: str | None, rows: int, routing: RoutingShape) -> ExpertArray:
    """Read the experts [T, L, K] that a server used for each token: a `.npy` file in base64.

    Raises:
        BadAnswer: They are missing, of another shape, or beyond the model's experts.
    """
    if text is None:
        raise BadAnswer("it does not return the experts that it used (routed_experts)")
    try:
        experts_TLK = np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadAnswer(f"it sent routed_experts {text[:40]!r}, which is no array ({error})") from None
    if experts_TLK.shape != (rows, routing.layers, routing.active) or experts_TLK.dtype.kind not in "iu":
        raise BadAnswer(
            f"it sent experts of shape {experts_TLK.shape} and type {experts_TLK.dtype}; expected integers for {rows} "
            f"tokens, {routing.layers} layers and {routing.active} active experts"
        )
    if experts_TLK.size and not 0 <= experts_TLK.min() <= experts_TLK.max() < routing.experts:
        raise BadAnswer(
            f"it sent experts {experts_TLK.min()} to {experts_TLK.max()}; the model has 0 to {routing.experts - 1}"
        )
    signed_TLK: ExpertArray = experts_TLK.astype(np.int16)
    return signed_TLK


def _spans(spans: Any) -> tuple[VersionSpan, ...] | None:
    return None if spans is None else tuple(VersionSpan(version_of(s["version"]), s["start"], s["end"]) for s in spans)


async def check_label(call: ServerCall, version: int, what: str) -> None:
    """Check that a server uses a version; `what` says what it did, for the message.

    Raises:
        EngineDied: It labels its weights with another one.
    """
    got = version_of((await call("GET", WEIGHT_INFO))["weight_version"])
    if got != version:
        raise EngineDied(f"it {what}, but reports version {got}")


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
