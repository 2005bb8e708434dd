"""An index of a run's rollouts for browsing and searching; texts stay on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq
from pathlib import Path
from typing import Any

from scalerl.core.rows import FileLine, RowFile, number
from scalerl.core.run_files import ROLLOUTS, SAMPLES

FILES = {"evaluation": ROLLOUTS, "training": SAMPLES}
"""Files with rollouts, by their names on the page."""

BRIEF = (
    *("step", "task", "prompt_id", "sample", "reward", "passed", "reason"),
    *("tokens", "truncated", "interrupted", "ended", "staleness"),
)
"""Columns kept in memory."""

EXCERPT = 160
"""Characters of question and completion in a list."""

PAGE = 50
"""Maximum number of rows in a response."""


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"got {text!r}; allowed: true, false")
    return text == "true"


CRITERIA: dict[str, tuple[Callable[[str], Any], str, Callable[[Any, Any], bool]]] = {
    "step": (int, "step", eq),
    "task": (str, "task", eq),
    "prompt_id": (str, "prompt_id", eq),
    "passed": (_truth, "passed", eq),
    "truncated": (_truth, "truncated", eq),
    "interrupted": (_truth, "interrupted", eq),
    "ended": (str, "ended", eq),
    "least_reward": (float, "reward", lambda value, bound: number(value) >= bound),
    "most_reward": (float, "reward", lambda value, bound: number(value) <= bound),
    "least_tokens": (float, "tokens", lambda value, bound: number(value) >= bound),
    "most_tokens": (float, "tokens", lambda value, bound: number(value) <= bound),
}
"""Search criteria by name: how the value of a query is read, the column, and the test of (column, value)."""


class RolloutIndex:
    """The rollouts of one run; files are read at the first request."""

    def __init__(self, path: Path) -> None:
        """Prepare the index of a run directory."""
        self._lines: dict[str, list[FileLine]] = {kind: [] for kind in FILES}  # with the columns `BRIEF` only
        self._files = {kind: RowFile(path / name, self._lines[kind].clear) for kind, name in FILES.items()}

    def refresh(self) -> None:
        """Read new rows."""
        for kind, file in self._files.items():
            for line in file.new_lines():
                self._lines[kind].append(line._replace(row={name: line.row.get(name) for name in BRIEF}))

    def find(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the rows that match a query, newest step first, and all steps and tasks.

        Args:
            query: Values of `CRITERIA`; `kind`, a key of `FILES`; `text` in prompt, completion, answer or reason,
                case-insensitive; `start`, the number of result rows to skip. An absent or empty value matches
                everything.

        Raises:
            ValueError: A value has the wrong type.
        """
        self.refresh()
        kind, text, start = query.get("kind") or "evaluation", query.get("text", ""), int(query.get("start") or 0)
        if kind not in FILES:
            raise ValueError(f"kind: got {kind!r}; allowed: {', '.join(FILES)}")
        tests = [
            (column, test, read(query[name])) for name, (read, column, test) in CRITERIA.items() if query.get(name)
        ]
        briefs = [line.row for line in self._lines[kind]]
        matches = [
            at for at, brief in enumerate(briefs) if all(test(brief[column], value) for column, test, value in tests)
        ]
        if text:
            matches = [at for at in matches if text.casefold() in _searched(self.row(kind, at))]
        matches.sort(key=lambda at: (-number(briefs[at]["step"]), at))
        shown = matches[start : start + PAGE]
        return {
            "total": len(matches),
            "all": len(briefs),
            "steps": sorted({brief["step"] for brief in briefs if isinstance(brief["step"], int)}, reverse=True),
            "tasks": sorted({str(brief["task"]) for brief in briefs}),
            "rows": [{"row": at, **briefs[at], **self._excerpt(kind, at)} for at in shown],
        }

    def row(self, kind: str, at: int) -> dict[str, Any]:
        """Return a whole row; empty if the file has been cut back since.

        Raises:
            IndexError: There is no such row.
        """
        line = self._lines[kind][at]
        return self._files[kind].row(line.offset, line.size)

    def group(self, kind: str, at: int) -> list[dict[str, Any]]:
        """Return the rollouts with the same prompt, task and step as a row, in file order.

        Raises:
            IndexError: There is no such row.
        """
        self.refresh()
        briefs = [line.row for line in self._lines[kind]]
        row, same = briefs[at], ("step", "task", "prompt_id")
        alike = [n for n, brief in enumerate(briefs) if all(brief[name] == row[name] for name in same)]
        return [{"row": n, **self.row(kind, n)} for n in alike]

    def _excerpt(self, kind: str, at: int) -> dict[str, str]:
        row = self.row(kind, at)
        question, completion = str(row.get("question") or row.get("prompt", "")), str(row.get("completion", ""))
        # the text of a chat prompt begins with a system message and ends with a template; a completion, with the answer
        return {"question": question[:EXCERPT], "completion": completion[-EXCERPT:]}


def _searched(row: Mapping[str, Any]) -> str:
    return "\n".join(str(row.get(name, "")) for name in ("prompt", "completion", "answer", "reason")).casefold()
