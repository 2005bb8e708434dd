"""The conversations of one rollout as sequences of tokens: what the policy sampled is never encoded again.

A request whose messages begin with those of an earlier turn continues that turn: only the messages after it are
encoded. If the turn is the last of its sequence, the sequence grows. Otherwise a further sequence begins, whose prompt
has the tokens up to that turn, so that every sampled token carries loss in one sequence only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scalerl.core.errors import ConfigError
from scalerl.models.template import continuation, render
from scalerl.models.text import TokenText, encoded, prompt_tokens
from scalerl.rollouts.agents.protocol import Asked, Refused, Said, Turn, split_calls
from scalerl.rollouts.turns import ends, joined
from scalerl.types import IntArray, Rollout

LONGEST = 1 << 20
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


@dataclass(slots=True, eq=False)
class TurnSequence:
    """A sequence of tokens under way: its own prompt, then turns with the tokens between them."""

    prompt: tuple[int, ...]
    turns: list[Rollout] = field(default_factory=list)
    between: list[IntArray] = field(default_factory=list)
    """Tokens after each turn but the last."""
    numbers: list[int] = field(default_factory=list)
    """Number of each turn among all turns of the rollout, from 0."""

    def tokens(self) -> list[int]:
        """Return all tokens so far."""
        found = list(self.prompt)
        for number, turn in enumerate(self.turns):
            found += turn.tokens.tolist()
            found += self.between[number].tolist() if number < len(self.between) else []
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The end of a turn in a sequence."""

    sequence: TurnSequence
    turns: int
    """Number of turns of the sequence up to it."""
    text: str = ""
    """Prompt and answer of a completion."""

    def tokens(self) -> list[int]:
        """Return the tokens up to it."""
        whole = self.sequence
        return TurnSequence(whole.prompt, whole.turns[: self.turns], whole.between[: self.turns - 1]).tokens()

    @property
    def last(self) -> bool:
        """Whether it is the last turn of its sequence."""
        return self.turns == len(self.sequence.turns)


@dataclass(frozen=True, slots=True)
class Plan:
    """The tokens of a request, and the turn that they continue."""

    tokens: tuple[int, ...]
    base: Place | None
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
        self._places: dict[str, Place] = {}
        """Turns by the digest of the messages up to them."""
        self._completed: list[Place] = []
        """Turns of completions."""
        self._openings: set[str] = set()
        """Digests of the messages before the first turn of a conversation."""
        self.sequences: list[TurnSequence] = []
        self.forks = self.calls = self.turns = 0

    # -------------------------------------------------------------------------------------------------- from messages

    def plan(self, asked: Asked) -> Plan:
        """Return the tokens for a request.

        Raises:
            Refused: The chat template fails, the conversation is too long, or it was changed and the task forbids it.
        """
        plan = self._of_chat(asked) if asked.said else self._of_completion(asked.text)
        if plan.changed and self.settings["changed_history"] == "refuse":
            raise Refused("messages: they differ from those of this conversation before; allowed: its messages as they "
                          "were sent, with new ones after them (data.changed_history = 'refuse')")  # fmt: skip
        if len(plan.tokens) > (most := self.settings["max_prompt_tokens"]):
            raise Refused(f"this conversation has {len(plan.tokens)} tokens; allowed: {most} (data.max_prompt_tokens)",
                          code="context_length_exceeded")  # fmt: skip
        return plan

    def _of_chat(self, asked: Asked) -> Plan:
        system = self.settings["system_prompt"]
        said = _with_system(asked.said, system) if system else asked.said
        keys = _digests(said, asked.tools)
        found = next((n for n in range(len(said), 0, -1) if keys[n] in self._places), 0)
        base, rest = self._places.get(keys[found]), said[found:]
        first = next((n for n, one in enumerate(said) if one.role == "assistant"), len(said))
        changed = first < len(said) and keys[first] in self._openings if base is None else not base.last
        changed |= base is not None and any(one.role == "assistant" for one in rest)
        self._openings.add(keys[first])
        if base is None:
            tokens = self._rendered(said, asked.tools)
            return Plan(tuple(tokens), None, 0, keys[-1], changed)
        before = base.tokens()
        return Plan((*before, *self._continued(rest, before[-1])), base, len(before), keys[-1], changed)

    def _rendered(self, said: Sequence[Said], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Return the tokens of a conversation that continues no turn."""
        if not self._chat:
            shown = _with_tools(said, tools) if tools else said
            (tokens,) = prompt_tokens(self._tokenizer, ["\n\n".join(one.content for one in shown)])
            return _some(tokens)
        text = self._template(said, tools)
        if any(tool["function"]["name"] not in text for tool in tools):
            text = self._template(_with_tools(said, tools), ())
        (tokens,) = encoded(self._tokenizer, [text])
        return _some(tokens)

    def _template(self, said: Sequence[Said], tools: Sequence[dict[str, Any]]) -> str:
        options = {"tools": tools or None, "day": self.settings.get("template_date", "auto"),
                   "arguments": self.settings["template_arguments"]}  # fmt: skip
        messages = [{"role": one.role, "content": one.content} for one in said]
        try:
            text = render(self._tokenizer, messages, **options)
            if all(one.text.strip()[:40] in text for one in said if one.role == "tool"):
                return text
        except ConfigError:
            if not any(one.role == "tool" for one in said):
                raise
        return render(self._tokenizer, [{"role": one.role, "content": one.content} for one in map(_as_user, said)],
                      **options)  # fmt: skip

    def _continued(self, rest: Sequence[Said], last: int) -> list[int]:
        """Return the tokens of messages after a turn that ended with the token `last`."""
        day, arguments = self.settings.get("template_date", "auto"), self.settings["template_arguments"]

        def tokens(said: Sequence[Said]) -> list[int]:
            messages = [{"role": one.role, "content": one.content} for one in said]
            return continuation(self._tokenizer, messages, last, self._chat, LONGEST, day, arguments)

        try:
            return tokens(rest)
        except ConfigError:
            if not any(one.role == "tool" for one in rest):
                raise
            return tokens([_as_user(one) for one in rest])

    def _of_completion(self, text: str) -> Plan:
        earlier = [one for one in self._completed if text.startswith(one.text)]
        base = max(earlier, key=lambda one: len(one.text), default=None)
        if base is None:
            (tokens,) = prompt_tokens(self._tokenizer, [text])
            return Plan(tuple(_some(tokens)), None, 0, text, False)
        before, new = base.tokens(), text[len(base.text) :]
        if self._text.ends(before[-1]):  # a completion goes on in place of its end, in a sequence of its own
            del before[-1]
            base = None
        more = self._tokenizer(new, add_special_tokens=False, split_special_tokens=True)["input_ids"] if new else []
        return Plan((*before, *more), base, len(before), text, base is not None and not base.last)

    # ------------------------------------------------------------------------------------------------ from the policy

    def record(self, asked: Asked, plan: Plan, sampled: Rollout) -> Turn:
        """Add a turn that the policy sampled; return the answer.

        Args:
            asked: The request.
            plan: Its tokens.
            sampled: The policy's tokens.
        """
        sampled, text = self._cut(asked, plan, sampled)
        made: tuple[tuple[str, str], ...] = ()
        if asked.reads_calls:
            text, made = split_calls(text)
        said = Said("assistant", text, made)
        sequence = plan.base.sequence if plan.base is not None and plan.base.last else None
        if sequence is None:
            sequence = TurnSequence(plan.tokens)
            self.sequences.append(sequence)
        else:
            sequence.between.append(np.asarray(plan.tokens[plan.before :], np.int32))
        sequence.turns.append(sampled)
        sequence.numbers.append(self.turns)
        place = Place(sequence, len(sequence.turns), plan.key + text if asked.text else "")
        if asked.text:
            self._completed.append(place)
        else:
            self._places[_next(plan.key, said)] = place
        self.turns, self.calls, self.forks = self.turns + 1, self.calls + len(made), self.forks + plan.changed
        reason = "length" if sampled.truncated else "tool_calls" if made else "stop"
        return Turn(said, reason, len(plan.tokens), len(sampled), self.turns)

    def _cut(self, asked: Asked, plan: Plan, sampled: Rollout) -> tuple[Rollout, str]:
        """Return a turn up to the request's limit or stop text, and its text."""
        if asked.most_tokens is not None and len(sampled) > asked.most_tokens:
            sampled = replace(_first(sampled, asked.most_tokens), truncated=True)
        tokens = sampled.tokens.tolist()
        text = self._text.judged(plan.tokens, tokens)
        found = [place for stop in asked.stop if (place := text.find(stop)) >= 0]
        if not found:
            return sampled, text
        low, high = 1, len(tokens)  # the most tokens whose text ends before the stop text
        while low < high:
            middle = (low + high + 1) // 2
            inside = len(self._text.judged(plan.tokens, tokens[:middle])) <= min(found)
            low, high = (middle, high) if inside else (low, middle - 1)
        kept = replace(_first(sampled, low), truncated=False)
        return kept, self._text.judged(plan.tokens, tokens[:low])[: min(found)]

    def rollouts(self) -> list[dict[str, Any]]:
        """Return the arrays of each sequence, with its prompt, as arguments of `Rollout`."""
        return [
            {**joined(one.turns, one.between), "prompt": one.prompt,
             "turns": tuple(zip(one.numbers, ends(one.turns, one.between), strict=True))}
            for one in self.sequences
        ]  # fmt: skip


def _first(rollout: Rollout, count: int) -> Rollout:
    """Return the first tokens of a rollout."""
    names = ["tokens", "logps", "versions", "sampled", *(["experts"] if rollout.experts is not None else [])]
    parts: dict[str, Any] = {name: getattr(rollout, name)[:count] for name in names}
    if rollout.nucleus is not None:
        sizes, ids = rollout.nucleus
        parts["nucleus"] = (sizes[:count], ids[: int(sizes[:count].sum())])
    return replace(rollout, **parts)


def _some(tokens: list[int]) -> list[int]:
    if not tokens:
        raise Refused("the conversation has no text; allowed: messages with text")
    return tokens


def _digests(said: Sequence[Said], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a digest of the tools with the first 0, 1, 2, ... messages."""
    keys = [hashlib.blake2b(json.dumps(tools, sort_keys=True).encode(), digest_size=16).hexdigest()]
    for one in said:
        keys.append(_next(keys[-1], one))
    return keys


def _next(key: str, said: Said) -> str:
    return hashlib.blake2b(f"{key} {said.identity}".encode(), digest_size=16).hexdigest()


def _as_user(said: Said) -> Said:
    """Return a message of a tool as one of the user, for a chat template without the role."""
    return Said("user", f"<tool_response>\n{said.content}\n</tool_response>") if said.role == "tool" else said


def _with_system(said: Sequence[Said], text: str) -> tuple[Said, ...]:
    """Return messages with a text at the start of their system message, or in one of its own."""
    if said[0].role == "system":
        return (Said("system", f"{text}\n\n{said[0].text}"), *said[1:])
    return (Said("system", text), *said)


def _with_tools(said: Sequence[Said], tools: Sequence[Mapping[str, Any]]) -> tuple[Said, ...]:
    """Return messages whose system message shows tools."""
    shown = HERMES.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if said[0].role == "system":
        return (Said("system", f"{said[0].text}\n\n{shown}"), *said[1:])
    return (Said("system", shown), *said)
