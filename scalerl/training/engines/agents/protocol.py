"""Requests and answers of the OpenAI protocol: what is allowed, and what a clear error says about the rest.

https://platform.openai.com/docs/api-reference/chat and /completions, as of 2026-09.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.core.errors import short
from scalerl.core.files import parse_json
from scalerl.core.printable import encodable
from scalerl.training.rewards.calls import split

MOST_BODY_BYTES = 8 << 20
"""Largest body of a request."""

COMMON = frozenset({
    "model", "stream", "stream_options", "n", "temperature", "top_p", "max_tokens", "stop", "seed", "user", "metadata",
    "frequency_penalty", "presence_penalty", "extra_body",
})  # fmt: skip
CHAT = COMMON | {
    "messages", "tools", "tool_choice", "parallel_tool_calls", "max_completion_tokens", "response_format", "logprobs",
    "store", "service_tier", "reasoning_effort", "verbosity", "prompt_cache_key", "safety_identifier",
}  # fmt: skip
COMPLETION = COMMON | {"prompt", "echo", "best_of", "suffix", "logprobs"}
"""Parameters that are known. The recipe decides how tokens are drawn, so temperature, top_p and seed have no effect."""

ONLY: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "logprobs": (None, False, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
}
"""Parameters of which only some values are possible."""

CHAT_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
         "function": "tool"}  # fmt: skip
"""Roles, and those under which the chat template gets their messages."""


class Refused(Exception):
    """A request that cannot be answered; the message goes to the program."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_value") -> None:
        """Store the message, the HTTP status and OpenAI's code."""
        super().__init__(message)
        self.status, self.code = status, code

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's form of an error."""
        kind = "authentication_error" if self.status == 401 else "invalid_request_error"
        return {"error": {"message": encodable(str(self)), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    Example: ChatMessage("assistant", "I look it up.", (("look_up", '{"city": "Rome"}'),))
    """

    role: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    """Calls of tools: (name, arguments as canonical JSON)."""

    @property
    def content(self) -> str:
        """Its text with its calls as Hermes writes them, for a chat template."""
        tool_calls = [f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {text}}}\n</tool_call>'
                for name, text in self.calls]  # fmt: skip
        return "\n".join([*([self.text] if self.text or not tool_calls else []), *tool_calls])

    @property
    def identity(self) -> str:
        """Text that is equal for messages that say the same; white space at the ends does not count."""
        return json.dumps([self.role, self.text.strip(), self.calls])


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A request for a turn of the policy."""

    messages: tuple[ChatMessage, ...]
    """Messages of a chat; empty for a completion."""
    text: str
    """Prompt of a completion."""
    tools: tuple[dict[str, Any], ...]
    """Schemas of tools."""
    stop: tuple[str, ...]
    """Texts before which the turn is cut."""
    most_tokens: int | None
    """Number of tokens after which it is cut."""
    streamed: bool
    usage: bool
    """Whether the stream ends with the numbers of tokens."""
    reads_calls: bool
    """Whether calls of tools are taken out of the text."""


def read_request(body: bytes, parameters: frozenset[str], model: str) -> TurnRequest:
    """Return a request.

    Args:
        body: Body of the request.
        parameters: CHAT or COMPLETION.
        model: Name of the policy.

    Raises:
        Refused: It cannot be answered.
    """
    try:
        values = parse_json(body)
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise Refused(f"the body is {short(values)}; allowed: a JSON object")
    if unknown := sorted(set(values) - parameters):
        raise Refused(f"unknown parameters: {', '.join(map(short, unknown))}; allowed: {', '.join(sorted(parameters))}",
                      code="unknown_parameter")  # fmt: skip
    if (got := values.get("model")) != model:
        raise Refused(f"model: got {short(got)}; allowed: {model!r} (data.model)", 404, "model_not_found")
    for name, allowed in ONLY.items():
        if values.get(name) not in allowed:
            raise Refused(f"{name}: got {short(values[name])}; allowed: {_options(allowed)}", code="unsupported_value")
    for name, kind, what in (("stream", bool, "true or false"), ("stream_options", dict, "an object")):
        if (value := values.get(name)) is not None and not isinstance(value, kind):
            raise Refused(f"{name}: got {short(value)}; allowed: {what}")
    tools = _tools(values.get("tools"))
    chat = parameters is CHAT
    return TurnRequest(
        messages=_messages(values.get("messages")) if chat else (),
        text="" if chat else _prompt(values.get("prompt")),
        tools=tools,
        stop=_stops(values.get("stop")),
        most_tokens=_count(values, "max_completion_tokens") or _count(values, "max_tokens"),
        streamed=bool(values.get("stream")),
        usage=bool((values.get("stream_options") or {}).get("include_usage")),
        reads_calls=bool(tools) and values.get("tool_choice") != "none",
    )


def _options(allowed: Sequence[Any]) -> str:
    return " or ".join(json.dumps(value) for value in allowed if value is not None)


def _count(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise Refused(f"{name}: got {short(value)}; allowed: a number of tokens, at least 1")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops) or len(stops) > 16:
        raise Refused(f"stop: got {short(value)}; allowed: a text, or a list of at most 16 texts")
    return tuple(text for text in stops if text)


def _prompt(value: Any) -> str:
    text = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(text, str) or not text:
        raise Refused(f"prompt: got {short(value)}; allowed: a text, or a list with one text")
    return encodable(text)


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    tools = value or []
    for tool in tools if isinstance(tools, list) else [None]:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(f'tools: got {short(tool if isinstance(tools, list) else value)}; allowed: a list of '
                          'objects with type "function" and a `function` with `name`')  # fmt: skip
    return tuple(tools)


def _messages(value: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not value:
        raise Refused(f"messages: got {short(value)}; allowed: a list of messages")
    messages = tuple(_message(message, number) for number, message in enumerate(value))
    if messages[-1].role == "assistant":
        raise Refused("messages: the last one is the assistant's; allowed: one of a user or tool")
    return messages


def _message(value: Any, number: int) -> ChatMessage:
    role = CHAT_ROLES.get(str(value.get("role"))) if isinstance(value, dict) else None
    if role is None:
        raise Refused(
            f"messages[{number}]: got {short(value)}; allowed: objects with a role of {', '.join(CHAT_ROLES)}"
        )
    calls_made, calls_of = [], value.get("tool_calls") or []
    for call in calls_of if isinstance(calls_of, list) else [calls_of]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(f"messages[{number}].tool_calls: got {short(call)}; allowed: calls of functions")
        calls_made.append((encodable(function["name"]), _canonical(function.get("arguments"))))
    return ChatMessage(role, _text(value.get("content"), number), tuple(calls_made))


def _text(content: Any, number: int) -> str:
    if content is None or isinstance(content, str):
        return encodable(content or "")
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise Refused(f"messages[{number}].content: got a part of the type {short(kind)}; allowed: text, because "
                          "the policy reads neither images, audio nor files", code="unsupported_value")  # fmt: skip
        texts.append(encodable(part["text"]))
    return "".join(texts)


def _canonical(arguments: Any) -> str:
    """Return the arguments of a call as JSON that does not depend on spaces; text that is not JSON as a JSON text."""
    try:
        value = parse_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        value = arguments
    return encodable(json.dumps({} if value is None else value, ensure_ascii=False))


def split_calls(
    text: str, form: str = "", tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return a turn of the policy as its text and the calls of tools in it; with a malformed call, everything is text.

    The forms are those of environments (training/rewards/calls.py).

    Args:
        text: Text of the turn.
        form: Form of the chat template; empty: any.
        tools: Schemas of the request.
    """
    rest, found = split(text, form, tools)
    if not all(isinstance(made.name, str) and made.name and isinstance(made.arguments, dict) for made in found):
        return text, ()
    return (rest if found else text), tuple((made.name, _canonical(made.arguments)) for made in found)


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer to a program.

    Example: Turn(ChatMessage("assistant", "Rome."), "stop", prompt_tokens=31, tokens=3)
    """

    message: ChatMessage
    reason: str
    """OpenAI's finish_reason: stop, length or tool_calls."""
    prompt_tokens: int
    tokens: int
    number: int
    """Number of the turn in its rollout, for ids."""

    @property
    def usage(self) -> dict[str, int]:
        """Numbers of tokens."""
        total = self.prompt_tokens + self.tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total}

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        stem = "cmpl" if kind == "text_completion" else "chatcmpl"
        # equal turns give equal answers, so there is no time of day
        return {"id": f"{stem}-{self.number}", "object": kind, "created": 0, "model": model}

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {"id": f"call_{self.number}_{place}", "type": "function", "function": {"name": name, "arguments": text}}
            for place, (name, text) in enumerate(self.message.calls)
        ]

    def chat(self, model: str) -> dict[str, Any]:
        """Return the answer to a chat."""
        message: dict[str, Any] = {"role": "assistant", "content": self.message.text or None, "refusal": None}
        if self.message.calls:
            message["tool_calls"] = self._calls()
        else:
            message["content"] = self.message.text
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.reason}
        return {**self._head("chat.completion", model), "choices": [choice], "usage": self.usage}

    def completion(self, model: str) -> dict[str, Any]:
        """Return the answer to a completion."""
        choice = {"index": 0, "text": self.message.text, "logprobs": None, "finish_reason": self.reason}
        return {**self._head("text_completion", model), "choices": [choice], "usage": self.usage}

    def chunks(self, model: str, chat: bool, usage: bool) -> Iterator[str]:
        """Yield the answer as server-sent events."""
        head = self._head("chat.completion.chunk" if chat else "text_completion", model)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}] if chat else []
        if self.message.text:
            deltas.append({"content": self.message.text})
        if self.message.calls:
            deltas.append({"tool_calls": [{"index": place, **call} for place, call in enumerate(self._calls())]})
        for delta in [*deltas, {}]:
            part = {"delta": delta} if chat else {"text": delta.get("content", "")}
            reason = None if delta else self.reason
            yield _event({**head, "choices": [{"index": 0, **part, "logprobs": None, "finish_reason": reason}]})
        if usage:
            yield _event({**head, "choices": [], "usage": self.usage})
        yield "data: [DONE]\n\n"


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
