"""Rendering and check of the tokenizer's chat template. torch is not imported."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError, raising, short
from scalerl.core.limits import TEMPLATE_S

MOST_CHARACTERS = 1_000_000
"""Maximum length of a rendered text, characters, in addition to ten times the length of its messages."""

LONGEST_TOKEN = 128
"""Characters of the longest tokens, which are spaces. A message of megabytes would take seconds to encode."""

CLOCK_FUNCTION = "strftime_now"
"""Function of templates that formats the present time: `strftime_now("%d %B %Y")`, in Llama 3.2, SmolLM3, GPT-OSS."""

_DIRECTIVE = re.compile(r"%[-_0^#]?[a-zA-Z]")

_MACRO = """{% macro strftime_now(format) %}{% set made = namespace(text=format) %}{% for name, text in PAIRS %}\
{% set made.text = made.text.replace(name, text) %}{% endfor %}{{ made.text }}{% endmacro %}
"""

MEMORY = 2 << 30
"""Bytes that a template may allocate when it is checked."""


class TimeLimit(BaseException):
    """A template exceeded its time limit. Not an Exception, so that the template cannot catch it."""


def check_template(tokenizer: Any) -> None:
    """Refuse a chat template that fails on a question, omits it, or does not end.

    Raises:
        ConfigError: The template fails or omits the question; the message contains the error of the template.
    """
    with _memory_limit(MEMORY):
        try:
            rendered = [
                render(tokenizer, [{"role": "user", "content": text}]) for text in ("What is 2+2?", "Name a color.")
            ]
        except MemoryError:
            raise ConfigError(
                f"data.chat_template: the chat template of the model's tokenizer takes more than {MEMORY >> 30} GiB "
                f"for a short question; {TEMPLATE_ADVICE}"
            ) from None
    if rendered[0] == rendered[1]:
        raise ConfigError(
            f"data.chat_template: the chat template of the model's tokenizer renders every question as "
            f"{rendered[0][:100]!r}, so the policy would not see the question; {TEMPLATE_ADVICE}"
        )


def template_notes(
    tokenizer: Any, arguments: Mapping[str, Any], system: str = "", day: str = "", stop: Sequence[int] = ()
) -> list[str]:
    """Return notes on what a template does that a user may not expect.

    It does not begin the answer, ends turns with a token that does not end a completion, prints today's date, or
    ignores an argument.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        arguments: `data.template_arguments`.
        system: `data.system_prompt`.
        day: `data.template_date`.
        stop: Ids of the tokens that end a completion; empty: not known.

    Raises:
        ConfigError: The template fails on a question, omits it, does not end, or leaves out the system message that
            the configuration asks for.
    """
    check_template(tokenizer)
    question, notes = [{"role": "user", "content": "What is 2+2?"}], []
    text = render(tokenizer, question, arguments=arguments)
    if text == render(tokenizer, question, arguments=arguments, prompted=False):
        notes.append(
            "data.chat_template: the chat template of the model's tokenizer has no generation prompt: nothing in "
            "the prompt begins the answer, so the policy may go on as the user; repair chat_template in the "
            "tokenizer's files"
        )
    if system and "Mark0Mark" not in render(tokenizer, [{"role": "system", "content": "Mark0Mark"}, *question]):
        raise ConfigError(
            "data.system_prompt: the chat template of the model's tokenizer leaves out system messages, so that "
            f"{short(system)} would have no effect; put the text into the prompts, or {TEMPLATE_ADVICE}"
        )
    notes += _end_notes(tokenizer, arguments, stop)
    if day == "auto" and prints_date(tokenizer):
        notes.append("data.template_date: the chat template of the model's tokenizer prints the date, which is today's")
    template = str(tokenizer.get_chat_template())
    unknown = [name for name in arguments if name not in template]
    if unknown:
        notes.append(f"data.template_arguments: the chat template of the model's tokenizer has no {', '.join(unknown)}")
    return notes


def _end_notes(tokenizer: Any, arguments: Mapping[str, Any], stop: Sequence[int]) -> list[str]:
    """Return a note on a template whose end of a turn is no end token: what follows the answer in a conversation."""
    try:
        after = _between(tokenizer, ("user",), arguments=arguments)[0]
    except ConfigError:  # a template may be for one question only, or its answers have another form
        return []
    tokens = list(tokenizer(after, add_special_tokens=False)["input_ids"])
    texts = [str(tokenizer.decode([token], skip_special_tokens=False)) for token in tokens]
    first = next((at for at, text in enumerate(texts) if text.strip()), None)
    if not stop or first is None or any(token in stop for token in tokens[: first + 1]):
        return []
    ends = ", ".join(repr(tokenizer.convert_ids_to_tokens(token)) for token in stop)
    return [
        "data.chat_template: the chat template of the model's tokenizer ends an answer with "
        f"{after.strip()[:40]!r}, which does not begin with an end token of the model ({ends}), so an answer that ends "
        "so goes on to the length limit; add its id to eos_token_id in generation_config.json, or use the tokenizer "
        "that belongs to the model"
    ]


def check_tools(tokenizer: Any, tools: Sequence[Mapping[str, Any]], chat: bool) -> None:
    """Refuse a chat template that does not show tools.

    Args:
        tokenizer: A transformers tokenizer.
        tools: Schemas of the tools.
        chat: Whether the chat template is used.

    Raises:
        ConfigError: There is no template, or its text has not the names of all tools.
    """
    question, names = [{"role": "user", "content": "What is 2+2?"}], [tool["function"]["name"] for tool in tools]
    text = render(tokenizer, question, tools=tools) if chat and tokenizer.chat_template else ""
    if missing := [name for name in names if name not in text]:
        raise ConfigError(
            f"data.function: the task has the tools {', '.join(names)}, and the prompts do not show {missing[0]}, "
            "because the model's tokenizer has no chat template with tools or data.chat_template is 'never'; allowed: "
            "a model with such a template, or a class with `reply` and no `tools`"
        )


TEMPLATE_ADVICE = "repair chat_template in the tokenizer's files, or set data.chat_template = 'never' for plain text"


def prints_date(tokenizer: Any) -> bool:
    """Return whether the tokenizer's chat template asks for today's date."""
    return CLOCK_FUNCTION in str(tokenizer.chat_template or "")


def _with_date(template: str, day: str) -> str:
    """Return a chat template in which `strftime_now` formats a given date.

    A macro of this name hides transformers' function, which reads the clock. transformers strips the line break after
    it, so that the template itself is unchanged.
    """
    moment = datetime.fromisoformat(day)
    names = sorted({name for name in _DIRECTIVE.findall(template) if name[-1] != "s"})  # %s is a time zone's
    pairs = [("%%", "\0"), *((name, moment.strftime(name)) for name in names), ("\0", "%")]
    return _MACRO.replace("PAIRS", json.dumps(pairs)) + template


def render(
    tokenizer: Any,
    messages: list[dict[str, str]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    day: str = "auto",
    arguments: Mapping[str, Any] | None = None,
    prompted: bool = True,
) -> str:
    """Render messages with the tokenizer's chat template; a last message of the assistant stays open.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        messages: Messages with role and content.
        tools: Schemas of tools.
        day: Date for a template that asks for it, as 2025-01-31; auto: today's.
        arguments: Arguments of the template, such as enable_thinking.
        prompted: Whether the beginning of the assistant's next message follows.

    Raises:
        ConfigError: The template, a program by the model's authors that runs in jinja2's sandbox, fails, does not end
            within `TEMPLATE_S` (in the main thread), or returns a text that is far longer than its messages.
    """

    def problem(error: Exception) -> str:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        roles = ", ".join(message["role"] for message in messages)
        return (
            f"data.chat_template: the chat template of the model's tokenizer fails on messages of the roles {roles} "
            f"({reason}); {TEMPLATE_ADVICE}"
        )

    with raising(ConfigError, problem):
        with _time_limit(TEMPLATE_S):
            template = None
            if day != "auto" and prints_date(tokenizer):
                template = _with_date(tokenizer.get_chat_template(None, tools or None), day)
            opened = prompted and messages[-1]["role"] == "assistant"
            rendered = tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=prompted and not opened,
                continue_final_message=opened,
                **(arguments or {}),
            )
        text = str(rendered)
        if len(text) > MOST_CHARACTERS + 10 * sum(len(message["content"]) for message in messages):
            raise ValueError(f"it makes a text of {len(text)} characters")
    return text


def continuation(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    last: int,
    chat: bool,
    limit: int,
    day: str = "auto",
    arguments: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the tokens between a completion and the next one: the template's, and those of messages in between.

    A message is encoded apart from the template, as plain text: special tokens in it do not become control tokens. The
    template is rendered with a mark for the completion, so that the tokens of the completion stay as sampled.

    Args:
        tokenizer: A transformers tokenizer.
        messages: Messages with role and content.
        last: Last token of the completion, which the template may repeat.
        chat: Whether to use the chat template, if the tokenizer has one.
        limit: Most tokens to return; messages are cut at the end, and the last ones left out if there is no room.
        day: Date for the template, as in `render`.
        arguments: Arguments of the template, as in `render`.

    Raises:
        ConfigError: The template fails on the messages, changes them, or leaves no room for the first of them.
    """
    roles = [message["role"] for message in messages[:limit]]
    encoded = _around(tokenizer, roles, chat, day, arguments)
    while (room := limit - sum(map(len, encoded))) < 1 and len(roles) > 1:
        costs = accumulate(len(part) for part in (encoded[0], encoded[-1], *encoded[1:-1]))  # of 0, 1, 2, ... messages
        fit = sum(cost < limit for cost in costs) - 1
        roles = roles[: max(1, min(fit, len(roles) - 1))]  # a template may write the first or last one differently
        encoded = _around(tokenizer, roles, chat, day, arguments)
    if room < 1:
        raise ConfigError(
            f"data.reply_tokens: got {limit}, and the chat template alone takes {limit - room} tokens around a reply "
            f"of the roles {', '.join(roles)}; allowed: more"
        )
    tokens = encoded[0][1:] if encoded[0][:1] == [last] else encoded[0]
    for message, after in zip(messages, encoded[1:], strict=False):
        content = message["content"][: LONGEST_TOKEN * room]
        plain = tokenizer(content, add_special_tokens=False, split_special_tokens=True)["input_ids"][:room]
        room -= len(plain)
        tokens = [*tokens, *plain, *after]
    return tokens


def _around(
    tokenizer: Any, roles: Sequence[str], chat: bool, day: str, arguments: Mapping[str, Any] | None
) -> list[list[int]]:
    """Return the template's tokens after a completion, and after each of the messages that follow it."""
    shown = chat and tokenizer.chat_template
    parts = _between(tokenizer, roles, day, arguments) if shown else [""] * (len(roles) + 1)
    return [list(tokenizer(part, add_special_tokens=False)["input_ids"]) if part else [] for part in parts]


def _between(
    tokenizer: Any, roles: Sequence[str], day: str = "auto", arguments: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the template's text after a completion, and after each of the messages that follow it."""
    marks = [f"Mark{number}Mark" for number in range(len(roles) + 1)]
    messages = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": marks[0]}]
    messages += [{"role": role, "content": mark} for role, mark in zip(roles, marks[1:], strict=True)]
    parts, tail = [], render(tokenizer, messages, day=day, arguments=arguments)
    for mark in marks:
        before, separator, tail = tail.partition(mark)
        if not separator or mark in tail:
            raise ConfigError(
                f"data.chat_template: the chat template of the model's tokenizer omits or repeats messages of roles "
                f"assistant, {', '.join(roles)}, so that turns cannot be continued; {TEMPLATE_ADVICE}"
            )
        parts.append(before)
    return [*parts[1:], tail]


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after a number of seconds.

    The limit only works in the main thread, and does not interrupt code that never returns to the interpreter.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        raise TimeLimit(f"took longer than {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, end)
    # again and again, because Python drops an exception that is raised while it collects garbage
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    except TimeLimit as error:
        raise TimeoutError(str(error)) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def _memory_limit(allowed: int) -> Iterator[None]:
    """Limit this process to its present size plus `allowed` bytes, so that allocations fail before the memory is full.

    The limit applies to all threads, so use it only briefly and while no other thread works.
    """
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    ceiling = min(used + allowed, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY), 1 << 62)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
