"""Rendering and check of the tokenizer's chat template. torch is not imported."""

from __future__ import annotations

from typing import Any

from scalerl.config.base import ConfigError


def check_template(tokenizer: Any) -> None:
    """Refuse a chat template that fails on a question or omits it.

    Args:
        tokenizer: A transformers tokenizer with a chat template.

    Raises:
        ConfigError: The template fails or omits the question; the message contains the error of the template.
    """
    asked = [render(tokenizer, [{"role": "user", "content": text}]) for text in ("What is 2+2?", "Name a color.")]
    if asked[0] == asked[1]:
        raise ConfigError(
            f"data.chat_template: the chat template of the model's tokenizer renders every question as "
            f"{asked[0][:100]!r}, so the policy would not see it; {TEMPLATE_ADVICE}"
        )


TEMPLATE_ADVICE = "repair chat_template in the tokenizer's files, or set data.chat_template = 'never' for plain text"


def render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """Render messages with the tokenizer's chat template, followed by the start of an answer.

    Raises:
        ConfigError: The template, a program by the model's authors that runs in jinja2's sandbox, fails.
    """
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # the template's code may raise TemplateError, UndefinedError, TypeError, ...
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigError(
            f"data.chat_template: the chat template of the model's tokenizer fails on messages of the roles {roles} "
            f"({reason}); {TEMPLATE_ADVICE}"
        ) from None
    return str(text)
