"""Measures the rate of mathematical verdicts, and their agreement with Math-Verify and with the truth.

    python benchmarks/verdicts.py --json benchmarks/results/verdicts.json

The 2,000 answers are generated: 250 prompts of 14 families with 8 completions each, as in a group; each answer is right
or wrong by construction. They are scored by the verifier as in a run (workers, cache of parsed formulas), and by
Math-Verify alone with its default cache in one process. Every difference is listed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from scalerl.core.types import Prompt
from scalerl.training.config import Scoring
from scalerl.training.rewards.scoring import ProcessScorer
from scalerl.training.rewards.verifiers import VERIFIERS

Made = tuple[str, list[str], list[str]]
"""A reference answer, equivalent forms of it, and wrong answers."""


def integer(r: random.Random) -> Made:
    n = r.randint(-50, 400)
    return str(n), [str(n), f"{n}.0"], [str(n + 1), str(-n - 7)]


def thousands(r: random.Random) -> Made:
    n = r.randint(1_000, 99_999)
    return str(n), [f"{n:,}", f"{n:,}".replace(",", "{,}"), str(n)], [str(n * 10), f"{n + 1:,}"]


def money(r: random.Random) -> Made:
    n = r.randint(2, 99)
    return f"\\${n}", [str(n), f"\\${n}", f"{n}.00"], [str(n + 1), f"\\${n * 10}"]


def fraction(r: random.Random) -> Made:
    p, q = r.randint(1, 20), r.randint(2, 20)
    least = Fraction(p, q)
    return f"\\frac{{{p}}}{{{q}}}", [
        f"\\frac{{{2 * p}}}{{{2 * q}}}", f"\\dfrac{{{p}}}{{{q}}}", f"{p}/{q}",
        f"\\frac{{{least.numerator}}}{{{least.denominator}}}",
    ], [f"\\frac{{{p + 1}}}{{{q}}}", f"\\frac{{{q}}}{{{p + q}}}"]  # fmt: skip


def decimal(r: random.Random) -> Made:
    n = r.randint(1, 399)
    return f"{n / 8}", [f"\\frac{{{n}}}{{8}}", f"{n / 8}"], [f"{n / 8 + 0.5}", f"\\frac{{{n}}}{{9}}"]


def percent(r: random.Random) -> Made:
    n = r.randint(1, 99)
    return f"{n}\\%", [f"{n}\\%", f"{n}%"], [f"{n + 1}\\%", f"{n * 2}\\%"]


def surd(r: random.Random) -> Made:
    a, b = r.randint(2, 9), r.choice([2, 3, 5, 7])
    return (
        f"{a}\\sqrt{{{b}}}",
        [f"\\sqrt{{{a * a * b}}}", f"{a}\\sqrt{{{b}}}"],
        [f"{a}\\sqrt{{{b + 1}}}", f"\\sqrt{{{a * b}}}"],
    )


def circle(r: random.Random) -> Made:
    a = r.randint(2, 30)
    return f"{a}\\pi", [f"{a}\\pi", f"\\pi \\cdot {a}"], [f"{a + 1}\\pi", f"{a}\\pi^2"]


def polynomial(r: random.Random) -> Made:
    a, b = r.randint(1, 9), r.randint(1, 9)
    product = f"x^2 + {a + b}x + {a * b}"
    return f"(x+{a})(x+{b})", [product, f"(x+{b})(x+{a})"], [f"x^2 + {a + b}x + {a * b + 1}", f"(x+{a})(x-{b})"]


def interval(r: random.Random) -> Made:
    a, b = sorted(r.sample(range(-20, 20), 2))
    return f"[{a}, {b})", [f"[{a},{b})", f"\\left[{a}, {b}\\right)"], [f"[{a}, {b}]", f"({a}, {b})"]


def pair(r: random.Random) -> Made:
    a, b = sorted(r.sample(range(1, 60), 2))
    return f"({a}, {b})", [f"({a},{b})", f"\\left({a}, {b}\\right)"], [f"({b}, {a})", f"({a}, {b + 1})"]


def finite_set(r: random.Random) -> Made:
    a, b, c = sorted(r.sample(range(1, 60), 3))
    right = [f"\\{{{c}, {a}, {b}\\}}", f"\\{{{a},{b},{c}\\}}"]
    return f"\\{{{a}, {b}, {c}\\}}", right, [f"\\{{{a}, {b}\\}}", f"\\{{{a}, {b}, {c + 1}\\}}"]


def power(r: random.Random) -> Made:
    a, b = r.randint(2, 5), r.randint(3, 9)
    return f"{a}^{{{b}}}", [str(a**b), f"{a}^{b}"], [str(a**b + 1), f"{b}^{{{a + 1}}}"]


def equation(r: random.Random) -> Made:
    n = r.randint(2, 99)
    return f"x = {n}", [f"x={n}", str(n)], [f"x = {n + 1}", str(-n)]


FAMILIES: list[Callable[[random.Random], Made]] = [
    integer, integer, thousands, money, fraction, decimal, percent, surd, circle, polynomial, interval, pair,
    finite_set, power, equation,
]  # fmt: skip

SHAPES = [
    "<think>I try ${wrong}$ first.</think>So the answer is $\\boxed{{{given}}}$.",
    "<think>Let $y = 3$.</think>We have $y + 1 = 4$, and after some steps\n\n$$\\boxed{{{given}}}$$",
    "</think>The final answer is ${given}$. I hope it is correct.",
    "</think>\\boxed{{{given}}}",
]


def make(seed: int = 0) -> list[dict[str, Any]]:
    """Return 2,000 answers: family, reference, completion, right."""
    r, rows = random.Random(seed), []
    for number in range(250):
        family = FAMILIES[number % len(FAMILIES)]
        reference, right, wrong = family(r)
        for _ in range(8):
            is_right = r.random() < 0.5
            given = r.choice(right if is_right else wrong)
            text = r.choice(SHAPES).format(given=given, wrong=r.choice(wrong))
            row = {"prompt": number, "family": family.__name__, "reference": reference}
            rows.append({**row, "text": text, "right": is_right})
    return rows


def ours(rows: list[dict[str, Any]], workers: int) -> tuple[list[bool], float]:
    """Return the verdicts of a run's verifier, and their time in seconds, without the start of the workers."""
    scorer = ProcessScorer("math", VERIFIERS["math"], Scoring(workers=workers, timeout_s=60))
    try:
        warm = [scorer.submit(Prompt("w", "", (), "1", "math"), ["\\boxed{1}"]) for _ in range(4 * workers)]
        for pending in warm:
            pending.finish(pending.futures)
        began = time.perf_counter()
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(row["prompt"], []).append(row)
        pendings = [
            scorer.submit(Prompt(str(n), "", (), some[0]["reference"], "math"), [row["text"] for row in some])
            for n, some in groups.items()
        ]
        scores = [score.passed for pending in pendings for score in pending.finish(pending.futures)]
        return scores, time.perf_counter() - began
    finally:
        scorer.close()


def plain(rows: list[dict[str, Any]]) -> tuple[list[bool], float]:
    """Return the verdicts of Math-Verify with its defaults, except for its time limits, and their time in seconds."""
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    found, began = [], time.perf_counter()
    for row in rows:
        gold = parse(f"${row['reference']}$", parsing_timeout=None)
        given = parse(row["text"].rpartition("</think>")[2], parsing_timeout=None)
        found.append(bool(given) and bool(verify(gold, given, timeout_seconds=None)))
    return found, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    rows, load = make(), os.getloadavg()[0]
    judged, seconds = ours(rows, arguments.workers)
    alone, alone_s = plain(rows)
    families = list(dict.fromkeys(row["family"] for row in rows))
    table = []
    for family in families:
        of = [i for i, row in enumerate(rows) if row["family"] == family]
        same, true = sum(judged[i] == alone[i] for i in of), sum(judged[i] == rows[i]["right"] for i in of)
        table.append({"family": family, "answers": len(of), "as_math_verify": same, "as_constructed": true})
        print(f"{family:<12} {len(of):>5} answers  {same:>5} as Math-Verify  {true:>5} as constructed")
    exceptions = [
        {**row, "ours": mine, "math_verify": own}
        for row, mine, own in zip(rows, judged, alone, strict=True)
        if mine != own or mine != row["right"]
    ]
    for row in exceptions:
        outcome = f"right {row['right']} ours {row['ours']} Math-Verify {row['math_verify']}"
        print(f"reference {row['reference']!r} {outcome}: {row['text'][-70:]!r}")
    rate = len(rows) / seconds
    print(f"{len(rows)} verdicts, {rate:.0f} per second on {arguments.workers} workers (load {load:.1f})")
    print(f"Math-Verify alone: {len(rows) / alone_s:.0f} per second in one process")
    if arguments.json:
        found = {
            "verdicts": len(rows), "workers": arguments.workers, "per_second": round(rate, 1),
            "alone_per_second": round(len(rows) / alone_s, 1), "load_before": load, "families": table,
            "exceptions": exceptions,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
