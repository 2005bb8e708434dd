"""The read-only server of the page: access control, files, JSON of runs, and a stream of changes.

Every user of this machine can connect to a port of it, also on the loopback interface, and a run may be readable to its
owner only. Therefore, every request needs a token. A page of another site can send requests to this machine, and could
read the responses through a host name that resolves to 127.0.0.1 (DNS rebinding). Therefore, requests with host names
other than the server's are rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from scalerl.core.addresses import comes_from_this_user, is_loopback, most_connections
from scalerl.reading.curves import CurveError
from scalerl.reading.pages.analysis import Analysis, analyze
from scalerl.reading.pages.frozen import plotly_script
from scalerl.reading.pages.outlook import run_outlook
from scalerl.reading.pages.page import (
    SPARK,
    early_page,
    figures_of,
    large_figure,
    log_page,
    page,
    runs_page,
    young_page,
)
from scalerl.reading.pages.rollouts import FILES
from scalerl.reading.pages.run import FollowedRun
from scalerl.reading.pages.watcher import POLL_S, Watcher

MOST_ANALYSES = 200
"""Largest number of analyses that are kept for pages that are open."""

QUEUE = 128
"""Connections that may wait until they are accepted."""

STREAM_BEAT_S = 15.0
"""Interval in seconds between comments in a stream without changes; they detect closed pages."""

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
    "cache-control": "no-store",
}
"""Headers of every response, unless it sets them itself."""


# ----------------------------------------------------------------------------------------------------- access control


class Guard:
    """ASGI middleware that rejects requests with other host names or without the token, and adds the headers."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str, invitation: str = "") -> None:
        """Wrap an application.

        Args:
            app: Application to protect.
            host: Host to which the server is bound.
            port: Port to which the server is bound; part of the cookie's name, because cookies ignore ports.
            token: Required token.
            invitation: Replaces the token once, for a process of this user; empty: none.
        """
        assert token
        self._app, self._token, self._cookie, self._invitation = app, token, f"scalerl-watch-{port}", invitation
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        self._loopback = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request or pass it to the application."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({name: value for name, value in HEADERS.items() if name not in headers})
            await send(message)

        answer = self._rejected(Request(scope)) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send_with_headers)

    def _rejected(self, request: Request) -> Response | None:
        """Return the response to a request that the application does not get; None if it does."""
        if not self.answers_to(request.headers.get("host", "")):
            return PlainTextResponse("This server does not answer to that name; use the address that it printed.", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET and HEAD requests are allowed.", 405)
        token = request.query_params.get("token", "")
        if equal_secrets(token, self._token) or self._accepts_invitation(token, request):
            return self._admission(request)
        if equal_secrets(request.cookies.get(self._cookie, ""), self._token):
            return None
        return PlainTextResponse("A token is needed: open the address that `scalerl watch` printed.", 403)

    def _accepts_invitation(self, token: str, request: Request) -> bool:
        client, server = request.client, request.scope.get("server")
        if not (self._invitation and client and server and equal_secrets(token, self._invitation)):
            return False
        if not comes_from_this_user(client, server):
            return False
        self._invitation = ""
        return True

    def _admission(self, request: Request) -> Response:
        """Return a response with the cookie, which leads to an address without the token.

        The token is then not in a history or screenshot.
        """
        answer: Response = RedirectResponse("/", 303)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # after a click in a page of another site, such as a terminal in a browser, a redirect would not carry the
            # strict cookie; a page of this site may lead on
            answer = Response("", media_type="text/html", headers={"refresh": "0; url=/"})
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return answer

    def answers_to(self, host: str) -> bool:
        """Return whether a Host header is a name of this machine or an address.

        A server on loopback accepts loopback addresses only.
        """
        name = (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower()
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" if self._loopback else name in self._names
        return address.is_loopback if self._loopback else True


def equal_secrets(first: str, second: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode("utf-8", "replace"))


# -------------------------------------------------------------------------------------------------------------- routes


class Pages:
    """The routes of the server."""

    def __init__(self, watcher: Watcher, closing: Callable[[], bool]) -> None:
        """Prepare the routes.

        Args:
            watcher: Watcher of the runs.
            closing: Function that returns whether the server is shutting down, which ends streams.
        """
        self.watcher, self._closing = watcher, closing
        self._analyses: dict[tuple[str, ...], tuple[object, Analysis | str]] = {}
        """Analyses by what they are about, each with the points that it is from."""

    def app(self) -> Starlette:
        """Return the application."""
        assets = StaticFiles(packages=[("scalerl.reading.pages", "assets")], html=True)
        routes = [
            Route("/plotly.js", self.plotly),
            Route("/api/stream", self.stream),
            Route("/api/page/{kind}/{ids}", self.page),
            Route("/api/runs/{id}/{what}", self.of_run),
            Mount("/assets", assets),
            Mount("/", assets),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._poll())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self.watcher.close()

    async def _poll(self) -> None:
        while True:
            await run_in_threadpool(self.watcher.poll)
            await asyncio.sleep(POLL_S)

    async def plotly(self, request: Request) -> Response:
        """Return plotly.js from the plotly package."""
        script = await run_in_threadpool(plotly_script)
        return Response(script, media_type="text/javascript", headers={"cache-control": "max-age=86400"})

    async def stream(self, request: Request) -> Response:
        """Stream server-sent events: first everything, then changes."""

        async def events() -> AsyncIterator[str]:
            version, quiet = -1, 0.0
            while not self._closing():
                if self.watcher.version != version:
                    changes = await run_in_threadpool(self.watcher.changes_since, version)
                    version, quiet = changes["version"], 0.0
                    yield f"data: {_json(changes)}\n\n"
                await asyncio.sleep(POLL_S)
                quiet += POLL_S
                if quiet >= STREAM_BEAT_S:
                    quiet = 0.0
                    yield ": still here\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def page(self, request: Request) -> Response:
        """Return the page about a run, about several, about a study, or about a log."""
        kind, ids = request.path_params["kind"], request.path_params["ids"].split(",")
        pages = {"run": self.run_page, "compare": self.compare_page, "study": self.study_page, "log": self.log_page}
        make, groups = pages.get(kind), (self.watcher.runs, self.watcher.studies, self.watcher.logs)
        if make is None or not all(any(key in group for group in groups) for key in ids):
            raise HTTPException(404, "no such page")
        return Response(await run_in_threadpool(make, ids), media_type="application/json")

    def run_page(self, ids: Sequence[str]) -> str:
        """Return the page about a run directory as JSON."""
        run = self._runs(ids[:1])[0]
        with self.watcher.lock:
            tasks = list(run.tasks)
        analyses = {task: self._analysis(run, task) for task in tasks}
        for analysis in analyses.values():
            if isinstance(analysis, Analysis):
                figures_of(analysis)  # kept for `page`, which holds the lock
        metrics = run.metrics(SPARK)  # reads a file that may be long
        with self.watcher.lock:
            content = page(run, analyses, metrics)
        return _json(content)

    def compare_page(self, ids: Sequence[str]) -> str:
        """Return the page about several run directories as JSON, by their first tasks on one compute axis."""
        runs = self._runs(ids)
        with self.watcher.lock:
            axis = runs[0].axis
            tasks = {run.id: next(iter(run.tasks), "") for run in runs}
        analyses = {run.name: self._analysis(run, tasks[run.id], axis) for run in runs}
        ready = [analysis for analysis in analyses.values() if isinstance(analysis, Analysis)]
        problems = {name: analysis for name, analysis in analyses.items() if isinstance(analysis, str)}
        sources = [analysis.runs[0].source for analysis in ready]
        outlooks = [analysis.runs[0].outlook for analysis in ready]
        together = self._cached(("compare", *ids), ready, lambda: analyze(sources, outlooks=outlooks)) if ready else ""
        if isinstance(together, Analysis):
            figures_of(together)
        # without the lock: of the runs they take only what is fixed, and metrics
        return _json(young_page(runs, problems) if isinstance(together, str) else runs_page(together, runs, problems))

    def study_page(self, ids: Sequence[str]) -> str:
        """Return the page about a study as JSON."""
        study = self.watcher.studies.get(ids[0])
        if study is None:
            raise HTTPException(404, "no such study")
        return _json(study.page or early_page(f"Study: {study.path.name}", study.problem))

    def log_page(self, ids: Sequence[str]) -> str:
        """Return the page about a log as JSON."""
        log = self.watcher.logs.get(ids[0])
        if log is None:
            raise HTTPException(404, "no such log")
        entry, source, outlook = log.snapshot()
        analysis: Analysis | str = entry["detail"] or "fitting …"
        if source is not None and outlook is not None:
            below = log.reading.exclude_below
            analysis = self._cached(("log", log.id), outlook, lambda: analyze([source], (), below, [outlook]))
        if isinstance(analysis, Analysis):
            figures_of(analysis)
        return _json(log_page(entry, source, analysis))

    def _runs(self, ids: Sequence[str]) -> list[FollowedRun]:
        with self.watcher.lock:
            runs = [self.watcher.runs[run_id] for run_id in ids if run_id in self.watcher.runs]
        if len(runs) < len(ids):
            raise HTTPException(404, "no such run")
        return runs

    def _analysis(self, run: FollowedRun, task: str, axis: str | None = None) -> Analysis | str:
        """Return the analysis of a task, or the reason why there is none."""
        with self.watcher.lock:
            points, all_points, axis = list(run.points.get(task, ())), run.every_point(), axis or run.axis
            tasks = list(run.tasks)
        if not points:
            return "no evaluation yet"

        def make() -> Analysis:
            outlook = run_outlook(points, axis, *run.terms).with_way_back(run.path, all_points, tasks)
            with self.watcher.lock:
                source = run.source(task, axis)
            return analyze([source], outlooks=[outlook])

        return self._cached((run.id, task, axis), [*points, len(all_points)], make)

    def _cached(self, key: tuple[str, ...], stamp: object, make: Callable[[], Analysis]) -> Analysis | str:
        """Return an analysis from before if nothing has changed since, else make it."""
        before = self._analyses.get(key)
        if before is not None and before[0] == stamp:
            return before[1]
        try:
            analysis: Analysis | str = make()
        except CurveError as error:
            analysis = str(error)
        if len(self._analyses) >= MOST_ANALYSES:
            self._analyses.pop(next(iter(self._analyses)), None)
        self._analyses[key] = stamp, analysis
        return analysis

    async def of_run(self, request: Request) -> Response:
        """Return data of one run, by the functions of `OF_RUN`."""
        run = self.watcher.runs.get(request.path_params["id"])
        make = OF_RUN.get(request.path_params["what"])
        if run is None or make is None:
            raise HTTPException(404, "no such run")

        def answer() -> str:
            with run.reading:
                values = make(run, request.query_params)
            return _json(values)

        try:
            text = await run_in_threadpool(answer)
        except IndexError as error:
            raise HTTPException(404, "no such row") from error
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        return Response(text, media_type="application/json")


def _series(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    return large_figure(run, query.get("name", ""), _number(query, "from", -math.inf), _number(query, "to", math.inf))


def _group(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    kind, at = query.get("kind", ""), _number(query, "row", 0)
    if kind not in FILES:
        raise ValueError(f"kind: got {kind!r}; allowed: {', '.join(FILES)}")
    return {"rows": run.rollouts.group(kind, int(min(max(at, 0), 1e15)))}


OF_RUN: dict[str, Callable[[FollowedRun, Mapping[str, str]], dict[str, Any]]] = {
    "series": _series,
    "rollouts": lambda run, query: run.rollouts.find(query),
    "group": _group,
}
"""Data of a run by the last part of the address; a ValueError is a wrong query."""


class _Connection(H11Protocol):
    """A connection; when more are open than may be, the one that has waited longest for its request is closed.

    Everybody on this machine can connect, without the token: half requests must not take all file descriptors.
    """

    most = 0
    """Most open connections."""

    def connection_made(self, transport: Any) -> None:
        """Count the connection."""
        super().connection_made(transport)
        self.since = time.monotonic()
        if len(self.connections) > self.most:
            open_ones = [one for one in self.connections if isinstance(one, _Connection)]
            waiting = [one for one in open_ones if one.conn.their_state in (h11.IDLE, h11.SEND_BODY)]
            min(waiting, key=lambda one: one.since).transport.abort()  # this one waits, too


class _Server(uvicorn.Server):
    """A server that accepts one connection at a time while others wait in the kernel."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUE)


def server_of(
    watcher: Watcher, listening: socket.socket, host: str, token: str, invitation: str = ""
) -> uvicorn.Server:
    """Return the server of the page, not started yet.

    Args:
        watcher: Watcher of the runs; closed at the end.
        listening: Listening socket.
        host: Host given by the user, which determines the accepted host names.
        token: Required token.
        invitation: Replaces the token once, for a process of this user; empty: none.
    """
    server: uvicorn.Server
    most = most_connections()

    pages = Pages(watcher, lambda: server.should_exit)
    app = Guard(pages.app(), host, listening.getsockname()[1], token, invitation)
    server = _Server(
        uvicorn.Config(
            app,
            http=type("Connection", (_Connection,), {"most": most}),
            backlog=1,  # asyncio accepts as many at once, before it knows of them
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a header must not replace the address that `Guard` looks up
            timeout_graceful_shutdown=3,
        )
    )
    return server


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    value = float(query[name]) if query.get(name) else default
    if query.get(name) and not math.isfinite(value):
        raise ValueError(f"{name}: got {query[name]!r}; allowed: a finite number")
    return value
