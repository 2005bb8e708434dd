"""The client of one vLLM server: a thread that keeps its requests under way, tries again what broke, and swaps weights.

Engines over the same server share a connection, each with slots of its own. What the caller's thread may touch is
marked; everything else belongs to the connection's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from scalerl.models.flops import ModelShape
from scalerl.rollouts.engine import Sampling, Work
from scalerl.rollouts.process_engine import EngineDied
from scalerl.rollouts.vllm.protocol import GENERATE, BadAnswer, BrokenStream, generate_body, parse_chunk
from scalerl.rollouts.vllm.sequence import TokenSequence
from scalerl.rollouts.vllm.updates import Updates


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient a connection is.

    Example: Limits(stall_s=120.0, retries=5)
    """

    connect_s: float = 10.0
    """Seconds to connect."""
    stall_s: float = 120.0
    """Seconds without a token, or without an answer to a question, after which a request counts as broken."""
    update_s: float = 1800.0
    """Seconds that the server may take to pause, or to load weights."""
    retries: int = 5
    """Times that a sequence or a question is tried again before the engine counts as dead."""
    backoff_s: float = 0.25
    """Seconds before the first of them; each later one waits twice as long, at most 10 s."""
    prefill_s: float = 30.0
    """Seconds that a swap waits for the first tokens of requests already sent, so that no prompt is computed half
    with old and half with new weights."""
    stream_interval: int = 16
    """Tokens a chunk. More cost less of the client's time; a broken request loses up to one chunk."""

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait before attempt 1, 2, ... at something again."""
        return min(10.0, self.backoff_s * 2.0 ** (attempt - 1))


class Lane:
    """The share of one engine in a connection."""

    def __init__(self, name: str, slots: int, shape: ModelShape | None = None) -> None:
        """Make a share.

        Args:
            name: for the server's log.
            slots: sequences decoded together.
            shape: what the FLOPs depend on; None: they are not counted.
        """
        self.name, self.slots, self._shape = name, slots, shape
        self.done: queue.SimpleQueue[TokenSequence | None] = queue.SimpleQueue()
        """Sequences that ended, for the caller's thread; None wakes it when the connection has died."""
        self.work = Work()
        """Replaced as a whole, so that the caller's thread may read it."""
        self.waiting: deque[TokenSequence] = deque()
        self.running: dict[TokenSequence, asyncio.Task[None]] = {}
        self._steps = 0.0

    def count(self, sequence: TokenSequence, before: int) -> None:
        """Count a sequence's tokens from index `before` on.

        Each is its share of a decode step of all sequences that run. Prompts are counted once for each sequence: what
        the server saves by its prefix cache, or computes again after a swap, is not known here.
        """
        tokens, prompt = len(sequence) - before, len(sequence.request.prompt)
        self._steps += tokens / max(1, len(self.running))
        flops = 0.0
        if self._shape is not None:
            first = 0 if before == 0 else prompt + before
            flops = self._shape.forward_flops(first, prompt + len(sequence) - first)
        steps, work = int(self._steps), self.work
        self.work = Work(steps, work.tokens + tokens, int(self._steps * self.slots), work.flops + flops)


class Connection:
    """One server, from the caller's side."""

    def __init__(
        self,
        address: str,
        sampling: Sampling,
        updates: Updates,
        lanes: Sequence[Lane],
        limits: Limits | None = None,
        obituary: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            address: http://host:port.
            sampling: temperature, nucleus, stop tokens.
            updates: how the server gets weights.
            lanes: of the engines that share the connection.
            limits: patience.
            obituary: says how the server's process ended, if it is known to have; None while it lives.
        """
        self.address, self._sampling, self._updates = address, sampling, updates
        self._lanes, self._limits, self._obituary = lanes, limits or Limits(), obituary
        self.version, self.swap_s, self.retried = 0, 0.0, 0
        """Version in use; seconds of the last swap; requests that were tried again. Any thread may read them."""
        self.asked: int | None = None
        """Version that was asked for last; the caller's thread only."""
        self._death: EngineDied | None = None
        self._epoch = 0
        self._asked_for: list[int] = []
        self._prefilling: set[TokenSequence] = set()
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(
            base_url=address,
            trust_env=False,  # a proxy would be asked for loopback addresses too
            timeout=httpx.Timeout(self._limits.stall_s, connect=self._limits.connect_s, pool=None),
            # vLLM closes an idle connection after 5 s; one that is about to be closed must not be used
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        self._thread = threading.Thread(target=self._run_loop, name=f"vllm {address}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------- the caller's thread

    def check(self) -> None:
        """Do nothing while all is well.

        Raises:
            EngineDied: the server is lost, with what happened to it.
        """
        if self._death is not None:
            raise self._death

    def submit(self, lane: Lane, sequences: Sequence[TokenSequence]) -> None:
        """Queue sequences; they are sampled by the version that was asked for last, or newer."""
        self.check()
        self._soon(self._enqueue, lane, list(sequences))

    def cancel(self, lane: Lane, ids: Collection[tuple[int, int]]) -> None:
        """Drop sequences; one that has just finished may still come out."""
        self._soon(self._cancel, lane, set(ids))

    def swap(self, version: int) -> None:
        """Ask for weights and return; `version` becomes the new one when the server uses it."""
        self.check()
        if version == self.asked:
            return
        self._updates.hold(version)
        self.asked = version
        self._soon(self._ask, version)

    def close(self) -> None:
        """End the thread; requests under way are dropped, and the server with them."""
        if self._thread.is_alive():
            self._soon(self._loop.stop)
            self._thread.join(timeout=10)

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    # -------------------------------------------------------------------------------------- the connection's thread

    def _run_loop(self) -> None:
        """Run until closed.

        Consumes: sequences, cancellations and versions. Produces: finished sequences, and `_death`.
        Waits for: the server. Unblocked by: an answer, a time limit, or `close`.
        """
        asyncio.set_event_loop(self._loop)
        self._gate = asyncio.Event()
        self._gate.set()
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        task = self._loop.create_task(self._guarded(work, *arguments))
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        try:
            await work(*arguments)
        except Exception as error:  # a worker may die here: the caller's thread is told, and raises
            self._die(error)

    def _die(self, error: Exception) -> None:
        if self._death is not None:
            return
        what = self._obituary() or (str(error) if isinstance(error, (EngineDied, BadAnswer)) else repr(error))
        lost = sum(len(lane.running) + len(lane.waiting) for lane in self._lanes)
        self._death = EngineDied(f"the vLLM server at {self.address}: {what}. {lost} sequences in flight are lost")
        for task in self._tasks:
            task.cancel()
        for lane in self._lanes:
            lane.done.put(None)

    # ------------------------------------------------------------------------------------------------- generation

    def _enqueue(self, lane: Lane, sequences: list[TokenSequence]) -> None:
        lane.waiting.extend(sequences)
        self._fill(lane)

    def _fill(self, lane: Lane) -> None:
        while lane.waiting and len(lane.running) < lane.slots and self._death is None:
            sequence = lane.waiting.popleft()
            task = lane.running[sequence] = self._start(self._generate, lane, sequence)
            task.add_done_callback(partial(self._ended, lane, sequence))

    def _cancel(self, lane: Lane, ids: set[tuple[int, int]]) -> None:
        lane.waiting = deque(s for s in lane.waiting if s.request.id not in ids)
        for task in [task for sequence, task in lane.running.items() if sequence.request.id in ids]:
            task.cancel()  # closes the stream, which makes the server drop the request

    def _ended(self, lane: Lane, sequence: TokenSequence, task: asyncio.Task[None]) -> None:
        if self._death is not None:
            return
        del lane.running[sequence]
        if not task.cancelled():
            lane.done.put(sequence)
        self._fill(lane)

    async def _generate(self, lane: Lane, sequence: TokenSequence) -> None:
        """Send requests until the sequence is over; one that broke is continued where it broke.

        Raises:
            EngineDied: it broke too often, or the server is gone.
        """
        failures = 0
        while not sequence.over():
            await self._gate.wait()
            sequence.write_phrase(self.version)
            try:
                if not sequence.over():
                    await self._request(lane, sequence)
            except (BrokenStream, httpx.TransportError) as error:
                if sequence.over():
                    return  # it broke after the last token
                failures += 1
                self.retried += 1
                if failures > self._limits.retries or self._obituary():
                    raise EngineDied(f"a request broke {failures} times, at last by: {_tell(error)}") from None
                await asyncio.sleep(self._limits.backoff(failures))

    async def _request(self, lane: Lane, sequence: TokenSequence) -> None:
        """Let the server continue a sequence until its request ends, or the sequence does."""
        allowance, version, complete = sequence.allowance, self.version, False
        sequence.begin()
        body = generate_body(
            sequence.prefix, allowance, self._sampling, f"scalerl-{lane.name}-{next(self._numbers)}",
            # a version may come back within a frozen round; what was cached before does not
            salt=f"{self._epoch}.{version}", stream_interval=self._limits.stream_interval,
        )  # fmt: skip
        self._prefilling.add(sequence)
        try:
            async with self._client.stream("POST", GENERATE, json=body) as response:
                if response.status_code != 200:
                    _refuse(response.status_code, await response.aread())
                async for event in _events(response):
                    chunk = parse_chunk(event)
                    if chunk is None or complete:
                        continue
                    self._prefilling.discard(sequence)
                    before = len(sequence)
                    # until the last chunk names the weights, the oldest that can be are the ones it was sent under
                    sequence.extend(chunk.tokens, chunk.logps, version)
                    lane.count(sequence, before)
                    if chunk.reason is not None:
                        if chunk.spans is None:
                            raise BadAnswer("its last chunk does not name the weights (weight_versions)")
                        sequence.settle(chunk.spans)
                        _check_end(sequence, chunk.reason, allowance)
                        complete = True
                    elif sequence.over():
                        return  # over its budget; leaving closes the stream, which makes the server drop the request
        except httpx.TransportError:
            if not complete:
                raise
        finally:
            self._prefilling.discard(sequence)
        if not complete:
            raise BrokenStream("the stream ended in the middle")

    # ------------------------------------------------------------------------------------------------------ weights

    def _ask(self, version: int) -> None:
        self._asked_for.append(version)
        if self._gate.is_set():
            self._gate.clear()
            self._start(self._swap)

    async def _swap(self) -> None:
        while self._asked_for:
            for skipped in self._asked_for[:-1]:
                self._updates.release(skipped)
            version = self._asked_for[-1]
            self._asked_for.clear()
            began = time.monotonic()
            while self._prefilling and time.monotonic() < began + self._limits.prefill_s:
                await asyncio.sleep(0.002)
            await self._updates.apply(self._call, version)
            self._updates.release(version)
            self._epoch += 1
            self.version, self.swap_s = version, time.monotonic() - began
        self._gate.set()

    async def _call(self, method: str, path: str, body: Any = None, *, again: bool = True) -> Any:
        """Ask the server something.

        Args:
            method: GET or POST.
            path: of the question.
            body: sent as JSON.
            again: whether asking twice does no harm.

        Raises:
            EngineDied: no answer, or an error that asking again did not cure.
        """
        timeout = httpx.Timeout(self._limits.update_s, connect=self._limits.connect_s)
        for attempt in itertools.count(1):
            try:
                response = await self._client.request(method, path, json=body, timeout=timeout)
                if response.status_code == 200:
                    return response.json()
                problem = f"{response.status_code}: {response.text[:500]}"
                again = again and response.status_code >= 500
            except httpx.TransportError as error:
                problem = _tell(error)
            if not again or attempt > self._limits.retries:
                break
            await asyncio.sleep(self._limits.backoff(attempt))
        raise EngineDied(f"{method} {path} failed {attempt} times, at last by: {problem}")


def _tell(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refuse(status: int, answer: bytes) -> None:
    text = f"{status}: {answer[:500].decode(errors='replace')}"
    if status >= 500 or status == 429:
        raise BrokenStream(text)
    raise BadAnswer(f"it refuses a request with {text}")


def _check_end(sequence: TokenSequence, reason: str, allowance: int) -> None:
    """Refuse an end that the sequence's own limits do not explain."""
    got = len(sequence) - sequence.restarts[-1]
    if reason == "stop" and not sequence.ended:
        raise BadAnswer(f"it stopped after token {sequence.tokens[-1]}, which is none of the stop tokens")
    if reason == "length" and not sequence.over() and got < allowance:
        raise BadAnswer(
            f"it ended a sequence of {len(sequence.prefix)} tokens {allowance - got} before its limit; start it with a "
            "larger --max-model-len"
        )


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of a stream's events, to its end."""
    rest = b""
    async for piece in response.aiter_bytes():
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data and data != b"[DONE]":
                yield data
