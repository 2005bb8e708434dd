"""Removal of training prompts that overlap with prompts of an evaluation suite.

Two prompts overlap if they share n consecutive words after normalization (lower case, letters and digits only). By
default n = 13, as in Brown et al. 2020 (arXiv 2005.14165), appendix C. Words that occur in more than ten prompts are a
template ("Solve the following math problem step by step ...") and are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scalerl.config.data import PromptFile, RewardFunction
from scalerl.core.errors import ConfigError
from scalerl.prompts.files import read_objects
from scalerl.prompts.layouts import Row, read_rows

MOST_PROMPTS = 10
"""A sequence of words in more prompts than this, of the suite or of the training pool, is a template."""

PROMPT_COLUMNS = ("prompt", "messages", "question", "problem", "text", "question_content")
"""Possible prompt columns of a file in `decontaminate`; the first that a row has is used."""

WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text without case and punctuation: "What's 1+1?" -> ("what", "s", "1", "1")."""
    return tuple(WORD.findall(text.casefold()))


def spoken(prompt: str | list[dict[str, str]]) -> str:
    """Return a prompt's text. Of chat messages, only the user's count, because system messages are templates."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message["content"] for message in prompt if message["role"] == "user")


def overlapping(training: Sequence[str], suite: Iterable[str], n: int) -> list[bool]:
    """Return for each training text whether it overlaps with a text of the suite.

    Args:
        training: Training texts.
        suite: Texts that must not be trained on.
        n: Number of consecutive words that count as an overlap; a text of fewer words is compared as a whole.
    """
    seen: Counter[int] = Counter()
    whole = set()
    for text in suite:
        words = words_of(text)
        seen.update(set(_runs(words, n)))
        whole.add(words)
    rare = {run for run, prompts in seen.items() if prompts <= MOST_PROMPTS}
    hits = [rare.intersection(_runs(words_of(text), n)) for text in training]
    common = {run for run, prompts in Counter(run for hit in hits for run in hit).items() if prompts > MOST_PROMPTS}
    return [
        bool(hit - common) or words_of(text) in whole for text, hit in zip(training, hits, strict=True)
    ]  # fmt: skip


def _runs(words: Sequence[str], n: int) -> Iterator[int]:
    """Yield a 64-bit hash of every n consecutive words; strings would take gigabytes for a large suite."""
    for start in range(len(words) - n + 1):
        yield hash(tuple(words[start : start + n]))


def _texts(name: str) -> Iterator[str]:
    """Yield the prompts of a public set or of a file, whose prompt column is found by its name.

    Raises:
        ConfigError: It cannot be read, or a row has none of the known prompt columns.
    """
    reference = PromptFile(path=name, task="math", reward=RewardFunction(function="suites:are_not_judged"))
    if reference.set:
        yield from (spoken(row.prompt) for row in read_rows(reference))
        return
    for where, values in read_objects(reference):
        at = next((column for column in PROMPT_COLUMNS if values.get(column)), None)
        if at is None:
            raise ConfigError(
                f"data.decontaminate: {where} has no prompt; allowed: a column {', '.join(PROMPT_COLUMNS)} (columns "
                f"here: {', '.join(values)})"
            )
        yield spoken(values[at]) if isinstance(values[at], list) else str(values[at])


def decontaminated(rows: Sequence[Row], data: PromptFile) -> tuple[list[Row], list[str]]:
    """Return the rows that do not overlap with the suites in `data.decontaminate`, and a note per overlapping suite.

    Raises:
        ConfigError: A suite cannot be read.
    """
    notes, kept = [], list(rows)
    for name in data.decontaminate:
        suite = list(_texts(name))
        hits = overlapping([spoken(row.prompt) for row in kept], suite, data.decontaminate_words)
        if any(hits):
            first = ", ".join(row.where for row, hit in zip(kept, hits, strict=True) if hit)[:200]
            notes.append(
                f"left out {sum(hits)} prompts of {data.path} that share {data.decontaminate_words} words in a row "
                f"with {name}: {first}"
            )
        kept = [row for row, hit in zip(kept, hits, strict=True) if not hit]
    return kept, notes
