"""The client of one vLLM server: a thread that runs its requests, resumes broken ones, and swaps weights.

It is a handle (served.py) of a training engine and an engine for held-out prompts, which share the server's weights.
Each has its own slots. The caller's thread may use only the methods of a handle, and the attributes that are marked for
it; everything else belongs to the client's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack, aclosing
from enum import Enum
from functools import partial
from typing import Any

import httpx

from scalerl.core.limits import CONNECTION_END_S, SERVER_CONNECT_S, SERVER_PREFILL_S
from scalerl.training.engines.engine import Finished, Sampling, Work
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.served import Cancel, EngineCommand, EngineHandle, Report, Submit, Swap
from scalerl.training.engines.vllm.checks import Needs, check_server
from scalerl.training.engines.vllm.protocol import (
    GENERATE,
    BadAnswer,
    BrokenStream,
    Chunk,
    generate_body,
    nuclei_of,
    parse_chunk,
)
from scalerl.training.engines.vllm.sequence import TokenSequence
from scalerl.training.engines.vllm.server import VllmServer
from scalerl.training.engines.weights import WeightTransfer
from scalerl.training.models.sizes import ModelSizes

RETRIES = 5
"""Retries of a sequence without a token in between, or of a request, before the engine counts as dead."""
BACKOFF_S = 0.25
"""Seconds before the first retry; doubles with each further retry, up to 10 s."""
_SHORTEST_WAIT_S = 0.005
"""Minimum wait of a report while sequences are sampled: a caller that asks in a loop would keep a core busy."""


class State(Enum):
    """What the connection to a server does."""

    SERVING = "serving"
    """Requests are sent."""
    SWAPPING = "swapping"
    """Weights are under way: no new request is sent; those sent before go on."""
    LOST = "lost"
    """The server is dead; the next report says why."""


class LaneShare:
    """The share of a server that one lane has."""

    def __init__(self, name: str, slots: int, sizes: ModelSizes | None = None) -> None:
        """Make a share.

        Args:
            name: Name in the server's log.
            slots: Sequences decoded together.
            sizes: Sizes that the FLOPs are computed from; None: they are not counted.
        """
        self.name, self.slots, self._sizes = name, slots, sizes
        self.work = Work()
        """Replaced and never modified, so that the caller's thread may read it."""
        self.free = asyncio.Semaphore(slots)
        """Free slots."""
        self.tasks: dict[TokenSequence, asyncio.Task[None]] = {}
        """The task of each sequence that waits for a slot or is being sampled."""
        self._steps = 0.0

    def count(self, sequence: TokenSequence, before: int) -> None:
        """Count a sequence's tokens from index `before` on.

        Each token counts as its share of a decode step of all running sequences. Each prompt is counted once per
        sequence, because the tokens that the server saves with its prefix cache or recomputes after a swap are unknown.
        """
        tokens, prompt = len(sequence) - before, len(sequence.request.prompt)
        self._steps += tokens / max(1, min(self.slots, len(self.tasks)))
        flops = 0.0
        if self._sizes is not None:
            first = 0 if before == 0 else prompt + before - 1  # the latest token has been sampled but not fed yet
            flops = self._sizes.forward_flops(first, prompt + len(sequence) - 1 - first, predicted=tokens)
        steps, work = int(self._steps), self.work
        self.work = Work(steps, work.tokens + tokens, int(self._steps * self.slots), work.flops + flops)


class VllmClient(EngineHandle):
    """The handle of the engines over one server."""

    def __init__(
        self,
        address: str,
        shares: Sequence[LaneShare],
        rule: LengthRule,
        sampling: Sampling,
        transfer: WeightTransfer,
        needs: Needs,
        obituary: Callable[[], str | None] = lambda: None,
        at_stop: ExitStack | None = None,
    ) -> None:
        """Start the thread; call `vllm_client` instead.

        Args:
            address: http://host:port.
            shares: The shares of the engines, by lane.
            rule: Length limits of completions.
            sampling: Temperature, nucleus, stop tokens.
            transfer: Method by which the server gets weights.
            needs: Requirements that the server meets.
            obituary: Function that returns how the server process ended, or None if it is not known to have ended.
            at_stop: What `stop` ends after the connection, such as the server; the client takes it over.
        """
        self.address, self.shares, self._rule, self._sampling = address, shares, rule, sampling
        self._transfer, self._routing, self._obituary = transfer, needs.routing, obituary
        self.version, self.retried = -1, 0
        """Version in use, -1 before the first swap; number of retries. Any thread may read them."""
        self._done: queue.SimpleQueue[tuple[LaneShare, TokenSequence] | None] = queue.SimpleQueue()
        self._state, self._epoch = State.SERVING, 0
        self._death: EngineDied
        """Why the server is lost."""
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
        self.at_stop = (at_stop or ExitStack()).pop_all()
        """What `stop` ends, the latest entry first."""
        self.at_stop.callback(self._close)

    # ------------------------------------------------------------------------------------------- the caller's thread

    def post(self, command: EngineCommand) -> None:
        """Queue a command; sequences are sampled with the version requested last, or a newer one.

        Raises:
            EngineDied: The server is lost, or the weights of a swap do not exist.
        """
        self._check()
        match command:
            case Submit(lane, requests):
                stop = self._sampling.stop
                sequences = [TokenSequence(request, self._rule, stop, self._routing) for request in requests]
                self._soon(self._enqueue, self.shares[lane], sequences)
            case Cancel(lane, ids):
                self._soon(self._cancel, self.shares[lane], ids)
            case Swap(version):
                self._soon(self._queue_swap, version, self._transfer.hold(version))

    def report(self, wait_s: float) -> Report:
        """Return the results since the last report; wait up to `wait_s` for a finished sequence or a swap.

        Raises:
            EngineDied: The server is lost.
        """
        finished: dict[LaneShare, list[Finished]] = {share: [] for share in self.shares}
        busy = any(share.tasks for share in self.shares)
        wait_s = max(wait_s, _SHORTEST_WAIT_S) if busy else wait_s
        try:
            done = (
                self._done.get(timeout=wait_s) if wait_s and self._state is not State.LOST else self._done.get_nowait()
            )
            while True:
                if done is not None:
                    finished[done[0]].append(done[1].finish())
                done = self._done.get_nowait()
        except queue.Empty:
            pass
        self._check()
        return Report(tuple(map(tuple, finished.values())), tuple(share.work for share in self.shares), self.version)

    def stop(self) -> None:
        """End the connection, and the server if this process started it; the server drops the requests under way."""
        self.at_stop.close()

    def _check(self) -> None:
        if self._state is State.LOST:
            raise self._death

    def _close(self) -> None:
        if self._thread.is_alive():
            self._soon(self._loop.stop)
            self._thread.join(timeout=CONNECTION_END_S)

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    # ------------------------------------------------------------------------------------------ the client's thread

    def _run_loop(self) -> None:
        """Run until stopped.

        Consumes: sequences, cancellations and versions. Produces: finished sequences, and the reason of a loss.
        Waits for: the server. Unblocked by: an answer, a timeout, or `stop`.
        """
        asyncio.set_event_loop(self._loop)
        self._serving = asyncio.Event()
        self._serving.set()
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

    def _enter(self, state: State) -> None:
        self._state = state
        (self._serving.set if state is State.SERVING else self._serving.clear)()

    def _die(self, error: BaseException) -> None:
        if self._state is State.LOST:
            return
        what = self._obituary() or (str(error) if isinstance(error, (EngineDied, BadAnswer)) else repr(error))
        lost = sum(len(share.tasks) for share in self.shares)
        self._death = EngineDied(f"the vLLM server at {self.address}: {what}. {lost} sequences in flight are lost")
        self._enter(State.LOST)
        for task in self._tasks:
            task.cancel()
        self._release_all()
        self._done.put(None)  # ends a wait

    # ------------------------------------------------------------------------------------------------- generation

    def _enqueue(self, share: LaneShare, sequences: list[TokenSequence]) -> None:
        for sequence in sequences:
            task = share.tasks[sequence] = self._start(self._generate, share, sequence)
            task.add_done_callback(partial(self._ended, share, sequence))

    def _cancel(self, share: LaneShare, ids: Collection[tuple[int, int]]) -> None:
        for task in [task for sequence, task in share.tasks.items() if sequence.request.id in ids]:
            task.cancel()  # closes the stream, which makes the server drop the request

    def _ended(self, share: LaneShare, sequence: TokenSequence, task: asyncio.Task[None]) -> None:
        if self._state is State.LOST:
            return
        del share.tasks[sequence]
        if not task.cancelled():
            self._done.put((share, sequence))

    async def _generate(self, share: LaneShare, sequence: TokenSequence) -> None:
        """Wait for a slot, and send requests until the sequence is over; resume a broken request at its last token.

        Raises:
            EngineDied: Requests broke too often without a token in between, or the server has ended.
        """
        failures, before = 0, 0
        async with share.free:
            while not sequence.over():
                await self._serving.wait()
                sequence.write_phrase(max(0, self.version))
                try:
                    if not sequence.over():
                        await self._request(share, sequence)
                except BrokenStream as error:
                    if sequence.over():
                        return  # it broke after the last token
                    failures, before = (failures + 1 if len(sequence) == before else 1), len(sequence)
                    self.retried += 1
                    if failures > RETRIES or self._obituary():
                        raise EngineDied(f"a request broke {failures} times; the last error: {error}") from None
                    await asyncio.sleep(_backoff(failures))

    async def _request(self, share: LaneShare, sequence: TokenSequence) -> None:
        """Let the server continue a sequence until the request or the sequence ends."""
        allowance, version, complete = sequence.allowance, max(0, self.version), False
        sequence.begin()
        body = generate_body(
            sequence.prefix, allowance, self._sampling, f"scalerl-{share.name}-{next(self._numbers)}",
            # within a frozen round a version may be used again; its earlier prefix cache must not be
            salt=f"{self._epoch}.{version}", experts=sequence.routing is not None, adapter=self._transfer.adapter,
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
                    share.count(sequence, before)
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

    def _queue_swap(self, version: int, stored: Any) -> None:
        self._asked_for.append((version, stored))
        match self._state:
            case State.LOST:
                self._release_all()
            case State.SERVING:
                self._enter(State.SWAPPING)
                self._start(self._swap)  # while it runs, it takes further versions

    async def _swap(self) -> None:
        while self._asked_for:
            version, stored = self._asked_for.pop()
            self._release_all()  # older versions
            try:
                start = time.monotonic()
                while self._prefilling and time.monotonic() < start + SERVER_PREFILL_S:
                    await asyncio.sleep(0.002)
                await self._transfer.apply(self._call, version, stored)
                self._epoch += 1
                self.version = version
                self._done.put(None)
            finally:
                await asyncio.to_thread(self._transfer.release, stored)  # a busy disk must not hold up the streams
        self._enter(State.SERVING)

    def _release_all(self) -> None:
        """Release the versions that the server will not load."""
        for _, stored in self._asked_for:
            self._transfer.release(stored)
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


def vllm_client(
    server: VllmServer | str,
    *,
    slots: tuple[int, int],
    rule: LengthRule,
    sampling: Sampling,
    needs: Needs,
    transfer: WeightTransfer,
    sizes: ModelSizes | None = None,
    at_stop: ExitStack | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> VllmClient:
    """Check a server and connect to it, for a training engine and an evaluation engine that share its weights.

    Args:
        server: A server started by this process, or the address of a running one (http://host:port).
        slots: Sequences that each engine decodes together; the server's --max-num-seqs should be their sum.
        rule: Length limits of completions.
        sampling: Temperature and stop tokens.
        needs: Requirements on the server.
        transfer: Method by which the server gets weights; `transfer` of the weight channel.
        sizes: Sizes that the FLOPs are computed from; None: they are not counted.
        at_stop: What ends with the client, after its connection.
        note: Function that gets warnings about the server.

    Raises:
        ConfigError: The server does not meet the requirements.
    """
    assert needs.nucleus == (sampling.top_p < 1), (needs, sampling)
    address = (server if isinstance(server, str) else server.address).rstrip("/")
    for warning in check_server(address, needs):
        note(warning)
    shares = [LaneShare(name, count, sizes) for name, count in zip(("train", "evaluate"), slots, strict=True)]
    obituary = server.obituary if isinstance(server, VllmServer) else lambda: None
    return VllmClient(address, shares, rule, sampling, transfer, needs, obituary, at_stop)
