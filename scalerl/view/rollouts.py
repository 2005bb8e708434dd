"""An index of a run's rollouts for browsing and searching; texts stay on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from scalerl.core.rows import RowFile
from scalerl.view.warnings import number

FILES = {"evaluation": "rollouts.jsonl", "training": "rollouts/samples.jsonl"}
"""Files with rollouts, by their names on the page."""

BRIEF = (
    "step",
    "task",
    "prompt_id",
    "sample",
    "reward",
    "passed",
    "reason",
    "tokens",
    "truncated",
    "interrupted",
    "staleness",
)
"""Columns kept in memory."""

EXCERPT = 160
"""Characters of prompt and completion in a list."""

PAGE = 50
"""Maximum number of rows in a response."""


@dataclass(frozen=True, slots=True)
class Search:
    """Search criteria; None matches everything.

    Example: Search(kind="training", least_reward=1.0, truncated=False, text="carry")
    """

    kind: str = "evaluation"
    """Key of `FILES`."""
    step: int | None = None
    task: str | None = None
    prompt_id: str | None = None
    passed: bool | None = None
    truncated: bool | None = None
    interrupted: bool | None = None
    least_reward: float | None = None
    most_reward: float | None = None
    least_tokens: float | None = None
    most_tokens: float | None = None
    text: str = ""
    """Text in prompt, completion, answer or reason, case-insensitive."""
    start: int = 0
    """Number of result rows to skip."""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Search:
        """Parse a search from query parameters.

        Raises:
            ValueError: A value has the wrong type.
        """
        found: dict[str, Any] = {}
        for field in fields(cls):
            if asked.get(field.name):
                found[field.name] = _READERS[str(field.type).removesuffix(" | None")](asked[field.name])
        if found.get("kind", "evaluation") not in FILES:
            raise ValueError(f"kind: got {found['kind']!r}; allowed: {', '.join(FILES)}")
        return cls(**found)

    def matches(self, brief: Mapping[str, Any]) -> bool:
        """Return whether a row matches the criteria other than text."""
        same = ("step", "task", "prompt_id", "passed", "truncated", "interrupted")
        if any(getattr(self, name) not in (None, brief[name]) for name in same):
            return False
        reward, tokens = number(brief["reward"]), number(brief["tokens"])
        return (
            (self.least_reward is None or reward >= self.least_reward)
            and (self.most_reward is None or reward <= self.most_reward)
            and (self.least_tokens is None or tokens >= self.least_tokens)
            and (self.most_tokens is None or tokens <= self.most_tokens)
        )


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"got {text!r}; allowed: true, false")
    return text == "true"


_READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": _truth}


class RolloutIndex:
    """The rollouts of one run; files are read at the first request."""

    def __init__(self, path: Path) -> None:
        """Prepare the index of a run directory."""
        self._files = {kind: RowFile(path / name) for kind, name in FILES.items()}
        self._restarts = dict.fromkeys(FILES, 0)
        self._briefs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in FILES}
        self._places: dict[str, list[tuple[int, int]]] = {kind: [] for kind in FILES}

    def refresh(self) -> None:
        """Read new rows."""
        for kind, file in self._files.items():
            for line in file.new_lines():
                self._forget_if_restarted(kind)
                self._briefs[kind].append({name: line.row.get(name) for name in BRIEF})
                self._places[kind].append((line.offset, line.size))
            self._forget_if_restarted(kind)

    def _forget_if_restarted(self, kind: str) -> None:
        if self._files[kind].restarts != self._restarts[kind]:
            self._restarts[kind] = self._files[kind].restarts
            self._briefs[kind], self._places[kind] = [], []

    def find(self, search: Search) -> dict[str, Any]:
        """Return the matching rows, newest step first, and all steps and tasks."""
        self.refresh()
        briefs = self._briefs[search.kind]
        found = [at for at, brief in enumerate(briefs) if search.matches(brief)]
        if search.text:
            wanted = search.text.casefold()
            found = [at for at in found if wanted in _searched(self.row(search.kind, at))]
        found.sort(key=lambda at: (-number(briefs[at]["step"]), at))
        shown = found[search.start : search.start + PAGE]
        return {
            "total": len(found),
            "all": len(briefs),
            "steps": sorted({brief["step"] for brief in briefs if isinstance(brief["step"], int)}, reverse=True),
            "tasks": sorted({str(brief["task"]) for brief in briefs}),
            "rows": [{"row": at, **briefs[at], **self._excerpt(search.kind, at)} for at in shown],
        }

    def row(self, kind: str, at: int) -> dict[str, Any]:
        """Return a whole row; empty if the file has been cut back since.

        Raises:
            IndexError: There is no such row.
        """
        return self._files[kind].row(*self._places[kind][at])

    def group(self, kind: str, at: int) -> list[dict[str, Any]]:
        """Return the rollouts with the same prompt, task and step as a row, in file order.

        Raises:
            IndexError: There is no such row.
        """
        self.refresh()
        own = self._briefs[kind][at]
        same = ("step", "task", "prompt_id")
        alike = [n for n, brief in enumerate(self._briefs[kind]) if all(brief[name] == own[name] for name in same)]
        return [{"row": n, **self.row(kind, n)} for n in alike]

    def _excerpt(self, kind: str, at: int) -> dict[str, str]:
        row = self.row(kind, at)
        prompt, completion = str(row.get("prompt", "")), str(row.get("completion", ""))
        # a chat prompt ends with the question, a completion with the answer
        return {"prompt": prompt[-EXCERPT:], "completion": completion[-EXCERPT:]}


def _searched(row: Mapping[str, Any]) -> str:
    return "\n".join(str(row.get(name, "")) for name in ("prompt", "completion", "answer", "reason")).casefold()
