"""Audit of a verifier: its verdicts against expected ones, by kind, and what its errors do to a curve.

`CASES` are answers whose verdict is not arguable, from reports of errors in public verifiers. `audit_verifier` runs
them on your own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scalerl.core.types import Prompt
from scalerl.reading.curves.estimate import percent
from scalerl.training.rewards.base import Verdict


class AuditCase(NamedTuple):
    r"""A completion with the verdict that its author would give.

    Example: AuditCase(completion=r"\boxed{0.5}", answer="1/2", expected=True, kind="fractions")
    """

    completion: str
    answer: str
    expected: bool
    kind: str


@dataclass
class Audit:
    """The confusion table of a verifier, and its errors by kind."""

    counts: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """Number of completions by (expected, passed)."""
    errors: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Errors by kind, one line each."""
    unjudged: int = 0
    """Completions without a verdict, which are not in the table."""

    def add(self, expected: bool, passed: bool | None, kind: str, line: str) -> None:
        """Count one completion; `passed` is None without a verdict."""
        if passed is None:
            self.unjudged += 1
            return
        self.counts[expected, passed] += 1
        if expected != passed:
            self.errors[kind].append(f"{'refused' if expected else 'accepted'}: {line}")

    @property
    def refused(self) -> float:
        """Share of the right answers that are refused; NaN without right answers."""
        right = self.counts[True, True] + self.counts[True, False]
        return self.counts[True, False] / right if right else float("nan")

    @property
    def accepted(self) -> float:
        """Share of the wrong answers that are accepted; NaN without wrong answers."""
        wrong = self.counts[False, True] + self.counts[False, False]
        return self.counts[False, True] / wrong if wrong else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return the table and the errors as plain values."""
        counts = {
            f"{'right' if right else 'wrong'} {'passed' if passed else 'refused'}": self.counts[right, passed]
            for right in (True, False)
            for passed in (True, False)
        }
        shares = {"refused": _number(self.refused), "accepted": _number(self.accepted)}
        errors = {kind: len(rows) for kind, rows in self.errors.items()}
        return {**counts, **shares, "no verdict": self.unjudged, "errors": errors}

    def lines(self, examples: int = 3) -> list[str]:
        """Return the audit as text, with a number of examples of each kind."""
        count = self.counts
        lines = [
            "               passed  refused",
            f"right answers  {count[True, True]:6}  {count[True, False]:7}",
            f"wrong answers  {count[False, True]:6}  {count[False, False]:7}",
        ]
        if self.unjudged:
            lines.append(f"{self.unjudged} completions have no verdict")
        if self.refused > 0:
            low = f"a ceiling A is measured as about {1 - self.refused:.3f} A"
            lines.append(f"{percent(self.refused)} of the right answers are refused: {low}")
        if self.accepted > 0:
            lines.append(f"{percent(self.accepted)} of the wrong answers are accepted: a policy can learn to give them")
        for kind, rows in sorted(self.errors.items(), key=lambda item: -len(item[1])):
            lines += ["", f"{len(rows)} errors: {kind}", *(f"  {row}" for row in rows[:examples])]
        return lines


def _number(value: float) -> float | None:
    return None if value != value else value


def audit_verifier(verify: Callable[[Prompt, str], Verdict], cases: Iterable[AuditCase] = ()) -> Audit:
    """Return the audit of a verifier on cases; those of `CASES` if none are given."""
    audit = Audit()
    for number, case in enumerate(tuple(cases) or CASES):
        question = f"question {number}"
        prompt = Prompt(
            f"{number:016x}", question, (), case.answer, "audit", {"prompt": question, "answer": case.answer}
        )
        line = f"{case.completion!r} for {case.answer!r}"
        audit.add(case.expected, verify(prompt, case.completion).passed, case.kind, line)
    return audit


def _cases(kind: str, *rows: tuple[str, str, bool]) -> list[AuditCase]:
    return [AuditCase(completion, answer, expected, kind) for completion, answer, expected in rows]


CASES: Sequence[AuditCase] = (
    *_cases("form", ("<answer>42</answer>", "42", True), ("I count 41. <Answer>42</Answer>", "41", False),
            (r"\boxed{7}. No: \boxed{8}", "8", True), (r"\boxed{7}. No: \boxed{8}", "7", False),
            ("The answer is 71.\n#### 72", "72", True), (r"\fbox{42}", "42", True), ("答案是：42。", "42", True),
            (r"Use \boxed{}. It is \boxed{5}", "5", True), ("The correct option is (C).", "C", True)),
    *_cases("signs", (r"\boxed{½}", "1/2", True), (r"\boxed{４２}", "42", True), (r"\boxed{x³}", "x^3", True),
            (r"\boxed{√3}", r"\sqrt{2}", False)),
    *_cases("layout", (r"\boxed{\boldsymbol{42}}", "42", True), (r"\boxed{\text{Total: } 42}", "42", True),
            (r"\boxed{\color{red}{42}}", "42", True)),
    *_cases("amounts", (r"\boxed{2.5\text{ million}}", "2500000", True), (r"\boxed{2.5\text{ million}}", "2.5", False),
            (r"\boxed{\$1,250}", "1250", True), (r"\boxed{50\%}", "0.5", True), (r"\boxed{3/4}", "3/4 cup", True)),
    *_cases("mixed numbers", (r"\boxed{1 1/4}", "5/4", True), ("The answer is 4 10/13.", "10", False)),
    *_cases("small numbers", (r"\boxed{1e-7}", "2e-7", False), (r"\boxed{\frac{1}{2029!}}", r"\frac{1}{2031!}", False),
            (r"\boxed{1e-5}", "0.00001", True)),
    *_cases("intervals", (r"\boxed{2 \le x \le 5}", "[2,5]", True), (r"\boxed{x \ge 1}", r"(1,\infty)", False),
            (r"\boxed{\ge 5}", "5", False)),
    *_cases("sets and bases", (r"\boxed{(3,8)}", r"\{3,8\}", False), (r"\boxed{1011_3}", "1011_2", False),
            (r"\boxed{\pm 3}", "3, -3", True)),
    *_cases("dots", (r"\boxed{1, 3, \ldots, 2n-1}", r"2, 4, \ldots, 2n", False),
            (r"\boxed{\frac{n(n+1)}{2}}", r"1 + 2 + \cdots + n", True)),
    *_cases("wrong", (r"\boxed{41}", "42", False), ("I do not know.", "42", False), ("", "42", False)),
)  # fmt: skip
"""Answers in mathematics by kind."""
