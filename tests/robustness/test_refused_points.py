"""Unreadable curve files: each is refused by the rule of campaign.py."""

import pytest

from robustness.campaign import Case, check, write

GOOD = "".join(f'{{"flops": {n}e12, "pass_rate": {0.2 + 0.02 * n}}}\n' for n in range(12))
CASES = (
    Case("points: a file of NUL bytes", ("fit", "p.jsonl"), write("p.jsonl", b"\0" * 64), expect="p.jsonl"),
    Case("points: no such file", ("fit", "p.jsonl"), expect="p.jsonl"),
    Case("points: a list", ("fit", "p.jsonl"), write("p.jsonl", "[1, 2]\n" * 9), expect="line 1"),
    Case("points: a byte-order mark", ("fit", "p.jsonl"), write("p.jsonl", "\ufeff" + GOOD), allowed=(0,)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_malformed_input_is_one_line_and_changes_nothing(case, tmp_path, monkeypatch):
    check(case, tmp_path, monkeypatch)
