r"""Repetition of the question: whether an answer stands in its prompt, in any of the usual notations.

12 * 13, $12 \times 13$ and 12·13 are one spelling here, and so are \frac{24}{4}, 24 \div 4 and 24/4.
"""

from __future__ import annotations

import re
from functools import lru_cache

from scalerl.core.types import Prompt

SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\[,;:!> ()\[\]]|\\q?quad\b|\\left\b|\\right\b|\\displaystyle\b|[$\u00a0\u2009\u202f]"), " "),
    (re.compile(r"\{,\}|(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))"), r" \1\2/\3\4 "),
    (re.compile(r"\\[dt]?binom\s*(?:(\d)\s*(?=\d))?"), r" binom \1 "),
    (re.compile(r"\\div\b|\\over\b|[\u00f7\u2044\u2215:]"), "/"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\(?:times|cdot|ast)\b|[\u00d7\u00b7\u2219\u22c5]|(?<=\d)\s*[xX]\s*(?=\d)"), "*"),
    (re.compile(r"[\u2212\u2013]"), "-"),
    (re.compile(r"\\sqrt\b|√"), "sqrt "),
    (re.compile(r"\\(?=%)|[{}()\[\]]"), " "),
)
"""Notations, and the spelling that replaces them. Brackets are left out: {10} and (10) are the same exponent."""
WORD_TOKEN = re.compile(r"\d+(?:\.\d+)?|\w+|\S")
OPERAND = r"(?:sqrt\s*)?\d+(?:\.\d+)?"
EXPRESSION = re.compile(rf"{OPERAND}(?:\s*[-+*/^]\s*{OPERAND})+|sqrt\s*\d+|\d+\s*!")
"""An operation on numbers, in the spelling of `spelled`."""


def spelled(text: str) -> str:
    """Return a text with one spelling for each sign, without brackets and with single spaces."""
    for pattern, spelling in SPELLINGS:
        text = pattern.sub(spelling, text)
    return " ".join(text.split())


def stands_in(answer: str, prompt: Prompt) -> bool:
    """Return whether an answer stands in the text of its prompt, as whole numbers and words; an empty one does not."""
    return _holds(_spelled(question(prompt)), answer)


def repeats_expression(answer: str, prompt: Prompt) -> bool:
    """Return whether an answer stands in its prompt, or contains an operation on numbers that stands there."""
    text = _spelled(question(prompt))
    return _holds(text, answer) or any(_holds(spelled(answer), expression) for expression in EXPRESSION.findall(text))


def numbers_in_prompt(answer: str, prompt: Prompt) -> bool:
    """Return whether a number of an answer stands in its prompt, or the prompt asks for an operation on numbers."""
    text = _spelled(question(prompt))
    return EXPRESSION.search(text) is not None or any(
        _holds(text, number) for number in _NUMBER.findall(spelled(answer))
    )


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_spelled = lru_cache(256)(spelled)
"""Cached, because the completions of a group share their prompt."""


def _holds(text: str, part: str) -> bool:
    tokens = WORD_TOKEN.findall(spelled(part)) if len(part) <= 4 * len(text) else []
    words = r"\s*".join(map(re.escape, tokens))
    return bool(tokens) and re.search(rf"(?<![\w.]){words}(?!\w|\.\d)", text) is not None


def question(prompt: Prompt) -> str:
    """Return the text of a prompt's row, that of all messages if it is a chat; without a row, the prompt's text."""
    row = prompt.columns.get("prompt", prompt.text)
    if isinstance(row, list):
        contents = [message.get("content") for message in row if isinstance(message, dict)]
        return "\n\n".join(text for text in contents if isinstance(text, str))
    return row if isinstance(row, str) else prompt.text
