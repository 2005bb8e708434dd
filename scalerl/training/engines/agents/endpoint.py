"""The HTTP server of the programs of agents: /v1/chat/completions, /v1/completions and /v1/models.

Each rollout has a key. A request with it is checked, becomes tokens, waits for the policy, and is answered. The server
runs in a thread (connections.py); the engine's thread answers its calls (engine.py).
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from scalerl.core.addresses import is_loopback
from scalerl.core.errors import ConfigError
from scalerl.core.files import trouble
from scalerl.core.types import Rollout
from scalerl.training.engines.agents.connections import EndpointServer
from scalerl.training.engines.agents.conversations import Conversations, RequestPlan
from scalerl.training.engines.agents.protocol import (
    CHAT,
    COMPLETION,
    MOST_BODY_BYTES,
    Refused,
    Turn,
    TurnRequest,
    read_request,
)
from scalerl.training.models.text import TokenText

CONNECTED_S = 0.5
"""Seconds between looks whether a program that waits is still connected."""
MOST_ENDED = 10_000
"""Keys of rollouts that have ended for which a late call gets an answer of its own."""

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Disconnected(Exception):
    """The program closed its connection."""


@dataclass(eq=False)
class Session:
    """One rollout, as the endpoint sees it. The server's thread uses it until `close`."""

    conversations: Conversations
    request_turn: Callable[[tuple[int, ...], Future[Rollout]], None]
    """Asks for a turn after these tokens; the future gets it."""
    drop: Callable[[Future[Rollout]], None]
    """Takes a call back."""
    refused: int = 0
    """Requests that got an error."""
    disconnects: int = 0
    """Requests whose connection was closed before the answer."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held for a moment, for the fields of this class."""
    planning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while `conversations` is used, which may take long."""
    closed: bool = False
    _asked: int = 0
    """Turns that were asked for, those under way and those that nobody waited for included."""
    _started: float = field(default_factory=time.monotonic)
    _waiting: int = 0
    _waiting_since: float = 0.0
    _waited_s: float = 0.0
    _waited_until: float = 0.0

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of its task."""
        return self.conversations.settings

    def start(self) -> None:
        """Begin to count its time."""
        self._started = time.monotonic()

    def reserve_turn(self) -> None:
        """Count a turn before it is sampled.

        Raises:
            Refused: The rollout had its turns.
        """
        with self.lock:
            if self._asked >= (most := self.settings["turns"]):
                raise Refused(f"this rollout had its {most} turns (data.turns)", code="turn_limit")
            self._asked += 1

    def return_turn(self) -> None:
        """Take back a turn that is not sampled."""
        with self.lock:
            self._asked -= 1

    @contextmanager
    def waiting(self, arrived: float) -> Iterator[None]:
        """Count the time since a request arrived, and that inside the block, as waiting for the policy."""
        with self.lock:
            if not self._waiting:
                self._waiting_since = max(arrived, self._waited_until)
            self._waiting += 1
        try:
            yield
        finally:
            with self.lock:
                self._waiting -= 1
                if not self._waiting:
                    self._waited_until = time.monotonic()
                    self._waited_s += self._waited_until - self._waiting_since

    def own_s(self) -> float:
        """Return the seconds in which the program did not wait for the policy."""
        with self.lock:
            now = time.monotonic()
            return now - self._started - self._waited_s - (now - self._waiting_since if self._waiting else 0.0)

    def close(self) -> None:
        """Record nothing more."""
        with self.lock:
            self.closed = True


class Endpoint:
    """A server on one address of this machine."""

    def __init__(self, host: str, text: TokenText, server: EndpointServer) -> None:
        """Start listening on a free port.

        Args:
            host: Address on which it listens.
            text: Decoder of the policy's tokens.
            server: Server of this process.

        Raises:
            ConfigError: This machine does not have the address.
        """
        self.text, self._sessions = text, dict[str, Session]()
        self._ended: dict[str, None] = {}
        self._late, self._lock = 0, threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            self._socket.bind((host, 0))
            self._socket.listen(2048)
        except OSError as error:
            raise ConfigError(
                f"data.host: cannot listen on {host!r} ({trouble(error)}); allowed: 127.0.0.1, an address of this "
                "machine, or 0.0.0.0 for all"
            ) from None
        name = WILDCARDS.get(host, host)
        self.loopback = is_loopback(host)
        self.base_url = f"http://{f'[{name}]' if ':' in name else name}:{self._socket.getsockname()[1]}/v1"
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._models, methods=["GET"]),
        ]
        app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})
        server.listen(self._socket, app)

    def open(self, session: Session) -> str:
        """Begin to serve a rollout; return its key."""
        key = f"sk-{secrets.token_urlsafe(24)}"
        self._sessions[key] = session
        return key

    def end(self, key: str) -> None:
        """Stop serving a rollout."""
        self._sessions.pop(key).close()
        self._ended[key] = None
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def late_calls(self) -> int:
        """Return the calls for rollouts that had ended, since the last time."""
        with self._lock:
            late, self._late = self._late, 0
        return late

    # ------------------------------------------------------------------------------------------------------- requests

    def _session(self, request: Request) -> Session:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        session = self._sessions.get(key.strip()) if kind.lower() == "bearer" else None
        request.state.connection.holder = session
        if session is not None:
            return session
        if key.strip() in self._ended:
            with self._lock:
                self._late += 1
            raise Refused("this rollout has ended", 401, "rollout_ended")
        raise Refused("the key is not that of a rollout; allowed: OPENAI_API_KEY as the program got it", 401,
                      "invalid_api_key")  # fmt: skip

    async def _models(self, request: Request) -> Response:
        try:
            session = self._session(request)
        except Refused as error:
            return JSONResponse(error.body, error.status)
        name = session.settings["model"]
        model = {"id": name, "object": "model", "created": 0, "owned_by": "scalerl"}
        wanted_name = request.path_params.get("name")
        if wanted_name is None:
            return JSONResponse({"object": "list", "data": [model]})
        if wanted_name == name:
            return JSONResponse(model)
        session.refused += 1
        refused = Refused(f"there is no model {wanted_name!r}; allowed: {name!r} (data.model)", 404, "model_not_found")
        return JSONResponse(refused.body, refused.status)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, chat=True)

    async def _completion(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def _answer(self, request: Request, chat: bool) -> Response:
        session = None
        try:
            session = self._session(request)
            body, model = await _body(request), session.settings["model"]
            turn_request, turn = await self._turn(request, session, body, CHAT if chat else COMPLETION)
        except Refused as error:
            if session is not None:
                session.refused += 1
            return JSONResponse(error.body, error.status)
        except ConfigError as error:  # the chat template fails on the messages
            assert session is not None
            session.refused += 1
            return JSONResponse(Refused(str(error)).body, 400)
        except Disconnected:
            assert session is not None
            session.disconnects += 1
            return Response(status_code=499)
        if turn_request.streamed:
            return StreamingResponse(turn.chunks(model, chat, turn_request.usage), media_type="text/event-stream")
        return JSONResponse(turn.chat(model) if chat else turn.completion(model))

    async def _turn(
        self, request: Request, session: Session, body: bytes, parameters: frozenset[str]
    ) -> tuple[TurnRequest, Turn]:
        """Return the policy's turn for the body of a request.

        Consumes: a request. Produces: a turn. Waits for: the engine. Unblocked by: its tokens, the end of the rollout,
        or that of the connection.
        """
        arrived = time.monotonic()
        async with session.planning:
            # in a thread, because other rollouts do not wait for a long text
            turn_request, plan = await asyncio.to_thread(_planned, session, body, parameters)
        call: Future[Rollout] = Future()
        with session.waiting(arrived):
            session.request_turn(plan.tokens, call)
            waiting = asyncio.wrap_future(call)
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=CONNECTED_S)
                if not waiting.done() and await request.is_disconnected():
                    session.drop(call)
                    raise Disconnected
        if waiting.cancelled():
            raise Refused("this rollout has ended", 401, "rollout_ended")
        sampled = waiting.result()
        if await request.is_disconnected():  # nobody has seen the turn
            raise Disconnected
        async with session.planning:
            with session.lock:
                if session.closed:
                    raise Refused("this rollout has ended", 401, "rollout_ended")
                return turn_request, session.conversations.record(turn_request, plan, sampled)


def _planned(session: Session, body: bytes, parameters: frozenset[str]) -> tuple[TurnRequest, RequestPlan]:
    """Return a request and its tokens, with a turn reserved."""
    turn_request = read_request(body, parameters, session.settings["model"])
    session.reserve_turn()
    try:
        return turn_request, session.conversations.plan(turn_request)
    except BaseException:
        session.return_turn()
        raise


def _not_found(request: Request, error: Exception) -> Response:
    routes = "POST /v1/chat/completions, POST /v1/completions and GET /v1/models"
    refused = Refused(f"got {request.method} {request.url.path}; allowed: {routes}", 404, "not_found")
    return JSONResponse(refused.body, refused.status)


async def _body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        Refused: It is larger than `MOST_BODY_BYTES`; it was read, because a client that still writes sees no answer.
        Disconnected: The connection was closed.
    """
    parts, size = list[bytes](), 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= MOST_BODY_BYTES:
                parts.append(part)
            elif size > 10 * MOST_BODY_BYTES:
                break
    except Exception as error:  # starlette's ClientDisconnect, which it has moved before
        raise Disconnected from error
    if size > MOST_BODY_BYTES:
        raise Refused(f"the body has {size:,} bytes or more; allowed: {MOST_BODY_BYTES:,}", 413, "request_too_large")
    return b"".join(parts)
