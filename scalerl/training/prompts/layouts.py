"""Mapping of a file's columns to prompt, answer and the columns that verifiers use.

The layouts of verl, open-instruct and TRL are recognized by their columns, or named in the configuration. Dots in a
column name address nested columns. A row without a usable prompt or answer is an error with file, line and field.
Rows of public code data sets are rewritten first: `ROW_FORMS`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from scalerl.core.errors import ConfigError, short
from scalerl.core.files import parse_json
from scalerl.training.config.base import is_utf8
from scalerl.training.config.data import PromptFile
from scalerl.training.config.named import NAMED_SETS
from scalerl.training.prompts.files import read_objects
from scalerl.training.rewards.answers import ANSWER_FORM
from scalerl.training.rewards.base import in_braces
from scalerl.training.rewards.code_tests import TOLERANCE_COLUMN, BadTests, from_text, livecodebench_cases
from scalerl.training.rewards.turns import is_chat

_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False)
"""Text of a row for its id. A change would give every prompt another random stream."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row of a file.

    Example: Row(prompt="What is 1+1?", answer="2", columns={"level": 1}, source="prompts.jsonl line 3")
    """

    prompt: str | list[dict[str, str]]
    answer: str
    columns: dict[str, Any]
    source: str
    id: str = field(init=False)
    """The first 16 hex digits of a hash of prompt and answer."""

    def __post_init__(self) -> None:
        """Compute the id.

        Raises:
            ConfigError: A text has half of a surrogate pair, which no tokenizer takes.
        """
        if isinstance(self.prompt, str):  # what the encoder writes, in a third of the time
            content = f"[{encode_basestring(self.prompt)}, {encode_basestring(self.answer)}]"
        else:
            content = _ENCODER.encode([self.prompt, self.answer])
        if not is_utf8(content):
            raise ConfigError(f"{self.source}: got a lone surrogate in the prompt or answer; write the whole character")
        object.__setattr__(self, "id", hashlib.blake2b(content.encode(), digest_size=8).hexdigest())


class ColumnLayout(NamedTuple):
    """The columns with prompt and answer.

    Example: Layout(prompt="prompt", answer="reward_model.ground_truth")
    """

    prompt: str
    answer: str


LAYOUTS: dict[str, ColumnLayout] = {
    "plain": ColumnLayout("prompt", "answer"),
    "verl": ColumnLayout("prompt", "reward_model.ground_truth"),
    "open-instruct": ColumnLayout("messages", "ground_truth"),
    "trl": ColumnLayout("prompt", "solution"),
}
"""The layouts by name. TRL's trainers require only `prompt`; in its data sets the reference is `solution`."""

ANSWERLESS = frozenset({"code", "judge"})
"""Verifiers that use other columns, so that a row needs no answer."""


def prompt_rows(data: PromptFile) -> Iterator[PromptRow]:
    """Yield the rows of a file or hub data set, in their order.

    Raises:
        ConfigError: A row cannot be read, or has no prompt or answer. The message has file, line and field.
    """
    rewrite = ROW_FORMS[NAMED_SETS[data.set].rows] if data.set and NAMED_SETS[data.set].rows else None
    empty = True
    for source, values in read_objects(data):
        try:
            rewritten = rewrite(values) if rewrite else values
        except BadTests as error:
            raise ConfigError(f"{source}: {error}") from None
        if rewritten is not None:  # None: a row of another edition of the set
            empty = False
            yield _row(data, rewritten, source)
    if empty:
        edition = f" of the set {data.set!r}; give the edition that contains it" if rewrite else ""
        raise ConfigError(f"{data.path}: the file has no rows{edition}; allowed: one JSON object per line")


def layout_of(values: Mapping[str, Any]) -> ColumnLayout:
    """Return the layout that a row's columns identify: `plain` if the row has its two columns or fits no layout."""
    if "prompt" in values and "answer" in values:
        return LAYOUTS["plain"]
    if isinstance(values.get("reward_model"), Mapping) and "prompt" in values:
        return LAYOUTS["verl"]
    if "messages" in values and "ground_truth" in values and "prompt" not in values:
        return LAYOUTS["open-instruct"]
    return LAYOUTS["trl" if "solution" in values else "plain"]


def column(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column or of a dotted name inside a column; None if there is none."""
    if name in values:
        return values[name]
    value: Any = values
    for step in name.split("."):
        if isinstance(value, str) and value.lstrip().startswith("{"):  # verl's extra_info is a JSON string in some sets
            with suppress(ValueError):
                value = parse_json(value, long_integers=True)
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _row(data: PromptFile, values: dict[str, Any], source: str) -> PromptRow:
    recognize = data.layout == "auto" or (data.layout == "trl" and "solution" not in values)
    layout = layout_of(values) if recognize else LAYOUTS[data.layout]
    if data.task in ANSWERLESS and data.reward is None:
        layout = layout._replace(answer="answer")  # `solution` is a program in this case, which must pass the tests
    at = {name: data.columns.get(name) or getattr(layout, name) for name in ("prompt", "answer")}
    prompt = prompt_of(column(values, at["prompt"]), at["prompt"], values, source)
    answer = _answer(data, column(values, at["answer"]), at["answer"], values, source)
    extra = {name: column(values, path) for name, path in data.columns.items() if name not in ("prompt", "answer")}
    absent = [f"{name} = {data.columns[name]!r}" for name, value in extra.items() if value is None]
    if absent:
        raise ConfigError(
            f"{source}: data.columns names {', '.join(absent)}, which the row does not have; allowed: "
            f"the columns of the row ({', '.join(values)})"
        )
    if data.float_tolerance:
        extra = {TOLERANCE_COLUMN: data.float_tolerance, **extra}
        extra |= {TOLERANCE_COLUMN: values[TOLERANCE_COLUMN]} if values.get(TOLERANCE_COLUMN) is not None else {}
    if data.answer_form != "any":
        extra[ANSWER_FORM] = data.answer_form
    return PromptRow(prompt, answer, {**values, **extra}, source)


def prompt_of(prompt: Any, at: str, columns: Iterable[str], source: str) -> str | list[dict[str, str]]:
    """Return a prompt as text or messages, without the assistant's answers at the end of `messages`.

    Args:
        prompt: Value from a row.
        at: Its column.
        columns: Columns of the row, for messages.
        source: File and line.

    Raises:
        ConfigError: It is neither, or has no text.
    """
    if isinstance(prompt, str) and prompt.lstrip().startswith("[") and '"role"' in prompt:  # pandas wrote it as text
        with suppress(ValueError):
            read = parse_json(prompt)
            prompt = read if is_chat(read) else prompt
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if is_chat(prompt):
        end = len(prompt)
        while end > 1 and prompt[end - 1]["role"] == "assistant" and at == "messages":
            end -= 1
        if any(message["content"].strip() for message in prompt[:end]):
            return list(prompt[:end])
    raise ConfigError(
        f"{source}: {at!r} is {short(prompt)}; allowed: text or a list of chat messages with text in `content` "
        f"(columns here: {', '.join(columns)}; choose another with --data.columns '{{prompt = \"NAME\"}}')"
    )


def _answer(data: PromptFile, answer: Any, at: str, values: Mapping[str, Any], source: str) -> str:
    if answer is None and (data.reward is not None or data.task in ANSWERLESS):
        return ""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    odd = isinstance(answer, list | dict | bool) or (isinstance(answer, float) and not math.isfinite(answer))
    if odd and data.reward is None and data.task not in ANSWERLESS:
        raise ConfigError(
            f"{source}: {at!r} is {short(answer)}; allowed: one reference answer, text or a finite number"
        )
    extracted = REFERENCE_FORMS[data.answers]("" if answer is None else str(answer))
    if extracted is None:
        raise ConfigError(
            f"{source}: {at!r} is {short(answer)}; data.answers = {data.answers!r} finds no answer in it; allowed: "
            "whole, hashes (after ####), boxed (in \\boxed{})"
        )
    if not extracted.strip() and data.task not in ANSWERLESS:
        raise ConfigError(
            f"{source}: {at!r} is {short(answer)}; allowed: the reference answer "
            f"(columns here: {', '.join(values)}; choose another with --data.columns '{{answer = \"NAME\"}}')"
        )
    return extracted


def after_hashes(text: str) -> str | None:
    """Return the text after the last ####, without thousands separators: "... #### 1,072" -> "1072"."""
    _, mark, answer = text.rpartition("####")
    return re.sub(r"(?<=\d),(?=\d{3})", "", answer.strip()) if mark else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{} with balanced braces: "so \boxed{\frac{1}{2}}" -> "\frac{1}{2}"."""
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    tail = text[start + len("\\boxed") :].lstrip()
    if not tail.startswith("{"):  # "\boxed 2", in some rows of MATH
        return tail.split("$")[0].split()[0] if tail.split() else None
    return in_braces(tail)


REFERENCE_FORMS: dict[str, Callable[[str], str | None]] = {
    "whole": lambda text: text,
    "hashes": after_hashes,
    "boxed": last_boxed,
}
"""Functions by `data.answers`: text of the answer column -> answer, or None if there is none."""


FIRST_HALF_OF_2025 = ("2025-01-01", "2025-06-30")
"""First and last contest date of `livecodebench-2025`."""

INSTRUCTION = "Write your answer as one Python program in a ```python code block."


def humaneval(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of HumanEval: the function to complete, `test` with check(candidate), and its name."""
    return dict(values) | {name: _needed(values, name) for name in ("test", "entry_point", "prompt")}


def mbpp(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of MBPP: the text with the assertions, like its authors' prompts (arXiv 2108.07732, sec. 3)."""
    assertions = _needed(values, "test_list")
    if not isinstance(assertions, list):
        raise BadTests(f"'test_list' is {short(assertions)}; allowed: a list of assertions")
    shown = "\n".join(map(str, assertions))
    question = values.get("text") or _needed(values, "prompt")  # `prompt` in the sanitized edition
    prompt = f"{question} Your code should satisfy these tests:\n\n{shown}\n\n{INSTRUCTION}"
    return {**values, "prompt": prompt}


def deepcoder(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of DeepCoder: the problem, its starter code if any, and the tests."""
    tests = from_text(_needed(values, "tests"), "tests")
    return {**values, "prompt": _problem(values, "problem"), "tests": tests}


def livecodebench(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a row of LiveCodeBench of the first half of 2025; None for other contests."""
    low, high = FIRST_HALF_OF_2025
    if not low <= str(_needed(values, "contest_date"))[:10] <= high:
        return None
    other_columns = {name: value for name, value in values.items() if not name.endswith("_test_cases")}
    return {**other_columns, "prompt": _problem(values, "question_content"), "tests": livecodebench_cases(values)}


ROW_FORMS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
    "humaneval": humaneval,
    "mbpp": mbpp,
    "deepcoder": deepcoder,
    "livecodebench-2025": livecodebench,
}
"""Functions by the names in NamedSet.rows. They return None for rows that do not belong to the set, and raise BadTests
for rows without what it has."""


def _problem(values: Mapping[str, Any], column: str) -> str:
    starter = str(values.get("starter_code") or "")
    begin = f"\n\nBegin with this code:\n```python\n{starter}\n```" if starter.strip() else ""
    reads = "" if begin else " It reads standard input and writes standard output."
    return f"{_needed(values, column)}{begin}\n\n{INSTRUCTION}{reads}"


def _needed(values: Mapping[str, Any], column: str) -> Any:
    if values.get(column) in (None, "", []):
        raise BadTests(
            f"the column {column!r} is empty or missing (columns here: {', '.join(values)}); give a file of this set"
        )
    return values[column]
