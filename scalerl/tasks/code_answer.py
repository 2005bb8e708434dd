"""The program of a completion, and the comparison of its output with the expected output, outside the sandbox."""

from __future__ import annotations

import ast
import re
import warnings
from decimal import Decimal
from typing import Any

from scalerl.core.errors import short
from scalerl.tasks.base import judged_text, without_marks

TAG = r"<[/|｜]?[A-Za-z][^<>\s]{0,40}>"
"""A tag such as </answer> or <|im_end|>, which a model may write next to a block or around a program."""
BLOCK = re.compile(
    rf"^[ \t]*(?:{TAG}[ \t]*)*```[ \t]*([\w+-]*+)[^\n]*+\n(.*?)(?:^[ \t]*```[ \t]*(?:{TAG}[ \t]*)*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
PYTHON = ("python", "python3", "py")


def program_of(completion: str) -> str | None:
    """Return the program of a completion, or None.

    In the text after the thinking, the program is the last block marked as Python; without one, the last unmarked
    block; without blocks, the whole text if it is Python. A block without an end extends to the end of the text.
    """
    text = without_marks(judged_text(completion), TAG)
    blocks = [(match[1].lower(), match[2]) for match in BLOCK.finditer(text)]
    for marks in (PYTHON, ("",)):
        marked = [body for mark, body in blocks if mark in marks]
        if marked:
            return marked[-1]
    return text if not blocks and text.strip() and parsed(text) is not None else None


def with_prompt(completion: str, prompt: Any, entry: str) -> str | None:
    """Return the program if the prompt is the beginning of a function, as in HumanEval.

    A block that defines the function replaces the prompt's version, after the prompt's imports and helpers. Anything
    else is appended to the prompt.

    Args:
        completion: Text of the answer.
        prompt: Prompt of the row, text or chat messages.
        entry: Name of the function.
    """
    before = code_of_prompt(prompt)
    text = without_marks(judged_text(completion), TAG)
    program = program_of(completion)
    if program is not None and entry in defined(program):
        return program if "from __future__" in program else f"{before}\n\n{program}"
    for body in (program, text):
        if before and body is not None and parsed(before + body) is not None:
            return before + body
    return program


def code_of_prompt(prompt: Any) -> str:
    """Return the Python code in a prompt: the whole prompt, its last block, or an empty text."""
    if isinstance(prompt, list):
        prompt = "\n\n".join(str(message.get("content", "")) for message in prompt if isinstance(message, dict))
    if not isinstance(prompt, str):
        return ""
    if parsed(prompt) is not None:
        return prompt
    blocks = [match[2] for match in BLOCK.finditer(prompt) if match[1].lower() in ("", *PYTHON)]
    return blocks[-1] if blocks and parsed(blocks[-1]) is not None else ""


def parsed(source: str) -> ast.Module | None:
    """Return the syntax tree of a program; None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in programs
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defined(source: str) -> set[str]:
    """Return the names that a program defines at its top level: functions, classes, assignments."""
    tree = parsed(source)
    names: set[str] = set()
    for node in tree.body if tree else []:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


NUMBER = re.compile(r"[+-]?(\d{1,800}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)


def difference(got: str, wanted: str) -> str | None:
    """Return the first difference of two outputs; None if they are equal.

    The rule is LiveCodeBench's. White space around the output and around each line is ignored. The numbers of lines
    must be equal, and each pair of lines must have the same text or the same tokens. Two tokens are the same if their
    texts are equal or both are numbers of exactly the same value: 1.0 equals 1.00 and 1e0, but 0.33 is not 0.333.
    """
    got_lines, wanted_lines = ([line.strip() for line in text.strip().split("\n")] for text in (got, wanted))
    for number, (line, expected) in enumerate(zip(got_lines, wanted_lines, strict=False), start=1):
        if line != expected and not _same_tokens(line.split(), expected.split()):
            return f"line {number}: expected {short(expected)}, got {short(line)}"
    if len(got_lines) != len(wanted_lines):
        return f"expected {len(wanted_lines)} lines, got {len(got_lines)}"
    return None


def _same_tokens(got: list[str], wanted: list[str]) -> bool:
    return len(got) == len(wanted) and all(
        one == other or bool(NUMBER.fullmatch(one) and NUMBER.fullmatch(other) and Decimal(one) == Decimal(other))
        for one, other in zip(got, wanted, strict=True)
    )


def value_difference(got: Any, wanted: Any, wrapped: bool = False) -> str | None:
    """Return how a returned value differs from the expected value; None if they are equal.

    1 equals 1.0 and True; NaN equals nothing.

    Args:
        got: Returned value in JSON's types (`as_json` of guest/plain.py).
        wanted: Expected value, from JSON.
        wrapped: Whether an expected [x] also matches x.
    """
    if got == wanted or (wrapped and isinstance(wanted, list) and len(wanted) == 1 and got == wanted[0]):
        return None
    return f"expected {short(wanted)}, got {short(got)}"
