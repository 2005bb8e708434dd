"""The server behind the endpoints: how many connections are open, and how long a request may take to arrive.

uvicorn parses and answers; it limits neither. Whoever reaches the address could otherwise hold all file descriptors of
the process with halves of requests, without a key.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from scalerl.core.addresses import most_connections
from scalerl.core.limits import ENDPOINT_REQUEST_S

KEPT_S = 3600
"""Seconds for which the idle connection of a program stays open; a server that closes it first could do so during a
request."""
CONNECTIONS_FULL_S = 0.05
"""Seconds between looks whether a connection or a file descriptor is free."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a system that has no room for a connection."""

NO_DESCRIPTORS = (
    "the endpoint of agents: no file descriptor is left in this process, so new connections wait; raise the limit "
    "(ulimit -n) or lower data.processes"
)


class Holder(Protocol):
    """The rollout whose key a request has."""

    closed: bool


class Connection(H11Protocol):
    """A connection that is closed if its request is not whole in time."""

    def __init__(self, server: EndpointServer, config: uvicorn.Config, state: ServerState) -> None:
        """Serve the application of a configuration."""
        super().__init__(config, state, {"connection": self})
        self._server = server
        self._deadline: asyncio.TimerHandle | None = None
        self.holder: Holder | None = None
        """The rollout whose key its last request had."""
        self.since = 0.0
        """Time at which it began to wait for its client."""

    @property
    def answering(self) -> bool:
        """Whether a rollout that goes on waits for an answer on it; all other connections may be closed."""
        if self.holder is None or self.holder.closed or self._arriving():
            return False
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begin the time of the first request."""
        super().connection_made(transport)
        self._server.opened(self)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._server.lost(self)
        self._stop()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._look()

    def _arriving(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _look(self) -> None:
        """Limit the time for the rest of a request; none is expected on the idle connection of a program."""
        idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if not self._arriving() or (idle and self.holder is not None):
            self._stop()
            self.since = time.monotonic()
        elif self._deadline is None:
            self.since = time.monotonic()
            self._deadline = self.loop.call_later(ENDPOINT_REQUEST_S, self._late)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = f"the request was not whole after {ENDPOINT_REQUEST_S:g} s; send it at once"
            body = json.dumps({"error": {"message": text, "type": "invalid_request_error", "code": "late"}})
            head = f"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n{body}".encode())
        self.transport.close()


class EndpointServer:
    """A thread that serves all endpoints of this process."""

    def __init__(self, most: int | None = None) -> None:
        """Start the thread.

        Args:
            most: Most open connections; None: half of the file descriptors that are free, because the run needs others
                for its programs.
        """
        self.most = most or most_connections()
        self._open: dict[Connection, None] = {}
        self._listening: dict[socket.socket, asyncio.Task[None]] = {}
        self._told = False
        self._loop = asyncio.new_event_loop()
        # a daemon, because the process may end while programs are connected
        threading.Thread(target=self._serve, name="endpoint", daemon=True).start()

    def _serve(self) -> None:
        """Serve requests.

        Consumes: requests. Produces: answers. Waits for: clients, and the engine's thread. Unblocked by: `close`, or
        the end of the process.
        """
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def listen(self, listening: socket.socket, app: Any) -> None:
        """Serve an application on a socket that listens."""
        listening.setblocking(False)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, server_header=False, date_header=False, lifespan="off",
            proxy_headers=False, timeout_keep_alive=KEPT_S, ws="none",
        )  # fmt: skip
        config.load()
        self._loop.call_soon_threadsafe(self._begin, listening, config)

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._loop.call_soon_threadsafe(self._end)

    def opened(self, connection: Connection) -> None:
        """Count a connection."""
        self._open[connection] = None

    def lost(self, connection: Connection) -> None:
        """Count a connection no longer."""
        self._open.pop(connection, None)

    def _begin(self, listening: socket.socket, config: uvicorn.Config) -> None:
        self._listening[listening] = self._loop.create_task(self._accept(listening, config, ServerState()))

    def _end(self) -> None:
        for listening, task in self._listening.items():
            task.cancel()
            listening.close()
        for connection in list(self._open):
            connection.transport.abort()
        self._loop.call_soon(self._loop.stop)

    async def _accept(self, listening: socket.socket, config: uvicorn.Config, state: ServerState) -> None:
        """Accept connections one at a time, so that no more are open than may be.

        Consumes: connections. Produces: their protocols. Waits for: a client, or room for one. Unblocked by: one, or
        the end of another connection.
        """
        while True:
            while len(self._open) >= self.most and not self._make_room():
                await asyncio.sleep(CONNECTIONS_FULL_S)
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._tell_once()
                    await asyncio.sleep(0 if self._make_room() else CONNECTIONS_FULL_S)
                continue
            try:
                await self._loop.connect_accepted_socket(lambda: Connection(self, config, state), accepted)
            except OSError:  # the client has gone
                accepted.close()

    def _tell_once(self) -> None:
        if not self._told:
            self._told = True
            with suppress(OSError):
                print(NO_DESCRIPTORS, file=sys.stderr, flush=True)

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for its client; return False if none waits.

        A client that sends its request at once is never that one, however many others connect.
        """
        waiting = [connection for connection in self._open if not connection.answering]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda connection: connection.since)
        self.lost(oldest)
        oldest.transport.abort()
        return True
