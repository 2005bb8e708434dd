"""The read-only server of the page: files, JSON of runs, and a stream of changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scalerl.core.errors import outcome
from scalerl.view.guard import Guard
from scalerl.view.metrics import METRICS
from scalerl.view.page import plotly_script
from scalerl.view.rollouts import FILES, Search
from scalerl.view.run import WatchedRun
from scalerl.view.watcher import POLL_S, Watcher

SPARK = 120
"""Buckets of a small figure of a metric."""

PLACES = 400
"""Buckets of a large figure."""

BEAT_S = 15.0
"""Interval in seconds between comments in a stream without changes; they detect closed pages."""

TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class Pages:
    """The routes of the server."""

    def __init__(self, watcher: Watcher, closing: Callable[[], bool]) -> None:
        """Prepare the routes.

        Args:
            watcher: Watcher of the runs.
            closing: Function that returns whether the server is shutting down, which ends streams.
        """
        self.watcher, self._closing = watcher, closing
        self._plotly: bytes | None = None

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/", self.index),
            Route("/assets/{name}", self.asset),
            Route("/plotly.js", self.plotly),
            Route("/api/stream", self.stream),
            Route("/api/runs/{id}/curve", self.curve),
            Route("/api/runs/{id}/metrics", self.metrics),
            Route("/api/runs/{id}/series", self.series),
            Route("/api/runs/{id}/config", self.config),
            Route("/api/runs/{id}/rollouts", self.rollouts),
            Route("/api/runs/{id}/group", self.group),
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
            polled = await run_in_threadpool(outcome, self.watcher.poll)
            if error := polled.exception():  # the page shows it and does not freeze
                self.watcher.problem = f"{type(error).__name__}: {error}"
                self.watcher.version += 1
            await asyncio.sleep(POLL_S)

    # ------------------------------------------------------------------------------------------------------------ files

    async def index(self, request: Request) -> Response:
        """Return the page."""
        return _asset("index.html")

    async def asset(self, request: Request) -> Response:
        """Return a script or style."""
        return _asset(request.path_params["name"])

    async def plotly(self, request: Request) -> Response:
        """Return plotly.js from the plotly package."""
        if self._plotly is None:
            self._plotly = (await run_in_threadpool(plotly_script)).encode()
        return Response(self._plotly, media_type="text/javascript", headers={"cache-control": "max-age=86400"})

    # ------------------------------------------------------------------------------------------------------------- data

    async def stream(self, request: Request) -> Response:
        """Stream server-sent events: first everything, then changes."""

        async def events() -> AsyncIterator[str]:
            version, quiet = -1, 0.0
            while not self._closing():
                if self.watcher.version != version:
                    found = await run_in_threadpool(self.watcher.changes_since, version)
                    version, quiet = found["version"], 0.0
                    yield f"data: {_json(found)}\n\n"
                await asyncio.sleep(POLL_S)
                quiet += POLL_S
                if quiet >= BEAT_S:
                    quiet = 0.0
                    yield ": still here\n\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def curve(self, request: Request) -> Response:
        """Return the curve of one task of a run."""
        task = request.query_params.get("task", "")
        return await self._of_run(request, lambda run: run.curve(task))

    async def metrics(self, request: Request) -> Response:
        """Return all metrics of a run for small figures."""
        return await self._of_run(request, lambda run: {"metrics": run.metrics(SPARK)})

    async def series(self, request: Request) -> Response:
        """Return one metric of a run between two steps, for a large figure."""
        asked = request.query_params
        name = asked.get("name", "")
        low, high = _number(asked, "from", -math.inf), _number(asked, "to", math.inf)
        if name not in METRICS:
            raise HTTPException(400, f"name: got {name!r}; allowed: a column of metrics.jsonl")
        return await self._of_run(request, lambda run: run.series(name, low, high, PLACES))

    async def config(self, request: Request) -> Response:
        """Return the fields of a run's configuration."""
        return await self._of_run(request, lambda run: {"fields": run.config_fields()})

    async def rollouts(self, request: Request) -> Response:
        """Return the rollouts that match a search."""
        try:
            search = Search.of(request.query_params)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        return await self._of_run(request, lambda run: run.rollouts.find(search))

    async def group(self, request: Request) -> Response:
        """Return all rollouts of one prompt at one step."""
        kind, at = request.query_params.get("kind", ""), _number(request.query_params, "row", 0)
        if kind not in FILES:
            raise HTTPException(400, f"kind: got {kind!r}; allowed: {', '.join(FILES)}")
        return await self._of_run(request, lambda run: {"rows": run.rollouts.group(kind, max(0, int(at)))})

    async def _of_run(self, request: Request, make: Callable[[WatchedRun], dict[str, Any]]) -> Response:
        run = self.watcher.runs.get(request.path_params["id"])
        if run is None:
            raise HTTPException(404, "no such run")

        def answer() -> str:
            with self.watcher.lock:
                return _json(make(run))

        try:
            text = await run_in_threadpool(answer)
        except IndexError as error:
            raise HTTPException(404, "no such row") from error
        return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


def serve(watcher: Watcher, listening: socket.socket, host: str, token: str) -> None:
    """Serve the page until the process is interrupted.

    Args:
        watcher: Watcher of the runs; closed at the end.
        listening: Listening socket.
        host: Host given by the user, which determines the accepted host names.
        token: Required token; empty: none.
    """
    port = listening.getsockname()[1]
    server: uvicorn.Server

    pages = Pages(watcher, lambda: server.should_exit)
    app = Guard(pages.app(), host, port, token)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=3)
    )
    server.run(sockets=[listening])


def _asset(name: str) -> Response:
    ending = name.rpartition(".")[2]
    found = {file.name: file for file in (files("scalerl.view") / "assets").iterdir()}.get(name)
    if found is not None and ending in TYPES:
        return Response(found.read_bytes(), media_type=TYPES[ending], headers={"cache-control": "no-cache"})
    raise HTTPException(404, "no such file")


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _number(asked: Any, name: str, default: float) -> float:
    try:
        found = float(asked[name]) if asked.get(name) else default
    except ValueError:
        found = math.nan
    if asked.get(name) and not math.isfinite(found):
        raise HTTPException(400, f"{name}: got {asked[name]!r}; allowed: a finite number")
    return found
