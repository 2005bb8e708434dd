"""Prints lines of text, safe for a terminal, and wraps long lines there between words."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

from scalerl.core.printable import printable

LABEL = re.compile(r"\s*\S+(?: \S+)*\s{2,}|\s*")
"""Prefix that gives the indentation of continuation lines: words followed by two spaces, or leading spaces."""


def say(*lines: str) -> None:
    """Print lines; on a terminal, wrap long lines between words and indent the rest under their label.

    In a file or a pipe, lines are not wrapped, so that programs can parse them. A line break within a line is escaped.
    """
    text = "\n".join(map(printable, lines))
    print(wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text, flush=True)


def wrapped(text: str, width: int) -> str:
    """Wrap the lines of a text; a word that is wider than a line, such as a path, is not broken.

    Args:
        text: Text to wrap.
        width: Width of a line in columns.
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
