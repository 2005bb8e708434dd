"""Text from elsewhere (a program, a model, a data set, a file), made safe for a terminal."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal, end a line, change the direction of text, or cannot be encoded."""


def printable(text: str) -> str:
    r"""Return a text as one line, with escapes in place of the characters that are unsafe on a terminal.

    Example: printable("wrong\npass\x1b[2J") == r"wrong\npass\x1b[2J"
    """
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def encodable(text: str) -> str:
    r"""Return a text with U+FFFD in place of lone surrogates, which no tokenizer and no file takes.

    JSON can have them: an environment may echo "\ud800" from the arguments of a call.
    """
    return str.encode(text, "utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def indented(text: str) -> str:
    """Return a message with its line breaks. All lines but the first are indented, so that none can be forged."""
    return "\n  ".join(map(printable, text.split("\n")))


def escape_unknown(stream: Any) -> None:
    """Let a text stream escape the characters that its encoding lacks; others, such as those of notebooks, stay."""
    if hasattr(stream, "reconfigure") and error_handler(stream) != stream.errors:
        with suppress(OSError):  # its descriptor was replaced
            stream.reconfigure(errors=error_handler(stream))


def error_handler(stream: Any) -> str:
    """Return the error handler of a stream, but not one that fails.

    In the C locale, Python's own choice is surrogateescape, which fails for other characters, such as ±.
    """
    return "backslashreplace" if stream.errors in ("strict", "surrogateescape") else str(stream.errors)
