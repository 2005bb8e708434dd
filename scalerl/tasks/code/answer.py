"""Extraction of the program from a completion."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from scalerl.tasks.base import judged_text

BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+-]*+)[^\n]*+\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
PYTHON = ("python", "python3", "py")


def program_of(completion: str) -> str | None:
    """Return the program of a completion, or None.

    In the text after the thinking, the program is the last block marked as Python; without one, the last unmarked
    block; without blocks, the whole text if it is Python. A block without an end extends to the end of the text.
    """
    text = judged_text(completion)
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
    text = judged_text(completion)
    program = program_of(completion)
    if program is not None and entry in defined(program):
        return program if "from __future__" in program else f"{before}\n\n{program}"
    if before:
        continuations = [before + body for body in (program, text) if body is not None]
        for whole in continuations:
            if parsed(whole) is not None:
                return whole
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
