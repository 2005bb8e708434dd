"""The tokenizer's chat template: rendered, and refused where it fails or leaves the question out. It loads no torch."""

from __future__ import annotations

from typing import Any

from scalerl.config.base import ConfigError


def check_template(tokenizer: Any) -> None:
    """Refuse a chat template that fails on a question, or leaves it out.

    Args:
        tokenizer: of transformers, with a chat template.

    Raises:
        ConfigError: the message says what the template raised.
    """
    asked = [render(tokenizer, [{"role": "user", "content": text}]) for text in ("What is 2+2?", "Name a colour.")]
    if asked[0] == asked[1]:
        raise ConfigError(
            f"data.chat_template: the chat template of the model's tokenizer makes {asked[0][:100]!r} of every "
            f"question, so the policy would not see it; {TEMPLATE_ADVICE}"
        )


TEMPLATE_ADVICE = "repair chat_template in the tokenizer's files, or set data.chat_template = 'never' for plain text"


def render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """Return messages as the tokenizer's chat template writes them, with the beginning of an answer.

    Raises:
        ConfigError: the template cannot be used; it is a program of the model's authors, in a sandbox of jinja2.
    """
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # foreign code: TemplateError, UndefinedError, TypeError, ...
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigError(
            f"data.chat_template: the chat template of the model's tokenizer fails on messages of the roles {roles} "
            f"({reason}); {TEMPLATE_ADVICE}"
        ) from None
    return str(text)
