"""Tokenized rows of prompt and completion, the training data of a supervised warm start.

Prompts are tokenized exactly as in an RL run. A completion ends with the token that ends an answer there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.config.data import PromptFile, TextTask
from scalerl.config.supervised import Supervised
from scalerl.core.errors import ConfigError, short
from scalerl.models.template import render
from scalerl.prompts.dataset import encode_prompt, within_limit
from scalerl.prompts.files import read_objects
from scalerl.prompts.layouts import is_chat

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One row as tokens.

    Example: Demonstration(tokens=(5, 17, 4, 9, 2), prompt_length=3, prompt_hash="9f1c...", where="traces.jsonl line 1")
    """

    tokens: tuple[int, ...]
    """Prompt, completion and the end token."""
    prompt_length: int
    """Number of prompt tokens, which carry no loss."""
    prompt_hash: str
    """Hash of the prompt. Rows with the same prompt are all trained or all held out."""
    where: str
    """File and line."""


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """All rows of a file, split into training and held-out ones.

    Example: Demonstrations(training=(Demonstration(...), ...), held_out=(...), notes=("left out 2 rows ...",))
    """

    training: tuple[Demonstration, ...]
    held_out: tuple[Demonstration, ...]
    notes: tuple[str, ...] = ()


def load_demonstrations(settings: Supervised, tokenizer: Any, stop: Collection[int], limit: int) -> Demonstrations:
    """Read, tokenize and split the rows of a supervised warm start.

    Args:
        settings: The file, system prompt and use of the chat template.
        tokenizer: A transformers tokenizer.
        stop: Ids of the tokens that end an answer of the model.
        limit: Maximum number of tokens of a row.

    Raises:
        ConfigError: The file cannot be read, or a row has neither of the two forms or is too long. The message has
            file and line.
    """
    task = TextTask(kind="sft", system_prompt=settings.system_prompt, chat_template=settings.chat_template)
    end = end_token(tokenizer, task, stop)
    rows: dict[tuple[int, ...], Demonstration] = {}
    count = 0
    for where, values in read_objects(PromptFile(path=settings.data)):
        prompt, completion = conversation(values, where)
        _, start = encode_prompt(tokenizer, prompt, task)
        tokens = (*start, *tokenizer(completion, add_special_tokens=False)["input_ids"], end)
        if not start:
            raise ConfigError(
                f"{where}: the model's tokenizer returns no tokens for the prompt; change or drop the row"
            )
        content = json.dumps(prompt, sort_keys=True).encode()
        name = hashlib.blake2b(content, digest_size=8).hexdigest()
        rows.setdefault(tokens, Demonstration(tokens, len(start), name, where))
        count += 1
    if not rows:
        raise ConfigError(f"{settings.data}: the file has no rows; allowed: one JSON object per line")
    notes = [f"dropped {count - len(rows)} duplicate rows"] if len(rows) < count else []
    advice = "raise --max-tokens as far as the model allows, or leave them out with --too-long drop"
    kept = within_limit(list(rows.values()), limit, settings.too_long, advice)
    if len(kept) < len(rows):
        notes.append(f"left out {len(rows) - len(kept)} rows over {limit} tokens")
    return _divided(kept, settings.held_out, notes)


def conversation(values: dict[str, Any], where: str) -> tuple[str | Messages, str]:
    """Return (prompt, completion) of a row. In `messages`, the last one is the completion, by the assistant.

    Raises:
        ConfigError: The row has neither of the two forms, or its completion is empty.
    """
    if "messages" in values:
        messages = _messages(values["messages"], "messages", where)
        if messages[-1]["role"] != "assistant" or len(messages) < 2:
            raise ConfigError(
                f"{where}: 'messages' has the roles {', '.join(m['role'] for m in messages)}; allowed: at least one "
                "message, and an answer of the assistant as the last one"
            )
        return messages[:-1], _filled(messages[-1]["content"], "messages", where)
    if "prompt" not in values or "completion" not in values:
        raise ConfigError(
            f"{where}: the row has the columns {', '.join(values) or 'none'}; allowed: prompt and completion, or "
            "messages that end with the assistant's answer"
        )
    prompt, completion = values["prompt"], values["completion"]
    asked = _filled(prompt, "prompt", where) if isinstance(prompt, str) else _messages(prompt, "prompt", where)
    if isinstance(completion, list) and len(completion) == 1:  # TRL's form: one message of the assistant
        completion = _messages(completion, "completion", where)[0]["content"]
    return asked, _filled(completion, "completion", where)


def end_token(tokenizer: Any, task: TextTask, stop: Collection[int]) -> int:
    """Return the token that ends an answer; with a chat template, the token that the template writes after an answer.

    Some tokenizers have another end token than their template. A model trained with it would never learn to stop.

    Raises:
        ConfigError: Neither the template nor the tokenizer has a token that ends a sequence of this model.
    """
    if tokenizer.chat_template and task.chat_template != "never":
        mark = "0123456789"
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        after = render(tokenizer, messages, answer=False).rpartition(mark)[2]
        ending = next((i for i in tokenizer(after, add_special_tokens=False)["input_ids"] if i in stop), None)
        if ending is not None:
            return int(ending)
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "model: its tokenizer has no end token (eos_token), so an answer would never end; set one with "
            "tokenizer.eos_token = ... and save it"
        )
    return int(tokenizer.eos_token_id)


def _messages(value: Any, column: str, where: str) -> Messages:
    if not is_chat(value):
        raise ConfigError(
            f"{where}: {column!r} is {short(value)}; allowed: text, or a list of chat messages with role and content"
        )
    return [{name: message[name] for name in ("role", "content")} for message in value]


def _filled(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {column!r} is {short(value)}; allowed: text that is not empty")
    return value


def _divided(rows: Sequence[Demonstration], share: float, notes: list[str]) -> Demonstrations:
    """Hold out a share of the prompts, chosen by their hashes; at least one if there are two or more prompts."""
    prompts = sorted({row.prompt_hash for row in rows})
    count = max(1, round(share * len(prompts))) if share and len(prompts) > 1 else 0
    apart = set(prompts[: min(count, len(prompts) - 1)])
    if share and not apart:
        notes = [*notes, "all rows have the same prompt, so none is held out"]
    return Demonstrations(
        training=tuple(row for row in rows if row.prompt_hash not in apart),
        held_out=tuple(row for row in rows if row.prompt_hash in apart),
        notes=tuple(notes),
    )
