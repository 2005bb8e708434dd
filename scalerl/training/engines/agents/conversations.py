"""The conversations of one rollout as sequences of tokens: what the policy sampled is never encoded again.

A request whose messages begin with those of an earlier turn continues that turn: only the messages after it are
encoded. If the turn is the last of its sequence, the sequence grows. Otherwise a further sequence begins, whose prompt
has the tokens up to that turn, so that every sampled token carries loss in one sequence only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalerl.core.errors import ConfigError
from scalerl.core.types import Rollout
from scalerl.training.engines.agents.protocol import ChatMessage, Refused, Turn, TurnRequest, split_calls
from scalerl.training.engines.turns import TurnSequence
from scalerl.training.models.template import continuation, render
from scalerl.training.models.text import TokenText, encoded, tokens_of_prompts
from scalerl.training.rewards.calls import FORM

LONGEST_MESSAGE = 1 << 20
"""Limit of the tokens of new messages, which no request may reach; they are never cut."""

HERMES = """You may call one or more functions to assist with the user query. \
You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a JSON object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""The tools in a system message, for a chat template that does not show them (Hermes and Qwen 2.5 write it so)."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnEnd:
    """The end of a turn in a sequence."""

    sequence: TurnSequence
    turns: int
    """Number of turns of the sequence up to it."""
    text: str = ""
    """Prompt and answer of a completion."""

    def tokens(self) -> list[int]:
        """Return the tokens up to it."""
        sequence = self.sequence
        return TurnSequence(sequence.prompt, sequence.turns[: self.turns], sequence.between[: self.turns - 1]).tokens()

    @property
    def last(self) -> bool:
        """Whether it is the last turn of its sequence."""
        return self.turns == len(self.sequence.turns)


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The tokens of a request, and the turn that they continue."""

    tokens: tuple[int, ...]
    base: TurnEnd | None
    before: int
    """Tokens up to the base; the others are new."""
    key: str
    """Digest of the messages."""
    changed: bool
    """Whether the messages differ from earlier ones."""


class Conversations:
    """All conversations of one rollout; one thread at a time may use it."""

    def __init__(self, settings: Mapping[str, Any], text: TokenText) -> None:
        """Begin without a turn.

        Args:
            settings: Settings of the task (`AgentTask.settings`).
            text: Decoder of the policy's tokens, with its tokenizer.
        """
        self.settings, self._text, self._tokenizer = settings, text, text.tokenizer
        self._chat = bool(self._tokenizer.chat_template) and settings["chat_template"] != "never"
        self._places: dict[str, TurnEnd] = {}
        """Turns by the digest of the messages up to them."""
        self._completed: list[TurnEnd] = []
        """Turns of completions."""
        self._openings: set[str] = set()
        """Digests of the messages before the first turn of a conversation."""
        self.sequences: list[TurnSequence] = []
        self.forks = self.calls = self.turns = 0

    # -------------------------------------------------------------------------------------------------- from messages

    def plan(self, request: TurnRequest) -> RequestPlan:
        """Return the tokens for a request.

        Raises:
            Refused: The chat template fails, the conversation is too long, or it was changed and the task forbids it.
        """
        most = self.settings["max_prompt_tokens"]
        # before they are rendered and encoded, which takes long; each message has a token at least
        for count, allowed, what in (
            (_size(request), most * self._text.longest, "bytes of text"),
            (len(request.messages), most, "messages"),
        ):
            if count > allowed:
                raise Refused(f"this conversation has {count:,} {what}; allowed: {allowed:,}, which are {most} tokens "
                              "or more (data.max_prompt_tokens)", code="context_length_exceeded")  # fmt: skip
        plan = self._of_chat(request) if request.messages else self._of_completion(request.text)
        if len(plan.tokens) > most:
            raise Refused(f"this conversation has {len(plan.tokens)} tokens; allowed: {most} (data.max_prompt_tokens)",
                          code="context_length_exceeded")  # fmt: skip
        return plan

    def _of_chat(self, request: TurnRequest) -> RequestPlan:
        system = self.settings["system_prompt"]
        messages = _with_system(request.messages, system) if system else request.messages
        keys = _digests(messages, request.tools)
        continued = next((n for n in range(len(messages), 0, -1) if keys[n] in self._places), 0)
        base, new = self._places.get(keys[continued]), messages[continued:]
        first = next((n for n, message in enumerate(messages) if message.role == "assistant"), len(messages))
        changed = first < len(messages) and keys[first] in self._openings if base is None else not base.last
        changed |= base is not None and any(message.role == "assistant" for message in new)
        self._openings.add(keys[first])
        if base is None:
            tokens = self._rendered(messages, request.tools)
            return RequestPlan(tuple(tokens), None, 0, keys[-1], changed)
        before = base.tokens()
        return RequestPlan((*before, *self._continued(new, before[-1])), base, len(before), keys[-1], changed)

    def _rendered(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the tokens of a conversation that continues no turn."""
        if not self._chat:
            shown = _with_tools(messages, tools) if tools else messages
            (tokens,) = tokens_of_prompts(self._tokenizer, ["\n\n".join(message.content for message in shown)])
            return _nonempty(tokens)
        text = self._template(messages, tools)
        if any(tool["function"]["name"] not in text for tool in tools):
            text = self._template(_with_tools(messages, tools), ())
        (tokens,) = encoded(self._tokenizer, [text])
        return _nonempty(tokens)

    def _template(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> str:
        options = {"tools": tools or None, "day": self.settings.get("template_date", "auto"),
                   "arguments": self.settings["template_arguments"]}  # fmt: skip
        try:
            text = render(self._tokenizer, _plain(messages), **options)
            if all(message.text.strip()[:40] in text for message in messages if message.role == "tool"):
                return text
        except ConfigError:
            if not any(message.role == "tool" for message in messages):
                raise
        return render(self._tokenizer, _plain(map(_as_user, messages)), **options)

    def _continued(self, messages: Sequence[ChatMessage], last: int) -> list[int]:
        """Return the tokens of messages after a turn that ended with the token `last`."""
        day, arguments = self.settings.get("template_date", "auto"), self.settings["template_arguments"]

        def tokens(new: Sequence[ChatMessage]) -> list[int]:
            return continuation(self._tokenizer, _plain(new), last, self._chat, LONGEST_MESSAGE, day, arguments)

        try:
            return tokens(messages)
        except ConfigError:
            if not any(message.role == "tool" for message in messages):
                raise
            return tokens([_as_user(message) for message in messages])

    def _of_completion(self, text: str) -> RequestPlan:
        earlier = [place for place in self._completed if text.startswith(place.text)]
        base = max(earlier, key=lambda place: len(place.text), default=None)
        if base is None:
            (tokens,) = tokens_of_prompts(self._tokenizer, [text])
            return RequestPlan(tuple(_nonempty(tokens)), None, 0, text, False)
        before, new = base.tokens(), text[len(base.text) :]
        if self._text.ends(before[-1]):  # a completion goes on in place of its end, in a sequence of its own
            del before[-1]
            base = None
        more = self._tokenizer(new, add_special_tokens=False, split_special_tokens=True)["input_ids"] if new else []
        return RequestPlan((*before, *more), base, len(before), text, base is not None and not base.last)

    # ------------------------------------------------------------------------------------------------ from the policy

    def record(self, request: TurnRequest, plan: RequestPlan, sampled: Rollout) -> Turn:
        """Add a turn that the policy sampled; return the answer.

        Args:
            request: The request.
            plan: Its tokens.
            sampled: The policy's tokens.
        """
        sampled, text = self._cut(request, plan, sampled)
        calls: tuple[tuple[str, str], ...] = ()
        if request.reads_calls:
            text, calls = split_calls(text, self.settings.get(FORM, ""), request.tools)
        message = ChatMessage("assistant", text, calls)
        sequence = plan.base.sequence if plan.base is not None and plan.base.last else None
        if sequence is None:
            sequence = TurnSequence(plan.tokens)
            self.sequences.append(sequence)
        else:
            sequence.between.append(np.asarray(plan.tokens[plan.before :], np.int32))
        sequence.add(sampled, self.turns)
        place = TurnEnd(sequence, len(sequence.turns), plan.key + text if request.text else "")
        if request.text:
            self._completed.append(place)
        else:
            self._places[_next(plan.key, message)] = place
        self.turns, self.calls, self.forks = self.turns + 1, self.calls + len(calls), self.forks + plan.changed
        reason = "length" if sampled.truncated else "tool_calls" if calls else "stop"
        return Turn(message, reason, len(plan.tokens), len(sampled), self.turns)

    def _cut(self, request: TurnRequest, plan: RequestPlan, sampled: Rollout) -> tuple[Rollout, str]:
        """Return a turn up to the request's limit or stop text, and its text."""
        if request.most_tokens is not None and len(sampled) > request.most_tokens:
            sampled = replace(_first(sampled, request.most_tokens), truncated=True)
        tokens = sampled.tokens.tolist()
        text = self._text.judged(plan.tokens, tokens)
        places = [place for stop in request.stop if (place := text.find(stop)) >= 0]
        if not places:
            return sampled, text
        low, high = 1, len(tokens)  # the most tokens whose text ends before the stop text
        while low < high:
            middle = (low + high + 1) // 2
            inside = len(self._text.judged(plan.tokens, tokens[:middle])) <= min(places)
            low, high = (middle, high) if inside else (low, middle - 1)
        cut = replace(_first(sampled, low), truncated=False)
        return cut, self._text.judged(plan.tokens, tokens[:low])[: min(places)]


def _first(rollout: Rollout, count: int) -> Rollout:
    """Return the first tokens of a rollout."""
    names = ["tokens", "logps", "versions", "sampled", *(["experts"] if rollout.experts is not None else [])]
    parts: dict[str, Any] = {name: getattr(rollout, name)[:count] for name in names}
    if rollout.nucleus is not None:
        sizes, ids = rollout.nucleus
        parts["nucleus"] = (sizes[:count], ids[: int(sizes[:count].sum())])
    return replace(rollout, **parts)


def _size(request: TurnRequest) -> int:
    """Return the bytes of the texts that become tokens."""
    tools = (json.dumps(tool, ensure_ascii=False) for tool in request.tools)
    texts = (request.text, *(message.content for message in request.messages), *tools)
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _plain(messages: Iterable[ChatMessage]) -> list[dict[str, str]]:
    """Return messages as chat templates take them."""
    return [{"role": message.role, "content": message.content} for message in messages]


def _nonempty(tokens: list[int]) -> list[int]:
    if not tokens:
        raise Refused("the conversation has no text; allowed: messages with text")
    return tokens


def _digests(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a digest of the tools with the first 0, 1, 2, ... messages."""
    keys = [hashlib.blake2b(json.dumps(tools, sort_keys=True).encode(), digest_size=16).hexdigest()]
    for message in messages:
        keys.append(_next(keys[-1], message))
    return keys


def _next(key: str, message: ChatMessage) -> str:
    return hashlib.blake2b(f"{key} {message.identity}".encode(), digest_size=16).hexdigest()


def _as_user(message: ChatMessage) -> ChatMessage:
    """Return a message of a tool as one of the user, for a chat template without the role."""
    return (
        ChatMessage("user", f"<tool_response>\n{message.content}\n</tool_response>")
        if message.role == "tool"
        else message
    )


def _with_system(messages: Sequence[ChatMessage], text: str) -> tuple[ChatMessage, ...]:
    """Return messages with a text at the start of their system message, or in one of its own."""
    if messages[0].role == "system":
        return (ChatMessage("system", f"{text}\n\n{messages[0].text}"), *messages[1:])
    return (ChatMessage("system", text), *messages)


def _with_tools(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> tuple[ChatMessage, ...]:
    """Return messages whose system message shows tools."""
    shown = HERMES.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if messages[0].role == "system":
        return (ChatMessage("system", f"{messages[0].text}\n\n{shown}"), *messages[1:])
    return (ChatMessage("system", shown), *messages)
