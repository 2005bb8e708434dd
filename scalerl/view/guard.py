"""Access control of the page: allowed host names, the token, and security headers.

A page of another site can send requests to this machine, and could read the responses through a host name that resolves
to 127.0.0.1 (DNS rebinding). Therefore, requests with host names other than the server's are rejected.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    # plotly adds an inline style sheet; scripts are loaded only from this server and never inline
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every response."""


class Guard:
    """ASGI middleware that rejects requests with other host names or without the token."""

    def __init__(self, app: App, host: str, port: int, token: str) -> None:
        """Wrap an application.

        Args:
            app: Application to protect.
            host: Host to which the server is bound.
            port: Port to which the server is bound; part of the cookie's name, because cookies ignore ports.
            token: Required token; empty: none.
        """
        self._app, self._token, self._cookie = app, token, f"scalerl-watch-{port}"
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        self._loopback = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self.answers_to(headers.get("host", "")):
            await _refuse(send, 421, "This server does not answer to that name; use the address that it printed.")
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, "Only GET and HEAD requests are allowed.")
            return
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[-1]
        if self._token and not self._known(headers.get("cookie", "")):
            if not same(given, self._token):
                await _refuse(send, 403, "A token is needed: open the address that `scalerl watch` printed.")
                return
            await _enter(send, f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict")
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_encoded(HEADERS)]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def answers_to(self, host: str) -> bool:
        """Return whether a Host header is a name of this machine or an address.

        A server on loopback accepts loopback addresses only.
        """
        name = _without_port(host).lower()
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" if self._loopback else name in self._names
        return address.is_loopback if self._loopback else True

    def _known(self, cookie: str) -> bool:
        try:
            found = SimpleCookie(cookie).get(self._cookie)
        except CookieError:
            return False
        return found is not None and same(found.value, self._token)


def same(given: str, token: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def is_loopback(host: str) -> bool:
    """Return whether only processes on this machine can reach a server bound to this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _enter(send: Send, cookie: str) -> None:
    """Redirect to an address without the token, so that the token is not in a history or screenshot."""
    headers = _encoded({**HEADERS, "location": "/", "set-cookie": cookie, "cache-control": "no-store"})
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, status: int, words: str) -> None:
    headers = _encoded({**HEADERS, "content-type": "text/plain; charset=utf-8", "cache-control": "no-store"})
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words.encode()})
