"""Rollouts of several turns over any engine: every turn is a request, whose prompt has all turns and replies before it.

A slot is free while an environment thinks. What the policy sampled is never encoded again: the tokens of a reply are
appended to them, and the next turn's prefill computes the keys of all of them with the current weights.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.core.printable import encodable
from scalerl.core.rng import stream_key
from scalerl.core.serialization import from_plain, to_plain
from scalerl.core.types import AGENT, TURNS, IntArray, Outcome, Prompt, Rollout
from scalerl.training.config.run import Scoring
from scalerl.training.engines.engine import Engine, ExactEngine, Finished, Occupancy, OuterEngine, Request
from scalerl.training.models.routing import UNKNOWN
from scalerl.training.models.template import continuation
from scalerl.training.models.text import TokenText
from scalerl.training.rewards import code, turns
from scalerl.training.rewards.custom import create
from scalerl.training.rewards.pool import ProcessEnded, ScoringPool, Trial
from scalerl.training.rewards.turns import Message, Reply

RequestReply = Callable[[Prompt, Sequence[Message]], "Future[Reply]"]
"""Asks an environment, given the messages after the opening."""

ReplyRequest = tuple[Prompt, list[Message], "Future[Reply]"]
"""A request for a reply."""


@dataclass(slots=True, eq=False)
class TurnSequence:
    """A sequence of tokens under way: its prompt, then turns of the policy with other tokens between them.

    Example: TurnSequence(prompt=(7, 11), turns=[Rollout(...), Rollout(...)], between=[array([5, 9])], numbers=[0, 1])
    """

    prompt: tuple[int, ...]
    turns: list[Rollout] = field(default_factory=list)
    between: list[IntArray] = field(default_factory=list)
    """Tokens after each turn; none yet after the last one, while no other follows."""
    numbers: list[int] = field(default_factory=list)
    """Number of each turn among all turns of the rollout, from 0."""

    def add(self, turn: Rollout, number: int) -> None:
        """Append a turn of the policy."""
        self.turns.append(turn)
        self.numbers.append(number)

    def tokens(self) -> list[int]:
        """Return all tokens so far."""
        tokens = list(self.prompt)
        for number, turn in enumerate(self.turns):
            tokens += turn.tokens.tolist()
            tokens += self.between[number].tolist() if number < len(self.between) else []
        return tokens

    def rollout(self) -> Rollout:
        """Return turns and the tokens between them, which carry no loss, as one rollout."""
        pieces, first = [self.turns[0]], self.turns[0]
        for before, turn in zip(self.between, self.turns[1:], strict=True):
            pieces += [_observed(before, pieces[-1]), turn]
        names = ["tokens", "logps", "versions", "sampled", *(["experts"] if first.experts is not None else [])]
        arrays: dict[str, Any] = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
        if first.nucleus is not None:
            sets = [piece.nucleus for piece in pieces if piece.nucleus is not None]
            arrays["nucleus"] = tuple(np.concatenate(parts) for parts in zip(*sets, strict=True))
        arrays |= {name: any(getattr(turn, name) for turn in self.turns) for name in ("truncated", "interrupted")}
        ends = np.cumsum([len(piece) for piece in pieces])[::2]  # of the turns
        return Rollout(**arrays, turns=tuple(zip(self.numbers, map(int, ends), strict=True)))


def ended(prompt: Prompt, sequences: Sequence[TurnSequence], **end: Any) -> Rollout:
    """Return the sequences of a rollout that an environment or a program made, with its end.

    Args:
        prompt: Prompt of the rollout.
        sequences: At least one, with at least one turn each.
        end: Fields of `Outcome`; the counts of turns and tokens are added here.
    """
    turns = [turn for sequence in sequences for turn in sequence.turns]
    observed = sum(len(tokens) for sequence in sequences for tokens in sequence.between)
    longest = max(int(turn.sampled.sum()) for turn in turns)
    first, *others = (
        replace(one.rollout(), prompt=None if one.prompt == prompt.tokens else one.prompt) for one in sequences
    )
    outcome = Outcome(len(turns), observed=observed, longest=longest, **end)
    truncated = first.truncated or outcome.ended == "turns"
    return replace(first, truncated=truncated, outcome=outcome, others=tuple(others))


@dataclass(slots=True)
class Episode:
    """A rollout under way.

    Example (the policy's second turn is being sampled):
        Episode(id=(17, 3), key=99, prompt=Prompt(...), messages=[{"role": "assistant", ...}, {"role": "user", ...}],
                sequence=TurnSequence(prompt=(7, 11), turns=[Rollout(...)], between=[array([5, 9])], ...), due=-1)
    """

    id: tuple[int, int]
    key: int
    prompt: Prompt
    messages: list[dict[str, str]]
    """Messages after the opening."""
    sequence: TurnSequence
    """The turns of the policy, and the replies between them."""
    due: int
    """Step at which the reply is used; -1 while a turn is sampled."""
    waited_s: float = 0.0
    """Seconds between requests for replies and their use; those before a resume do not count."""
    rewards: tuple[float | None, ...] = ()
    """Reward of each finished turn; None until a reply gives it."""

    def request(self) -> Request:
        """Return the request of the next turn."""
        number = len(self.sequence.turns)
        key = stream_key(self.key, "turn", number) if number else self.key
        return Request(self.id, tuple(self.sequence.tokens()), key)

    def credited(self, score: float) -> tuple[float, ...]:
        """Return the reward of each turn; without one, it is 0, and that of the last turn the score."""
        *earlier, last = self.rewards
        return (*(reward or 0.0 for reward in earlier), score if last is None else last)


def _observed(tokens_T: IntArray, turn: Rollout) -> Rollout:
    """Return the reply to a turn as tokens that were not sampled."""
    count = len(tokens_T)
    return Rollout(
        tokens_T,
        np.zeros(count, np.float32),
        np.full(count, turn.versions[-1], np.int32),
        np.zeros(count, np.bool_),
        truncated=False,
        interrupted=False,
        experts=None if turn.experts is None else np.full((count, *turn.experts.shape[1:]), UNKNOWN, np.int16),
        nucleus=None if turn.nucleus is None else (np.zeros(count, np.int32), np.empty(0, np.int32)),
    )


class TurnEngine(OuterEngine):
    """Adds turns to an engine: requests with a `source` are sampled turn by turn; all others pass through."""

    def __init__(self, inner: Engine, request_reply: RequestReply, text: TokenText) -> None:
        """Wrap an engine.

        Args:
            inner: Engine that samples the turns; its prompts may be as long as `with_replies` returns.
            request_reply: Function that asks an environment.
            text: Decoder of the policy's tokens.
        """
        super().__init__(inner)
        self._request_reply, self._text = request_reply, text
        self._episodes: dict[tuple[int, int], Episode] = {}
        self._pending: dict[tuple[int, int], tuple[Future[Reply], float]] = {}
        self._tick = 0

    def occupancy(self) -> Occupancy:
        """Return how full the engine is; rollouts that wait for a reply have no slot, but have not finished."""
        inner = self.inner.occupancy()
        return replace(inner, waiting=inner.waiting + len(self._pending), parked=len(self._pending))

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue rollouts."""
        for request in requests:
            if request.source is not None:
                self._episodes[request.id] = Episode(
                    request.id, request.key, request.source, [], TurnSequence(request.prompt), -1
                )
        self.inner.submit([replace(request, source=None) for request in requests])

    def cancel(self, ids: Collection[tuple[int, int]]) -> None:
        """Drop unfinished rollouts; replies that were asked for are not used."""
        for id in ids:
            self._episodes.pop(id, None)
            if id in self._pending:
                self._pending.pop(id)[0].cancel()
        self.inner.cancel(ids)

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        """Poll the inner engine, ask environments about finished turns, and use their replies."""
        if self._pending and timeout_s and not self.inner.occupancy().busy:
            time.sleep(timeout_s)
        self._tick += 1
        done = [end for finished in self.inner.poll(timeout_s) for end in self._turn_ended(finished)]
        used = self._due()
        return done + [end for id in used for end in self._replied(self._episodes[id], *self._pending.pop(id))]

    def _due(self) -> list[tuple[int, int]]:
        """Return the rollouts whose reply is used now."""
        return [id for id, (reply, _) in self._pending.items() if reply.done()]

    def _turn_ended(self, finished: Finished) -> Iterable[Finished]:
        episode, turn = self._episodes.get(finished.id), finished.rollout
        if episode is None:
            return [finished]
        text = self._text.judged(episode.request().prompt, turn.tokens.tolist())
        episode.sequence.add(turn, len(episode.sequence.turns))
        episode.rewards += (None,)
        episode.messages.append({"role": "assistant", "content": text})
        if turn.truncated:
            return [self._end(episode, "tokens")]
        episode.due = self._tick + int(episode.prompt.columns[TURNS]["reply_ticks"])
        self._request(episode)
        return []

    def _request(self, episode: Episode) -> None:
        self._pending[episode.id] = self._request_reply(episode.prompt, episode.messages), time.monotonic()

    def _replied(self, episode: Episode, future: Future[Reply], requested_at: float) -> Iterable[Finished]:
        """Use a reply: submit the next turn, or return the finished rollout.

        Consumes: a reply. Produces: a request, or a rollout. Waits for: the environment, whose call has a time limit.
        Unblocked by: its reply, its time limit, or the death of its process.
        """
        settings, name = episode.prompt.columns[TURNS], episode.prompt.columns["function"]
        episode.waited_s += time.monotonic() - requested_at
        problem = ""
        try:
            reply = future.result()
            episode.rewards = (*episode.rewards[: len(episode.sequence.turns) - len(reply.rewards)], *reply.rewards)
            if not reply.messages:
                return [self._end(episode, "environment", reply=reply)]
            if len(episode.sequence.turns) == settings["turns"]:
                return [self._end(episode, "turns")]
            tokens = reply_tokens(
                self._text.tokenizer, episode.prompt, reply, int(episode.sequence.turns[-1].tokens[-1])
            )
        except TimeoutError:
            problem = f"{name}.reply took longer than {settings['reply_s']:g} s"
        except ProcessEnded as error:
            problem = f"{name}.reply ended its process {error}"
        except (PluginError, ConfigError) as error:
            problem = str(error) or name
        except Exception as error:  # a reply is text of others: no tokenizer or template may end the run over it
            problem = f"{name}.reply: {type(error).__name__}: {error}"
        if problem:
            return [self._end(episode, "problem", encodable(problem))]
        episode.messages += reply.messages
        episode.sequence.between.append(np.asarray(tokens, np.int32))
        episode.due = -1
        self.inner.submit([episode.request()])
        return []

    def _end(self, episode: Episode, end: str, problem: str = "", reply: Reply | None = None) -> Finished:
        del self._episodes[episode.id]
        reply = reply or Reply()
        calls = sum(message["role"] == turns.TOOL for message in episode.messages)
        rollout = ended(
            episode.prompt, [episode.sequence], ended=end, score=reply.score, problem=problem, metrics=reply.metrics,
            calls=calls, waited_s=episode.waited_s, rewards=episode.credited(reply.score),
        )  # fmt: skip
        return Finished(episode.id, rollout)


class ExactTurnEngine(TurnEngine):
    """Adds turns to an exact engine: a reply is used `reply_ticks` steps after its request, whenever it arrived."""

    inner: ExactEngine

    def begin(self) -> None:
        """Begin a decode step."""
        self.inner.begin()

    def _due(self) -> list[tuple[int, int]]:
        return [id for id in self._pending if self._episodes[id].due <= self._tick]

    def state(self) -> dict[str, Any]:
        """Return the inner engine's state and the rollouts under way; replies are asked for again.

        Rollouts that wait for a reply come first, in the order of their requests: replies of one step are used in it.
        """
        order = dict.fromkeys([*self._pending, *self._episodes])
        episodes = [to_plain(self._episodes[id]) for id in order]
        return {"inner": self.inner.state(), "tick": self._tick, "episodes": episodes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.inner.load_state(state["inner"])
        self._tick = int(state["tick"])
        for plain in state["episodes"]:
            episode = from_plain(Episode, plain)
            self._episodes[episode.id] = episode
            if episode.due >= 0:
                self._request(episode)


class ReplyPool:
    """Processes that ask environments. Each takes up to `reply_threads` requests of one environment at a time."""

    def __init__(self, settings: Scoring) -> None:
        """Prepare the processes; they start at the first requests."""
        workers = settings.processes(max(4, os.cpu_count() or 1))
        self._pool = ScoringPool(workers, code.prepare, settings)
        self._takers = ThreadPoolExecutor(workers, thread_name_prefix="replies")
        self._waiting, self._lock = deque[ReplyRequest](), Lock()

    def request(self, prompt: Prompt, messages: Sequence[Message]) -> Future[Reply]:
        """Queue a request. Its future raises as those of `ScoringPool.schedule`, or the environment's PluginError."""
        reply = Future[Reply]()
        self._waiting.append((prompt, list(messages), reply))
        self._takers.submit(self._take)
        return reply

    def _take(self) -> None:
        """Ask for some of the replies that are waited for.

        Consumes: requests. Produces: replies. Waits for: a process. Unblocked by: its answer, time limit or end.
        """
        batch: list[ReplyRequest] = []
        with self._lock:
            while self._waiting:
                first, prompt = (batch or self._waiting)[0][0].columns, self._waiting[0][0]
                if len(batch) == first[TURNS]["reply_threads"] or prompt.columns["function"] != first["function"]:
                    break
                request = self._waiting.popleft()
                batch += [request] if request[2].set_running_or_notify_cancel() else []
        if batch:
            self._answer(batch)

    def _answer(self, batch: Sequence[ReplyRequest]) -> None:
        limit_s, words = batch[0][0].columns[TURNS]["reply_s"], [request[:2] for request in batch]
        replies: list[Reply | PluginError]
        try:
            replies = self._pool.schedule(turns.ask_all, words, limit_s=limit_s).result()
        except Exception as error:  # late, a death, or a row that cannot be sent: the rollouts would wait for ever
            if len(batch) == 1:
                batch[0][2].set_exception(error)
            else:  # one of them is the cause
                for request in batch:
                    self._answer([request])
            return
        for (_, _, future), reply in zip(batch, replies, strict=True):
            future.set_result(reply) if isinstance(reply, Reply) else future.set_exception(reply)


def with_turns(text: TokenText, settings: Scoring) -> Callable[[Engine], Engine]:
    """Return a function that adds turns to engines, whose environments share one pool of processes."""
    return partial(turn_engine, request_reply=ReplyPool(settings).request, text=text)


def turn_engine(inner: Engine, request_reply: RequestReply, text: TokenText) -> TurnEngine:
    """Add turns to an engine; arguments as for `TurnEngine`. Around an exact engine, the result is one."""
    kind = ExactTurnEngine if isinstance(inner, ExactEngine) else TurnEngine
    return kind(inner, request_reply, text)


def with_replies(prompts: Sequence[Prompt], capacity: int) -> tuple[int, bool]:
    """Return the most tokens before a turn, a bound from the limits of the tasks, and whether environments reply.

    Args:
        prompts: Prompts of the run.
        capacity: Most tokens of a turn.
    """
    longest, replied = 0, False
    for prompt in prompts:
        settings, later = prompt.columns.get(TURNS), 0
        if settings:
            later, replied = (settings["turns"] - 1) * (capacity + settings["reply_tokens"]), True
        longest = max(longest, prompt.columns.get(AGENT, {}).get("max_prompt_tokens", 0))
        longest = max(longest, len(prompt.tokens) + later)
    return longest, replied


def check_replies(prompts: Sequence[Prompt], tokenizer: Any, scoring: Scoring) -> None:
    """Ask the environment of each task for its reply to an empty completion, in another process, and render it.

    Args:
        prompts: Prompts of the run.
        tokenizer: The policy's tokenizer.
        scoring: Settings of the process.

    Raises:
        ConfigError: An environment fails or takes too long, or the chat template cannot continue a rollout with its
            reply.
    """
    for prompt in {prompt.task: prompt for prompt in reversed(prompts) if prompt.columns.get(TURNS)}.values():
        name = prompt.columns["function"]
        with Trial(scoring, prompt.columns[TURNS]["start_s"]) as trial:
            trial.step(f"{name}.__init__", create, prompt.columns)
            reply = trial.step(f"{name}.reply", turns.first_reply, prompt)
        if prompt.columns.get("tools"):
            reply = Reply(({"role": turns.TOOL, "content": "0"},))
        reply_tokens(tokenizer, prompt, reply, -1)


def reply_tokens(tokenizer: Any, prompt: Prompt, reply: Reply, last: int) -> list[int]:
    """Return the tokens of a reply, after a turn that ended with the token `last`; raises as `continuation`."""
    settings = prompt.columns[TURNS]
    if not reply.messages:
        return []
    chat, day = settings["chat_template"] != "never", settings.get("template_date", "auto")
    arguments = settings.get("template_arguments", {})
    return continuation(tokenizer, reply.messages, last, chat, settings["reply_tokens"], day, arguments)
