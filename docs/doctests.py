"""An extension of the reference pages: doctest examples in docstrings are rendered as code, without doctest's flags."""

from __future__ import annotations

import re
from typing import Any

import griffe

FLAG = re.compile(r" *# doctest: .*$", flags=re.MULTILINE)
EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:\1[^\s].*\n?)*", flags=re.MULTILINE)
"""A line with a prompt and the lines below it, down to an empty one or one with less indentation."""


def fenced(text: str) -> str:
    """Return a docstring in which each example stands in a fence; Markdown takes `>>>` for quotations."""

    def replaced(match: re.Match[str]) -> str:
        return f"{match[1]}```pycon\n{FLAG.sub('', match[0]).rstrip()}\n{match[1]}```\n"

    return EXAMPLE.sub(replaced, text)


class Doctests(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that griffe has read."""
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
