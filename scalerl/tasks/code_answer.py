"""The program of a completion, and the comparison of its output with the expected output, outside the sandbox."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection
from decimal import Decimal
from textwrap import dedent
from typing import Any, NamedTuple

from scalerl.core.errors import short
from scalerl.tasks.answers import tagged
from scalerl.tasks.base import judged_text, without_marks

TAG = r"<[/|｜]?[A-Za-z][^<>\s]{0,40}>"
"""A tag such as </answer> or <|im_end|>, which a model may write next to a block or around a program."""
PYTHON = ("python", "python3", "py")
LANGUAGES = {*PYTHON, "", "text", "bash", "sh", "cpp", "c", "java", "json", "output", "console", "javascript", "js"}
FENCE = re.compile(rf"(?P<indent>[ \t]*)(?:{TAG}[ \t]*)*(?P<fence>`{{3,}}|~{{3,}})[ \t]*(?P<mark>[\w+-]*)(?P<rest>.*)")
READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0|/dev/stdin|\bfileinput\b|\bos\.read\s*\(\s*0")
"""A program that reads its input."""


class Block(NamedTuple):
    """A code block of a text: the word after its fence, in lower case, and its lines."""

    mark: str
    body: str


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a text in their order, without the indentation of their fences.

    Fences are three or more backticks or tildes; the end has at least as many, and text may follow it. A block without
    an end extends to the next fence with the name of a language, or to the end of the text.
    """
    found, lines, opened = list[Block](), list[str](), None
    for line in text.splitlines(keepends=True):
        fence = FENCE.match(line) if "```" in line or "~~~" in line else None
        if opened is None:
            if fence:
                opened, lines = fence, []
            continue
        same = fence and fence["fence"][0] == opened["fence"][0] and len(fence["fence"]) >= len(opened["fence"])
        if not fence or not same:
            lines.append(line.removeprefix(opened["indent"]))
            continue
        found.append(Block(opened["mark"].lower(), "".join(lines)))
        starts_another = fence["mark"].lower() in LANGUAGES - {""} and not fence["rest"].strip()
        opened, lines = (fence, []) if starts_another else (None, [])
    if opened is not None:
        found.append(Block(opened["mark"].lower(), "".join(lines)))
    return found


def program_of(completion: str, names: Collection[str] = (), reads: bool = False) -> str | None:
    """Return the program of a completion, or None.

    In the text after the thinking, the program is the last block that defines what the tests call, or reads the input.
    Without one, it is the last block marked as Python, or the last unmarked one that is a program; without blocks, the
    content of a tag such as <answer>, an indented block, or the whole text, if it is Python.

    Args:
        completion: Text of the answer.
        names: Functions or classes that the tests use.
        reads: Whether the tests give an input.
    """
    text = without_marks(judged_text(completion).replace("\r\n", "\n"), TAG)
    inside = tagged(judged_text(completion).replace("\r\n", "\n"))
    every = blocks(inside or "") or blocks(text)
    usable = [block for block in every if block.mark in ("", *PYTHON)]
    for body in (block.body for block in reversed(usable)):
        if (names and names_in(body) >= set(names)) or (reads and READS.search(body) and parsed(body) is not None):
            return body
    marked = [block.body for block in usable if block.mark]
    programs = [block.body for block in usable if is_program(block.body)]
    for candidates in (marked, programs, [block.body for block in usable]):
        if candidates:
            return candidates[-1]
    if every:
        return None
    for whole in (inside, text, indented(text)):
        if whole and whole.strip() and parsed(whole) is not None:
            return whole
    return None


def names_in(source: str) -> set[str]:
    """Return the names that a program defines at its top level, and the methods of its class Solution."""
    names, tree = defined(source), parsed(source)
    for node in tree.body if tree else []:
        if isinstance(node, ast.ClassDef) and node.name == "Solution":
            names |= {method.name for method in node.body if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names


def is_program(source: str) -> bool:
    """Return whether a text is Python that does something; output such as `7` or `[1, 2]` does not."""
    tree = parsed(source)
    quiet = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.Compare)
    return tree is not None and any(
        not (isinstance(node, ast.Expr) and isinstance(node.value, quiet)) for node in tree.body
    )


def indented(text: str) -> str | None:
    """Return the last run of lines that are indented by four spaces or a tab, as in Markdown without fences."""
    runs = re.findall(r"(?:^(?: {4}|\t).*\n?|(?<=\n)[ \t]*\n)+", text, re.MULTILINE)
    programs = [run for run in map(dedent, runs) if run.strip() and is_program(run)]
    return programs[-1] if programs else None


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
    program = program_of(completion, [entry])
    if program is not None and entry in defined(program):
        return program if "from __future__" in program else f"{before}\n\n{program}"
    for body in (text, program):
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
    bodies = [block.body for block in blocks(prompt) if block.mark in ("", *PYTHON)]
    return bodies[-1] if bodies and parsed(bodies[-1]) is not None else ""


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


ROUNDING = 1e-15
"""Largest relative error of a number that a program printed with all digits of a float: 0.30000000000000004 is 0.3."""
ALL_DIGITS = 16
"""Significant digits of such a number."""


def same_number(got: str, wanted: str, tolerance: float = 0.0) -> bool:
    """Return whether two texts are numbers of the same value, up to a tolerance or the rounding of a float.

    Args:
        got: Text of the program.
        wanted: Expected text.
        tolerance: Largest difference, absolute, or relative to the expected value if that is above 1.
    """
    if not (NUMBER.fullmatch(got) and NUMBER.fullmatch(wanted)):
        return False
    one, other = Decimal(got), Decimal(wanted)
    if one == other:
        return True
    if not tolerance and "." in got and len(re.sub(r"[eE].*|\D", "", got).lstrip("0")) >= ALL_DIGITS:
        return abs(one - other) <= Decimal(ROUNDING) * abs(other)
    return bool(tolerance) and abs(one - other) <= Decimal(tolerance) * max(Decimal(1), abs(other))


def difference(got: str, wanted: str, tolerance: float = 0.0) -> str | None:
    """Return the first difference of two outputs; None if they are equal.

    The rule is LiveCodeBench's. White space around the output and around each line is ignored. The numbers of lines
    must be equal, and each pair of lines must have the same text or the same tokens. Two tokens are the same if their
    texts are equal or both are numbers of the same value (`same_number`): 1.0 equals 1.00, but 0.33 is not 0.333.
    """
    got_lines, wanted_lines = ([line.strip() for line in text.strip().split("\n")] for text in (got, wanted))
    for number, (line, expected) in enumerate(zip(got_lines, wanted_lines, strict=False), start=1):
        if line != expected and not _same_tokens(line.split(), expected.split(), tolerance):
            return f"line {number}: expected {short(expected)}, got {short(line)}"
    if len(got_lines) != len(wanted_lines):
        return f"expected {len(wanted_lines)} lines, got {len(got_lines)}"
    return None


def _same_tokens(got: list[str], wanted: list[str], tolerance: float) -> bool:
    return len(got) == len(wanted) and all(
        one == other or same_number(one, other, tolerance) for one, other in zip(got, wanted, strict=True)
    )


def value_difference(got: Any, wanted: Any, wrapped: bool = False, tolerance: float = 0.0) -> str | None:
    """Return how a returned value differs from the expected value; None if they are equal.

    1 equals 1.0 and True; NaN equals nothing.

    Args:
        got: Returned value in JSON's types (`as_json` of guest/plain.py).
        wanted: Expected value, from JSON.
        wrapped: Whether an expected [x] also matches x.
        tolerance: As in `same_number`, for floats at any depth.
    """
    if _close(got, wanted, tolerance):
        return None
    if wrapped and isinstance(wanted, list) and len(wanted) == 1 and _close(got, wanted[0], tolerance):
        return None
    return f"expected {short(wanted)}, got {short(got)}"


def _close(got: Any, wanted: Any, tolerance: float) -> bool:
    if not tolerance:
        return bool(got == wanted)
    if isinstance(got, list) and isinstance(wanted, list):
        return len(got) == len(wanted) and all(_close(a, b, tolerance) for a, b in zip(got, wanted, strict=True))
    if isinstance(got, dict) and isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(_close(got[name], wanted[name], tolerance) for name in wanted)
    if (
        isinstance(got, int | float)
        and isinstance(wanted, int | float)
        and isinstance(got, float) | isinstance(wanted, float)
    ):
        return bool(got == wanted or abs(got - wanted) <= tolerance * max(1.0, abs(wanted)))
    return bool(got == wanted)
