"""Prints lines of text, safe for a terminal, and wraps long lines there between words."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

from scalerl.core.printable import printable

LABEL_PREFIX = re.compile(r"\s*\S+(?: \S+)*\s{2,}|\s*")
"""Prefix that gives the indentation of continuation lines: words followed by two spaces, or leading spaces."""


def print_lines(*lines: str) -> None:
    """Print lines; on a terminal, wrap long lines between words and indent the rest under their label.

    In a file or a pipe, lines are not wrapped, so that programs can parse them. A line break within a line is escaped.
    """
    text = "\n".join(map(printable, lines))
    print(wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text, flush=True)


def wrapped(text: str, width: int) -> str:
    """Wrap the lines of a text to `width` characters; a longer word, such as a path, is not broken."""
    return "\n".join(_wrapped_line(line, width) for line in text.split("\n"))


def _wrapped_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    label = LABEL_PREFIX.match(line)
    indent = label.end() if label and label.end() <= 2 * width // 5 else 2
    head, body = line[:indent], line[indent:]
    lines = textwrap.wrap(body, max(20, width - indent), break_long_words=False, break_on_hyphens=False)
    return "\n".join([head + lines[0], *(" " * indent + more for more in lines[1:])]) if lines else line
