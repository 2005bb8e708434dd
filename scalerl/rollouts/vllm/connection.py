"""The client of one vLLM server: a thread that runs its requests, retries broken ones, and swaps weights.

Engines over the same server share a connection; each has its own slots. The caller's thread may use only the methods
and attributes that are marked for it; all others belong to the connection's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import httpx

from scalerl.core.limits import CONNECTION_END_S, SERVER_CONNECT_S, SERVER_PREFILL_S
from scalerl.rollouts.engine import Sampling
from scalerl.rollouts.process_engine import EngineDied
from scalerl.rollouts.vllm.lane import Lane
from scalerl.rollouts.vllm.protocol import (
    GENERATE,
    BadAnswer,
    BrokenStream,
    Chunk,
    generate_body,
    nuclei_of,
    parse_chunk,
)
from scalerl.rollouts.vllm.sequence import TokenSequence
from scalerl.rollouts.weights import Updates

RETRIES = 5
"""Retries of a sequence without a token in between, or of a request, before the engine counts as dead."""
BACKOFF_S = 0.25
"""Seconds before the first retry; doubles with each further retry, up to 10 s."""


class Connection:
    """The caller's side of one server."""

    def __init__(
        self,
        address: str,
        sampling: Sampling,
        updates: Updates,
        lanes: Sequence[Lane],
        obituary: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            address: http://host:port.
            sampling: Temperature, nucleus, stop tokens.
            updates: Method by which the server gets weights.
            lanes: Lanes of the engines that share the connection.
            obituary: Function that returns how the server process ended, or None if it is not known to have ended.
        """
        self.address, self._sampling, self._updates = address, sampling, updates
        self._lanes, self._obituary = lanes, obituary
        self.version, self.retried = -1, 0
        """Version in use, -1 before the first swap; number of retries. Any thread may read them."""
        self._death: EngineDied | None = None
        self._epoch = 0
        self._asked_for: list[tuple[int, Any]] = []
        self._prefilling: set[TokenSequence] = set()
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(
            base_url=address,
            trust_env=False,  # otherwise a proxy would be used for loopback addresses too
            timeout=httpx.Timeout(None, connect=SERVER_CONNECT_S),  # the restarter measures silence
            # vLLM closes an idle connection after 5 s; one that is about to be closed must not be used
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        self._thread = threading.Thread(target=self._run_loop, name=f"vllm {address}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------- the caller's thread

    def check(self) -> None:
        """Raise if the server is lost.

        Raises:
            EngineDied: The server is lost; the message gives the reason.
        """
        if self._death is not None:
            raise self._death

    def submit(self, lane: Lane, sequences: Sequence[TokenSequence]) -> None:
        """Queue sequences; they are sampled with the version requested last, or a newer one."""
        self.check()
        self._soon(self._enqueue, lane, list(sequences))

    def cancel(self, lane: Lane, ids: Collection[tuple[int, int]]) -> None:
        """Drop sequences; one that has just finished may still be returned."""
        self._soon(self._cancel, lane, set(ids))

    def swap(self, version: int) -> None:
        """Request a version and return; `version` changes when the server uses it."""
        self.check()
        self._soon(self._ask, version, self._updates.hold(version))

    def close(self) -> None:
        """End the thread; the server drops the requests under way."""
        if self._thread.is_alive():
            self._soon(self._loop.stop)
            self._thread.join(timeout=CONNECTION_END_S)

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    # -------------------------------------------------------------------------------------- the connection's thread

    def _run_loop(self) -> None:
        """Run until closed.

        Consumes: sequences, cancellations and versions. Produces: finished sequences, and `_death`.
        Waits for: the server. Unblocked by: an answer, a timeout, or `close`.
        """
        asyncio.set_event_loop(self._loop)
        self._gate = asyncio.Event()
        self._gate.set()
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._release_all()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        task = self._loop.create_task(work(*arguments))
        self._tasks.add(task)  # the event loop holds only weak references to tasks
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._die(error)  # the caller's thread raises the error

    def _die(self, error: BaseException) -> None:
        if self._death is not None:
            return
        what = self._obituary() or (str(error) if isinstance(error, (EngineDied, BadAnswer)) else repr(error))
        lost = sum(len(lane.tasks) for lane in self._lanes)
        self._death = EngineDied(f"the vLLM server at {self.address}: {what}. {lost} sequences in flight are lost")
        for task in self._tasks:
            task.cancel()
        self._release_all()
        for lane in self._lanes:
            lane.done.put(None)

    # ------------------------------------------------------------------------------------------------- generation

    def _enqueue(self, lane: Lane, sequences: list[TokenSequence]) -> None:
        for sequence in sequences:
            task = lane.tasks[sequence] = self._start(self._generate, lane, sequence)
            task.add_done_callback(partial(self._ended, lane, sequence))

    def _cancel(self, lane: Lane, ids: set[tuple[int, int]]) -> None:
        for task in [task for sequence, task in lane.tasks.items() if sequence.request.id in ids]:
            task.cancel()  # closes the stream, which makes the server drop the request

    def _ended(self, lane: Lane, sequence: TokenSequence, task: asyncio.Task[None]) -> None:
        if self._death is not None:
            return
        del lane.tasks[sequence]
        if not task.cancelled():
            lane.done.put(sequence)

    async def _generate(self, lane: Lane, sequence: TokenSequence) -> None:
        """Wait for a slot, and send requests until the sequence is over; resume a broken request at its last token.

        Raises:
            EngineDied: Requests broke too often without a token in between, or the server has ended.
        """
        failures, before = 0, 0
        async with lane.free:
            while not sequence.over():
                await self._gate.wait()
                sequence.write_phrase(max(0, self.version))
                try:
                    if not sequence.over():
                        await self._request(lane, sequence)
                except BrokenStream as error:
                    if sequence.over():
                        return  # it broke after the last token
                    failures, before = (failures + 1 if len(sequence) == before else 1), len(sequence)
                    self.retried += 1
                    if failures > RETRIES or self._obituary():
                        raise EngineDied(f"a request broke {failures} times; the last error: {error}") from None
                    await asyncio.sleep(_backoff(failures))

    async def _request(self, lane: Lane, sequence: TokenSequence) -> None:
        """Let the server continue a sequence until the request or the sequence ends."""
        allowance, version, complete = sequence.allowance, max(0, self.version), False
        sequence.begin()
        body = generate_body(
            sequence.prefix, allowance, self._sampling, f"scalerl-{lane.name}-{next(self._numbers)}",
            # within a frozen round a version may be used again; its earlier prefix cache must not be
            salt=f"{self._epoch}.{version}", experts=sequence.routing is not None, adapter=self._updates.adapter,
        )  # fmt: skip
        self._prefilling.add(sequence)
        try:
            async with aclosing(self._chunks(body)) as chunks:
                async for chunk in chunks:
                    if complete:
                        continue
                    self._prefilling.discard(sequence)
                    before = len(sequence)
                    # a lower bound until the last chunk has the versions: the version when the request was sent
                    nuclei = nuclei_of(chunk.nuclei, chunk.tokens) if self._sampling.top_p < 1 else ()
                    sequence.extend(chunk.tokens, chunk.logps, version, nuclei)
                    lane.count(sequence, before)
                    if chunk.reason is not None:
                        _settle(sequence, chunk, allowance)
                        complete = True
                    elif sequence.over():
                        return  # its budget is used up; closing the stream makes the server drop the request
        except httpx.TransportError as error:
            if not complete:
                raise BrokenStream(_tell(error)) from None
        finally:
            self._prefilling.discard(sequence)
        if not complete:
            raise BrokenStream("the stream ended before the last chunk")

    async def _chunks(self, body: Any) -> AsyncGenerator[Chunk, None]:
        async with self._client.stream("POST", GENERATE, json=body) as response:
            if response.status_code != 200:
                text = f"{response.status_code}: {(await response.aread())[:500].decode(errors='replace')}"
                if response.status_code >= 500 or response.status_code == 429:
                    raise BrokenStream(text)
                raise BadAnswer(f"it rejects a request with {text}")
            async for event in _events(response):
                chunk = parse_chunk(event)
                if chunk is not None:
                    yield chunk

    # ------------------------------------------------------------------------------------------------------ weights

    def _ask(self, version: int, held: Any) -> None:
        self._asked_for.append((version, held))
        if self._death is not None:
            self._release_all()
        elif self._gate.is_set():
            self._gate.clear()
            self._start(self._swap)

    async def _swap(self) -> None:
        while self._asked_for:
            version, held = self._asked_for.pop()
            self._release_all()  # older versions
            try:
                began = time.monotonic()
                while self._prefilling and time.monotonic() < began + SERVER_PREFILL_S:
                    await asyncio.sleep(0.002)
                await self._updates.apply(self._call, version, held)
                self._epoch += 1
                self.version = version
            finally:
                await asyncio.to_thread(self._updates.release, held)  # a busy disk must not hold up the streams
        self._gate.set()

    def _release_all(self) -> None:
        """Release the versions that the server will not load."""
        for _, held in self._asked_for:
            self._updates.release(held)
        self._asked_for.clear()

    async def _call(self, method: str, path: str, body: Any = None, *, again: bool = True) -> Any:
        """Send a request and return its answer, JSON or text.

        Args:
            method: GET or POST.
            path: Path of the route.
            body: Body of the request, sent as JSON.
            again: Whether the request may be repeated.

        Raises:
            EngineDied: No answer, or an error that remains after the retries.
        """
        for attempt in itertools.count(1):
            try:
                response = await self._client.request(method, path, json=body)
                if response.status_code == 200:
                    # some routes answer with a text
                    return response.json() if "json" in response.headers.get("content-type", "") else response.text
                problem = f"{response.status_code}: {response.text[:500]}"
                again = again and response.status_code >= 500
            except httpx.TransportError as error:
                problem = _tell(error)
            if not again or attempt > RETRIES:
                break
            await asyncio.sleep(_backoff(attempt))
        raise EngineDied(f"{method} {path} failed {attempt} times; the last error: {problem}")


def _backoff(attempt: int) -> float:
    """Return the seconds to wait before retry 1, 2, ..."""
    return min(10.0, BACKOFF_S * 2.0 ** (attempt - 1))


def _tell(error: Exception) -> str:
    return str(error) or type(error).__name__


def _settle(sequence: TokenSequence, chunk: Chunk, allowance: int) -> None:
    """Take the versions from a last chunk; raise if the sequence's limits do not explain the end."""
    if chunk.spans is None:
        raise BadAnswer("its last chunk does not name the weights (weight_versions)")
    sequence.settle(chunk.spans, chunk.experts)
    reason, got = chunk.reason, len(sequence) - sequence.restarts[-1]
    if reason == "stop" and sequence.ended is None:  # otherwise its budget ended before the stop token
        raise BadAnswer(f"it stopped after token {sequence.tokens[-1]}, which is not a stop token")
    if reason == "length" and not sequence.over() and got < allowance:
        raise BadAnswer(
            f"it ended a sequence of {len(sequence.prefix)} tokens {allowance - got} before its limit; start it with a "
            "larger --max-model-len"
        )


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of a stream's events."""
    rest = b""
    async for piece in response.aiter_bytes():
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data and data != b"[DONE]":
                yield data
