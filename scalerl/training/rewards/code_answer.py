"""The program of a completion, and the comparison of its output with the expected output, outside the sandbox."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Collection
from decimal import Decimal
from functools import lru_cache
from html import unescape
from textwrap import dedent
from typing import Any, NamedTuple

from scalerl.core.errors import short
from scalerl.training.rewards.answers import tagged
from scalerl.training.rewards.base import judged_text, without_marks

TAG_PATTERN = r"<[/|｜]?[A-Za-z][^<>\s]{0,40}>"
"""A tag such as </answer> or <|im_end|>, which a model may write next to a block or around a program."""
PYTHON = re.compile(r"(?:i?python|py)[\d.]*|pypy\d?|pycon")
"""Words after a fence for Python."""
OTHER_LANGUAGES = set(
    (  # noqa: SIM905
        "bash sh shell zsh console cpp c++ c cs csharp java javascript js ts typescript go rust json yaml toml xml "
        "html sql output input diff latex tex markdown md makefile r ruby kotlin swift php perl scala haskell"
    ).split()
)
"""Words after a fence for other languages, and for input and output."""
FENCE = re.compile(
    rf"(?P<indent>[ \t]*(?:> ?)*)(?:{TAG_PATTERN}[ \t]*)*(?P<fence>`{{3,}}|~{{3,}})[ \t]*(?P<mark>[\w+-]*)(?P<rest>.*)"
)
OPENED = re.compile(r"(?P<indent>)(?P<fence>`{3,})(?P<mark>[A-Za-z][\w+]*)(?P<rest>)\s*$")
"""A fence with a language at the end of a line of text."""
DEEPER = 4
"""Columns by which a fence inside a block, as in a docstring, is indented more than the block (CommonMark)."""
OPEN_TAG = re.compile(r"<(code|pre|python)\b[^<>\n]{0,80}>\s*(?:<code[^<>\n]{0,80}>)?|\[(BEGIN|PYTHON|CODE)\]")
"""The beginning of code between tags, without fences."""
MOST_TAGS = 100
"""Tags at the end of a text that are read."""
READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0|/dev/stdin|\bfileinput\b|\bos\.read\s*\(\s*0")
"""A program that reads its input."""


class Block(NamedTuple):
    """A code block of a text: the word after its fence, in lower case, and its lines."""

    mark: str
    body: str


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a text in their order, without the indentation of their fences.

    Fences are three or more backticks or tildes; the end has at least as many, and text may stand on both sides of it.
    A block without an end extends to the next fence with the name of a language, or to the end of the text.
    """
    code_blocks, lines, opened = list[Block](), list[str](), None
    for line in text.splitlines(keepends=True):
        fence = FENCE.match(line) if "```" in line or "~~~" in line else None
        if opened is None and fence is None and (at := line.find("```")) > 0:
            fence = OPENED.match(line, at)
        if opened is None:
            if fence:
                opened, lines = fence, []
            continue
        mark = opened["fence"]
        same = fence and fence["fence"][0] == mark[0] and len(fence["fence"]) >= len(mark)
        if same and fence and len(fence["indent"].expandtabs()) - len(opened["indent"].expandtabs()) >= DEEPER:
            same = None
        if not same and line.rstrip().endswith(mark) and line.count(mark) % 2 and line.strip().strip("`~"):
            code_blocks.append(
                Block(opened["mark"].lower(), "".join([*lines, line.rstrip().removesuffix(mark) + "\n"]))
            )
            opened, lines = None, []
            continue
        if not fence or not same:
            lines.append(line.removeprefix(opened["indent"]))
            continue
        code_blocks.append(Block(opened["mark"].lower(), "".join(lines)))
        word = fence["mark"].lower()
        starts_another = (PYTHON.fullmatch(word) or word in OTHER_LANGUAGES) and not fence["rest"].strip()
        opened, lines = (fence, []) if starts_another else (None, [])
    if opened is not None:
        code_blocks.append(Block(opened["mark"].lower(), "".join(lines)))
    return code_blocks


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
    judged = judged_text(completion).replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    text, inside = without_marks(judged, TAG_PATTERN), (span := tagged(judged)) and span.text
    code_blocks = blocks(inside or "") or blocks(text)
    code_blocks = code_blocks or tagged_code(judged)
    usable = [Block(mark, repaired_source(body)) for mark, body in code_blocks if mark not in OTHER_LANGUAGES]
    for body in (block.body for block in reversed(usable)):
        if (names and names_in(body) >= set(names)) or (reads and READS.search(body) and syntax_tree(body) is not None):
            return body
    marked = [block.body for block in usable if PYTHON.fullmatch(block.mark)]
    programs = [block.body for block in usable if is_program(block.body)]
    for candidates in (marked, programs, [block.body for block in usable if not block.mark]):
        if candidates:
            return candidates[-1]
    if code_blocks:
        return None
    for candidate in (inside, text, between_sentences(text), indented_code(text)):
        if candidate and candidate.strip() and syntax_tree(candidate := repaired_source(candidate)) is not None:
            return candidate
    return None


def tagged_code(text: str) -> list[Block]:
    """Return the code between tags such as <pre><code> or [PYTHON], for texts without fences."""
    code_blocks, end = list[Block](), 0
    for match in list(OPEN_TAG.finditer(text))[-MOST_TAGS:]:
        if match.start() < end:  # inside of another one
            continue
        close = {"pre": "</", "BEGIN": "[DONE]"}.get(match[1] or match[2]) or (
            f"</{match[1]}>" if match[1] else f"[/{match[2]}]"
        )
        end = text.find(close, match.end())
        if end < 0:
            break
        code_blocks.append(Block("", unescape(text[match.end() : end])))
    return code_blocks


INVISIBLE = str.maketrans({**dict.fromkeys("\ufeff\u200b\u2060"), "\u00a0": " "})
"""Characters that are not Python and cannot be seen."""


def repaired_source(source: str) -> str:
    """Return a program that is Python but for its indentation as a whole or invisible characters; else as it is."""
    if syntax_tree(source) is None:
        for other in (source.translate(INVISIBLE), dedent(source.translate(INVISIBLE))):
            tree = syntax_tree(other)
            if tree is not None and not any(isinstance(node, ast.Return) for node in tree.body):  # that is a body
                return other
    return source


BEGINS = re.compile(r"(?:import|from|def|class|async def)\s+\w|@\w|[A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*\s*=(?!=)")
"""The first line of a program."""
MOST_LINES_AFTER = 30
"""Lines of text after a program without fences."""


def between_sentences(text: str) -> str | None:
    """Return the lines of a program without fences, with sentences before or after it."""
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if BEGINS.match(line)), None)
    if start is not None:
        for end in range(len(lines), max(start, len(lines) - MOST_LINES_AFTER), -1):
            if is_program(source := "".join(lines[start:end])):
                return source
    return None


def names_in(source: str) -> set[str]:
    """Return the names that a program defines at its top level, and the methods of its class Solution."""
    names, tree = defined_names(source), syntax_tree(source)
    for node in tree.body if tree else []:
        if isinstance(node, ast.ClassDef) and node.name == "Solution":
            names |= {method.name for method in node.body if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names


def is_program(source: str) -> bool:
    """Return whether a text is Python that does something; output such as `7` or `[1, 2]` does not."""
    tree = syntax_tree(source)
    quiet = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.Compare)
    return tree is not None and any(
        not (isinstance(node, ast.Expr) and isinstance(node.value, quiet)) for node in tree.body
    )


def indented_code(text: str) -> str | None:
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
    text = without_marks(judged_text(completion), TAG_PATTERN)
    program = program_of(completion, [entry])
    if program is not None and entry in defined_names(program):
        return program if "from __future__" in program else f"{before}\n\n{program}"
    for body in (text, program):
        if before and body is not None and syntax_tree(before + body) is not None:
            return before + body
    return program


def code_of_prompt(prompt: Any) -> str:
    """Return the Python code in a prompt: the whole prompt, its last block, or an empty text."""
    if isinstance(prompt, list):
        prompt = "\n\n".join(str(message.get("content", "")) for message in prompt if isinstance(message, dict))
    if not isinstance(prompt, str):
        return ""
    if syntax_tree(prompt) is not None:
        return prompt
    bodies = [block.body for block in blocks(prompt) if not block.mark or PYTHON.fullmatch(block.mark)]
    return bodies[-1] if bodies and syntax_tree(bodies[-1]) is not None else ""


@lru_cache(4)
def syntax_tree(source: str) -> ast.Module | None:
    """Return the syntax tree of a program; None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in programs
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defined_names(source: str) -> set[str]:
    """Return the names that a program defines at its top level, or under a condition there.

    These are functions, classes, assignments, and imports from the standard library.
    """
    tree = syntax_tree(source)
    names: set[str] = set()
    statements = list[ast.stmt](tree.body if tree else [])
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and node.module in sys.stdlib_module_names:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.If | ast.Try):
            statements += [*node.body, *node.orelse]
    return names


NUMBER = re.compile(r"[+-]?((?!0\d)\d{1,800}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)
"""A number; digits after a leading zero, such as 0010 or 007, are a text."""

FLOAT_ROUNDING = 1e-15
"""Largest relative error of a number that a program printed with all digits of a float: 0.30000000000000004 is 0.3."""
ALL_DIGITS = 16
"""Significant digits of such a number."""


def same_number(got: str, expected: str, tolerance: float = 0.0) -> bool:
    """Return whether two texts are numbers of the same value, up to a tolerance or the rounding of a float.

    Args:
        got: Text of the program.
        expected: Expected text.
        tolerance: Largest difference, absolute, or relative to the expected value if that is above 1.
    """
    if not (NUMBER.fullmatch(got) and NUMBER.fullmatch(expected)):
        return False
    value, target = Decimal(got), Decimal(expected)
    if value == target:
        return True
    if not tolerance and "." in got and len(re.sub(r"[eE].*|\D", "", got).lstrip("0")) >= ALL_DIGITS:
        return abs(value - target) <= Decimal(FLOAT_ROUNDING) * abs(target)
    return bool(tolerance) and abs(value - target) <= Decimal(tolerance) * max(Decimal(1), abs(target))


def difference(got: str, expected: str, tolerance: float = 0.0) -> str | None:
    """Return the first difference of two outputs; None if they are equal.

    The rule is LiveCodeBench's. White space around the output and around each line is ignored. The numbers of lines
    must be equal, and each pair of lines must have the same text or the same tokens. Two tokens are the same if their
    texts are equal or both are numbers of the same value (`same_number`): 1.0 equals 1.00, but 0.33 is not 0.333, and
    0010 is not 10.
    """
    got_lines, expected_lines = ([line.strip() for line in text.strip().split("\n")] for text in (got, expected))
    for number, (line, target) in enumerate(zip(got_lines, expected_lines, strict=False), start=1):
        if line != target and not _same_tokens(line.split(), target.split(), tolerance):
            return f"line {number}: expected {short(target)}, got {short(line)}"
    if len(got_lines) != len(expected_lines):
        return f"expected {len(expected_lines)} lines, got {len(got_lines)}"
    return None


def _same_tokens(got: list[str], expected: list[str], tolerance: float) -> bool:
    return len(got) == len(expected) and all(
        token == target or same_number(token, target, tolerance) for token, target in zip(got, expected, strict=True)
    )


def value_difference(got: Any, expected: Any, wrapped: bool = False, tolerance: float = 0.0) -> str | None:
    """Return how a returned value differs from the expected value; None if they are equal.

    1 equals 1.0 and True; NaN equals nothing.

    Args:
        got: Returned value in JSON's types (`as_json` of guest/plain.py).
        expected: Expected value, from JSON.
        wrapped: Whether an expected [x] also matches x.
        tolerance: As in `same_number`, for floats at any depth.
    """
    if _close(got, expected, tolerance):
        return None
    if wrapped and isinstance(expected, list) and len(expected) == 1 and _close(got, expected[0], tolerance):
        return None
    return f"expected {short(expected)}, got {short(got)}"


def _close(got: Any, expected: Any, tolerance: float) -> bool:
    if not tolerance:
        return bool(got == expected)
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(_close(a, b, tolerance) for a, b in zip(got, expected, strict=True))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_close(got[name], expected[name], tolerance) for name in expected)
    if (
        isinstance(got, int | float)
        and isinstance(expected, int | float)
        and isinstance(got, float) | isinstance(expected, float)
    ):
        return bool(got == expected or abs(got - expected) <= tolerance * max(1.0, abs(expected)))
    return bool(got == expected)
