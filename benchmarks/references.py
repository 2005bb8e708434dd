"""References of data sets as answers: each in ten spellings must pass, and no reference may pass for another.

python benchmarks/references.py gsm8k/test.jsonl aime24/test.jsonl
"""

import argparse
import json
import re
import time
from itertools import combinations
from pathlib import Path

from scalerl.core.types import Prompt
from scalerl.training.config import Scoring
from scalerl.training.prompts.layouts import after_hashes
from scalerl.training.rewards import math
from scalerl.training.rewards.equality import judge

WIDE = str.maketrans("0123456789.-", "０１２３４５６７８９．－")


def commas(answer: str) -> str:
    """Return a number with commas between its thousands."""
    match = re.fullmatch(r"(-?)(\d+)(\.\d+)?", answer)
    return f"{match[1]}{int(match[2]):,}{match[3] or ''}" if match else answer


SPELLINGS = (
    lambda a: f"So \\boxed{{{a}}}.",
    lambda a: f"<answer>{a}</answer>",
    lambda a: f"#### {commas(a)}",
    lambda a: f"I tried 41. The answer is ${a}$.",
    lambda a: f"The final answer is {commas(a)}.",
    lambda a: f"\\boxed{{\\text{{Total: }}\\${commas(a).replace(',', '{,}')}}}",
    lambda a: f"答案是：{a.translate(WIDE)}。",
    lambda a: f"$x = \\boxed{{\\mathbf{{{a}}}}}$",
    lambda a: f"First \\boxed{{7}}, but no.\n\n\\fbox{{ {a} \\text{{ dollars}} }}",
    lambda a: f"**Answer:** {a}.",
)


def read(path: Path) -> list[tuple[str, str]]:
    """Return question and reference of each row of a JSONL file in the columns of GSM8K or AIME."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [
        (row.get("question") or row.get("problem", ""), after_hashes(str(row["answer"])) or str(row["answer"]))
        for row in rows
    ]


def main() -> None:
    """Print what fails, and the speed of one core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    rows = [row for path in parser.parse_args().files for row in read(path)]
    math.prepare(Scoring())
    start, failed = time.perf_counter(), 0
    for question, answer in rows:
        prompt = Prompt("0" * 16, question, (1,), answer, "math", {"prompt": question})
        for spelled in SPELLINGS:
            if not math.verify(prompt, spelled(answer)).passed:
                failed += 1
                print(f"refused: {spelled(answer)!r} for {answer}")
    count = len(rows) * len(SPELLINGS)
    print(f"{failed} of {count} refused; {count / (time.perf_counter() - start):.0f} answers per second")
    different = {}
    for _, answer in rows:
        different.setdefault(answer.lstrip("0") or "0", answer)
    pairs = [pair for pair in combinations(different.values(), 2) if judge(*pair).equal]
    print(f"{len(pairs)} of {len(different) * (len(different) - 1) // 2} pairs of references are equal: {pairs[:10]}")


if __name__ == "__main__":
    main()
