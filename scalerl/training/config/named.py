"""Public prompt sets and evaluation suites by name: hub id, split, columns, task and form of the answers.

The settings of a set are defaults; the fields of a `[[data]]` table override them. docs/data.md lists which sets were
checked against real rows and which only against documented columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class NamedSet(NamedTuple):
    """One public set.

    Example:
        NamedSet(path="openai/gsm8k", subset="main", prompt="question", answers="hashes", size=7473)
    """

    path: str
    """Name on the hub."""
    subset: str = ""
    """Configuration on the hub, if the set has several."""
    split: str = "train"
    prompt: str = "problem"
    """Column with the prompt."""
    answer: str = "answer"
    """Column with the reference answer; empty for code, whose rows have tests."""
    answers: str = "whole"
    """Form of the answer column: key of ANSWER_FORMS (training/prompts/layouts.py)."""
    task: str = "math"
    """The verifier."""
    rows: str = ""
    """How rows are rewritten first: key of ROW_FORMS (training/prompts/layouts.py); empty: unchanged."""
    files: tuple[str, ...] = ()
    """JSONL files of the hub repository, if it has no tables that `datasets` can read."""
    size: int = 0
    """Number of rows, as documented by its authors; 0: unknown."""
    suite: bool = False
    """Whether it is an evaluation suite, for `suites = ["aime-24"]`."""


NAMED_SETS: dict[str, NamedSet] = {
    "polaris": NamedSet("POLARIS-Project/Polaris-Dataset-53K", size=53_291),
    "dapo-math-17k": NamedSet(
        "BytedTsinghua-SIA/DAPO-Math-17k", prompt="prompt", answer="reward_model.ground_truth", size=17_398
    ),
    "deepscaler": NamedSet("agentica-org/DeepScaleR-Preview-Dataset", size=40_315),
    "gsm8k": NamedSet("openai/gsm8k", "main", prompt="question", answers="hashes", size=7473),
    "gsm8k-test": NamedSet(
        "openai/gsm8k", "main", "test", prompt="question", answers="hashes", size=1319, suite=True
    ),
    "math": NamedSet("DigitalLearningGmbH/MATH-lighteval", answer="solution", answers="boxed", size=7500),
    "deepcoder": NamedSet(
        "agentica-org/DeepCoder-Preview-Dataset", "taco", answer="", task="code", rows="deepcoder"
    ),
    "aime-24": NamedSet("HuggingFaceH4/aime_2024", size=30, suite=True),
    "aime-25": NamedSet("math-ai/aime25", split="test", size=30, suite=True),
    "math-500": NamedSet("HuggingFaceH4/MATH-500", split="test", size=500, suite=True),
    "humaneval": NamedSet(
        "openai/openai_humaneval", split="test", prompt="prompt", answer="", task="code", rows="humaneval", size=164,
        suite=True,
    ),
    "mbpp": NamedSet(
        "google-research-datasets/mbpp", "full", "test", prompt="prompt", answer="", task="code", rows="mbpp",
        size=500, suite=True,
    ),
    "livecodebench-2025": NamedSet(
        "livecodebench/code_generation_lite", split="test", prompt="prompt", answer="", task="code",
        rows="livecodebench-2025", files=("test5.jsonl", "test6.jsonl"), suite=True,
    ),
}  # fmt: skip
"""The sets by name."""


def with_named_set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a `[data]` table with the fields of the set that `set` or `path` names.

    Fields of the table override those of the set, including a `path` to a copy of the set.

    Raises:
        ValueError: `set` is not the name of a set.
    """
    out, path = dict(values), values.get("path")
    name = out.get("set") or (path if isinstance(path, str) and path in NAMED_SETS else None)
    if not name or not isinstance(name, str):
        return out
    if name not in NAMED_SETS:
        from scalerl.core.errors import nearest, short

        raise ValueError(f"set: got {short(name)}{nearest(name, NAMED_SETS)}; allowed: {', '.join(NAMED_SETS)}")
    if path == name:
        del out["path"]
    named_set, columns_of_user = NAMED_SETS[name], out.get("columns", {})
    filled = {key: getattr(named_set, key) for key in ("path", "subset", "split", "answers", "task")}
    columns_of_set = {"prompt": named_set.prompt} | ({"answer": named_set.answer} if named_set.answer else {})
    columns = {**columns_of_set, **columns_of_user} if isinstance(columns_of_user, Mapping) else columns_of_user
    return {**filled, **out, "set": name, "columns": columns}
