"""Prints text so that a terminal does not break it within words."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

LABEL = re.compile(r"\s*\S+(?: \S+)*\s{2,}|\s*")
"""What the further lines of a paragraph are indented by: words with two spaces after them, or the spaces in front."""


def say(text: str) -> None:
    """Print lines; on a terminal those that are wider than it are wrapped between words, under their label.

    A file or a pipe gets every line whole, so that programs find them.
    """
    print(wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def wrapped(text: str, width: int) -> str:
    """Return a text whose lines are at most so wide, unless one word is wider, such as a path.

    Args:
        text: lines.
        width: columns.
    """
    return "\n".join(_wrapped_line(line, width) for line in text.split("\n"))


def _wrapped_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    label = LABEL.match(line)
    indent = label.end() if label and label.end() <= 2 * width // 5 else 2
    head, body = line[:indent], line[indent:]
    rest = textwrap.wrap(body, max(20, width - indent), break_long_words=False, break_on_hyphens=False)
    return "\n".join([head + rest[0], *(" " * indent + more for more in rest[1:])]) if rest else line
