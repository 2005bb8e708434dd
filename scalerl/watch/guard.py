"""Who may see the page: the names it answers to, its token, and what a browser may do with it.

A page of another site can send requests to an address of this machine, and with a name that it makes resolve to
127.0.0.1 ("DNS rebinding") it could read the answers. So requests by other names than the server's own are refused.
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
    # plotly writes a style sheet of its own into the page; scripts come from here only, and none stand in the page
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Sent with every answer."""


class Guard:
    """ASGI middleware that refuses requests by foreign names or without the token."""

    def __init__(self, app: App, host: str, port: int, token: str) -> None:
        """Put it before an application.

        Args:
            app: the application.
            host: to which the server is bound.
            port: likewise; it names the cookie, since cookies do not know ports.
            token: that is asked for; empty where none is.
        """
        self._app, self._token, self._cookie = app, token, f"scalerl-watch-{port}"
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        self._loopback = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self.answers_to(headers.get("host", "")):
            await _refuse(send, 421, "This server does not answer to that name; use the address that it printed.")
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, "Only GET.")
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
        """Whether a Host header is one of the server's: a name of this machine, or an address.

        A server on loopback answers to loopback addresses only.
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
    """Compare two secrets in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach a server that is bound to this host."""
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
    """Leave the token out of the address from here on, so that it stands in no history and no screenshot."""
    headers = _encoded({**HEADERS, "location": "/", "set-cookie": cookie, "cache-control": "no-store"})
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, status: int, words: str) -> None:
    headers = _encoded({**HEADERS, "content-type": "text/plain; charset=utf-8", "cache-control": "no-store"})
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words.encode()})
