"""Procedural tasks of reasoning-gym, scored by their `score_answer` in [0, 1] (arXiv 2505.24760).

A prompt's columns contain the data set and the entry: {"dataset": "chain_sum", "parameters": {...}, "entry": {...}}.
"""

from __future__ import annotations

import difflib
import json
import random
import re
import sys
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from scalerl.core.errors import ConfigError, short
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import PASSED, LocalRemote, serve
from scalerl.core.types import Prompt
from scalerl.training.rewards.base import Verdict, in_braces, judged_text


class Entry(NamedTuple):
    """An entry of a data set, a dict with question, answer and metadata, and its number."""

    number: int
    values: dict[str, Any]


TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
LABELED = re.compile(r"^[ \t*#]*(?:final )?answer[ \t*]*:[ \t*]*(\S.*?)[ \t*]*$", re.IGNORECASE | re.MULTILINE)


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return the data set's verdict on the final answer; a score of `pass_score` (default 1) or more passes.

    Raises:
        ConfigError: The columns contain no entry, or reasoning-gym does not have its data set.
    """
    columns = prompt.columns
    if not columns.keys() >= {"dataset", "entry"}:
        raise ConfigError(
            "reasoning-gym: the row has no entry; allowed: the columns dataset, entry and, if it has some, parameters "
            f"(columns here: {', '.join(columns) or 'none'})"
        )
    data = _cached(str(columns["dataset"]), json.dumps(columns.get("parameters") or {}, sort_keys=True))
    entry = columns["entry"]
    answer = final_answer(completion)
    score = min(1.0, max(0.0, float(data.score_answer(answer=answer, entry=entry))))
    expected = f", expected {short(entry['answer'])}" if entry.get("answer") is not None else ""
    return Verdict(score >= float(columns.get("pass_score", 1.0)), score, f"got {short(answer)}{expected}")


def final_answer(completion: str) -> str:
    r"""Return the part of a completion that is scored.

    In the text after the last `</think>`, this is the last <answer>...</answer>; without one, the rest of the last line
    that begins with "Answer:"; without that, the content of the last \boxed{}; otherwise the whole text.
    """
    text = judged_text(completion)
    for answers in (TAGGED.findall(text), LABELED.findall(text)):
        if answers:
            return str(answers[-1]).strip()
    start = text.rfind("\\boxed{")
    inside = in_braces(text[start + len("\\boxed") :]) if start >= 0 else None
    return (text if inside is None else inside).strip()


def make_data(name: str, size: int, seed: int, parameters: Mapping[str, Any]) -> Any:
    """Return a data set of reasoning-gym; its entries are dicts with question, answer and metadata.

    Args:
        name: Name of the data set, such as chain_sum.
        size: Number of entries.
        seed: Seed of the data set; entry i uses seed + i.
        parameters: Parameters of the data set.

    Raises:
        ConfigError: The package is missing, or it does not have the data set or a parameter.
    """
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise ConfigError(
            "data.kind: 'reasoning-gym' needs a package that is not installed: pip install 'scalerl[reasoning-gym]'"
        ) from None
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=5, cutoff=0.4) or sorted(DATASETS)[:10]
        raise ConfigError(
            f"data.dataset: reasoning-gym has no data set {name!r}; similar names: {', '.join(close)}. It has "
            f'{len(DATASETS)}, listed by `python -c "import reasoning_gym.factory as f; print(*f.DATASETS)"`'
        )
    try:
        return create_dataset(name, size=size, seed=seed, **parameters)
    except (AssertionError, ValueError, TypeError) as error:  # TypeError: it has no such parameter
        raise ConfigError(f"data.parameters: {name} rejects {dict(parameters)!r}: {error}") from None


def make_entries(dataset: str, seed: int, parameters: Mapping[str, Any], tries: int, count: int) -> list[Entry]:
    """Return entries with distinct questions, with their numbers; fewer if not enough of the tries are distinct.

    They are made in a process with a fixed seed of hashes, because some data sets draw from a set, or use Python's
    global random numbers; a resume must make the same ones.

    Args:
        dataset: Name of the data set.
        seed: Seed of the data set.
        parameters: Parameters of the data set.
        tries: Largest number of entries to make.
        count: Number of entries to return.

    Raises:
        ConfigError: As for `make_data`, or the data set fails.
    """
    run = partial(serve, partial(_Maker, dataset, tries, seed, parameters), PASSED)
    maker = LocalRemote(run, f"reasoning-gym's {dataset}", environment={"PYTHONHASHSEED": "0"})
    try:
        maker.receive()
        entries: list[Entry] = maker.call("distinct", count)
        return entries
    except ProcessDied as error:
        raise ConfigError(f"data.dataset: {error}; choose another data set, or other data.parameters") from None
    finally:
        maker.end()


class _Maker:
    """The data set in its process."""

    def __init__(self, dataset: str, tries: int, seed: int, parameters: Mapping[str, Any]) -> None:
        sys.stdout = sys.stderr  # what a data set prints must not change the output of --json
        self._data, self._tries, self._seed = make_data(dataset, tries, seed, parameters), tries, seed

    def distinct(self, count: int) -> list[Entry]:
        entries: dict[str, Entry] = {}
        for index in range(self._tries):
            seed = (self._seed + index) % 2**32
            random.seed(seed)
            np.random.seed(seed)
            entry = self._data[index]
            entries.setdefault(entry["question"], Entry(index, entry))
            if len(entries) == count:
                break
        return list(entries.values())


@lru_cache(maxsize=64)
def _cached(name: str, parameters: str) -> Any:
    return make_data(name, 1, 0, json.loads(parameters))
