"""Writes the summary of docs/replication.md from the tables of that page and of results/replication/tables.txt.

    python benchmarks/replication_summary.py        # then: make format

The tables are those of `benchmarks/replication.py`. Verdicts follow from the intervals (`judged`), except
for claims that are not about a difference in A.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "replication.md"
TABLES = Path(__file__).parent / "results" / "replication" / "tables.txt"
"""Tables that the page does not show."""

MARGIN = 0.02
"""The paper's margin for a difference in A."""

UNTESTABLE = "not testable here"
"""Verdict on a claim about something that hardly varies in the lab."""

COLUMNS = {
    "difference in A": "A",
    "ratio of B": "B",
    "ratio of compute": "compute",
    "ratio of device-hours": "hours",
}
"""Short names of columns in `CLAIMS`."""

COUNTED = "The page judges"
"""Beginning of the paragraph after the table."""

Rows = dict[str, dict[str, str]]
"""Cells of a table: {first cell of the row: {column: cell}}."""


class Claim(NamedTuple):
    """A claim of the paper.

    Example: `Claim("k = 4 and k = 8 perform alike (3.1)", "A {staleness[pipeline-4][A]}", {"staleness/pipeline-4": 0})`
    """

    claim: str
    here: str
    """What the lab shows; fields are filled from the tables: {study[arm][column]}."""
    verdict: str | dict[str, float]
    """The verdict, or the paper's difference in A of each STUDY/ARM; 0: no difference."""


CLAIMS = (
    Claim(
        "a sigmoid predicts out of sample, a power law does not (2.1, A.4)",
        "median error from half of the compute {foresight[sigmoid (posterior)][median error]} against "
        "{foresight[power law][median error]}; worse in {foresight[power law][worse than the sigmoid]} runs",
        "agrees",
    ),
    Claim(
        "half of a run predicts the whole (2.1)",
        "error of the level at the end: median {levels[0]}, 90% of the runs within {levels[1]}",
        "agrees",
    ),
    Claim(
        "leave-one-out: no component moves A by more than 0.02 (4)",
        "all 8 within {loo.shift}, but only differences beyond {loo.excluded} are excluded, not those beyond 0.02",
        "undecided",
    ),
    Claim(
        "leave-one-out: the whole recipe has the highest B (4)",
        "B of the others is {loo.steepness} times as large; every interval contains 1",
        "undecided",
    ),
    Claim(
        "DAPO's loss has a lower ceiling, 0.52 against 0.595 (3.2)",
        "A {loo[dapo][A]} at {loo[dapo][compute]} times the compute",
        {"loo/dapo": -0.075},
    ),
    Claim("GSPO and CISPO perform alike (3.2)", "at 480 updates, two seeds: A {beyond[gspo][A]}", "undecided"),
    Claim("CISPO's cap does not matter (A.17)", "cap 8: A {losses[cispo-8][A]}", {"losses/cispo-8": 0}),
    Claim(
        "DAPO's upper clip moves A (3.2, A.17)",
        "0.2: A {losses[dapo-0.2][A]}; 0.26: {losses[dapo][A]}; 0.3: {losses[dapo-0.3][A]}",
        "undecided",
    ),
    Claim("PipelineRL has the same A as PPO-off-policy (3.1)", "PPO-off-policy-8: A {loo[8op][A]}", {"loo/8op": 0}),
    Claim(
        "PipelineRL needs fewer device-hours (3.1)",
        "PPO-off-policy-8 needs {hours[loo, 8op][hours]} and {hours[staleness, ppo-8][hours]} times as many; an arm "
        "that changes nothing needs {hours[loo, fp32][hours]}",
        "undecided",
    ),
    Claim(
        "k = 4 and k = 8 perform alike (3.1)",
        "where k = 8 limits the staleness: A of k = 4 {staleness[pipeline-4][A]}",
        {"staleness/pipeline-4": 0},
    ),
    Claim(
        "the prompt average is better than the sample average (3.2)",
        "answers of similar length, 28 tokens on average; sample average: A {loo[savg][A]}",
        UNTESTABLE,
    ),
    Claim(
        "the prompt average is better than the token average (3.2)",
        "the same; token average: A {choices[token-average][A]}",
        UNTESTABLE,
    ),
    Claim(
        "the three normalizations perform alike (3.2)",
        "group: A {loo[plan][A]}; none: {choices[no-norm][A]}",
        {"loo/plan": 0, "choices/no-norm": 0},
    ),
    Claim("dropping zero-variance prompts raises A (3.2)", "kept: A {loo[batch][A]}", {"loo/batch": -MARGIN}),
    Claim(
        "No-Positive-Resampling raises A (3.2)",
        "uniform sampling over 7.5 epochs: A {curriculum-clean[uniform-sampling][A]}; with 12% wrong reference answers "
        "{curriculum[uniform-sampling][A]}",
        {"curriculum-clean/uniform-sampling": -MARGIN, "curriculum/uniform-sampling": -MARGIN},
    ),
    Claim(
        "interruption and length penalty perform alike (3.2, A.10)",
        "penalty: A {loo[lp][A]}; with very long answers {rambling[lp][A]}",
        {"loo/lp": 0, "rambling/lp": 0},
    ),
    Claim(
        "the FP32 head raises A from 0.52 to 0.61 (3.2)",
        "not measured in bf16; a [simulated coarse head](#a-lab-in-which-ceilings-should-differ) changes A of DAPO's "
        "loss by {ceilings[dapo-coarse][A]}, that of CISPO by {ceilings[cispo-coarse][A]}",
        "undecided",
    ),
    Claim(
        "larger batches are slower at first (5)",
        "twice the batch: {scale[prompts-32][compute]} times the compute for a level †",
        "agrees",
    ),
    Claim(
        "larger batches end higher (5)",
        "twice the batch: A {scale[prompts-32][A]} †",
        {"scale/prompts-32": MARGIN},
    ),
    Claim(
        "generations per prompt make no difference (5)",
        "32 instead of 16: A {scale[generations-32][A]} †",
        {"scale/generations-32": 0},
    ),
    Claim(
        "longer generations end higher (5)",
        "a limit of 54 instead of 69 tokens, with answers of 28: A {scale[length-54][A]}",
        UNTESTABLE,
    ),
    Claim(
        "larger models end higher (5)",
        "1.5 times the width: A {scale[width-96][A]} †",
        {"scale/width-96": MARGIN},
    ),
    Claim(
        "a mixture of experts ends higher, 0.71 against 0.61 (2.1)",
        "4 experts, 2 active, against the dense model with as many active weights: A {experts[experts-4][A]} at "
        "{experts[experts-4][compute]} times the compute",
        {"experts/experts-4": MARGIN},
    ),
    Claim(
        "two tasks trained together keep their curves (5)",
        "arithmetic: A {mixed[mixed][A]} at {mixed[mixed][compute]} times the compute",
        {"mixed/mixed": 0},
    ),
    Claim(
        "MiniMax's recipe has the ceiling of ScaleRL (2.2)",
        "A {recipes[minimax][A]} at {recipes[minimax][compute]} times the compute",
        {"recipes/minimax": 0},
    ),
    Claim(
        "Magistral, DAPO and GRPO end at 0.535, 0.52 and 0.49, not 0.61 (2.2)",
        "A {recipes[magistral][A]}, {recipes[dapo][A]} and {recipes[grpo][A]}",
        {"recipes/magistral": -0.075, "recipes/dapo": -0.09, "recipes/grpo": -0.12},
    ),
)
"""The claims, with their sections in the paper in parentheses."""


class Table(Rows):
    """A table of arms."""

    @property
    def shift(self) -> str:
        """Largest absolute difference in A."""
        return f"{max(abs(float(row['A'].split()[0])) for row in self.values() if row['A']):.3f}"

    @property
    def excluded(self) -> str:
        """Smallest absolute difference in A that is outside the intervals of all arms."""
        return f"{max(abs(end) for row in self.values() if row['A'] for end in interval(row['A'])):.3f}"

    @property
    def steepness(self) -> str:
        """Range of the ratios of B."""
        ratios = [float(row["B"].split()[0]) for row in self.values() if row["B"]]
        return f"{min(ratios):.2f} to {max(ratios):.2f}"


def interval(cell: str) -> tuple[float, float]:
    """Return the ends of a cell such as "+0.008 (-0.017 to +0.034)"."""
    low, high = re.findall(r"([+-]?[\d.]+) to ([+-]?[\d.]+)", cell)[0]
    return float(low), float(high)


def tables(text: str) -> dict[str, Table]:
    """Return the tables of a text: of a study under its name, of `foresight` and of device-hours (`hours`)."""
    found, study = {}, ""
    for line, table in re.findall(r"-o studies/(\S+)\n|((?:^\|.*\n)+)", text, flags=re.MULTILINE):
        study = line or study
        if not table:
            continue
        head, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines())
        names = {"arm": study, "predicted by": "foresight", "study, arm": "hours"}
        if head[0] in names:
            keys = [COLUMNS.get(name, name) for name in head[1:]]
            found[names[head[0]]] = Table({row[0]: dict(zip(keys, row[1:], strict=True)) for row in rows})
    return found


def judged(cell: str, effect: float) -> str:
    """Return whether an interval of a difference in A agrees with an effect; 0: with no difference.

    "No difference" agrees if the interval lies within twice the margin. An effect agrees if the interval excludes 0 on
    its side, and disagrees if the interval excludes an effect as large as the paper's.
    """
    low, high = interval(cell)
    if effect == 0:
        return "disagrees" if low > 0 or high < 0 else "agrees" if max(-low, high) <= 2 * MARGIN else "undecided"
    if effect < 0:
        low, high = -high, -low
    return "agrees" if low > 0 else "disagrees" if high < abs(effect) else "undecided"


def verdict(claim: Claim, cells: dict[str, Table]) -> str:
    """Return the verdict on a claim; claims about more than one arm are undecided if their verdicts differ."""
    if isinstance(claim.verdict, str):
        return claim.verdict
    each = {judged(cells[name.split("/")[0]][name.split("/")[1]]["A"], e) for name, e in claim.verdict.items()}
    return each.pop() if len(each) == 1 else "undecided"


def summary(page: str) -> str:
    """Return the summary of a page, a Markdown table."""
    cells = tables(page + TABLES.read_text(encoding="utf-8"))
    text = " ".join(page.split())
    levels = re.search(r"from the whole run, differ by ([\d.]+) in the median, by at most ([\d.]+) in 90%", text)
    assert levels, f"no sentence on the levels at the end in {PAGE}"
    rows = [
        f"| {claim.claim} | {claim.here.format_map({**cells, 'levels': levels.groups()})} | {verdict(claim, cells)} |"
        for claim in CLAIMS
    ]
    return "\n".join(["| claim of the paper | here | verdict |", "| -- | -- | -- |", *rows]) + "\n\n" + counts(cells)


def counts(cells: dict[str, Table]) -> str:
    """Return a paragraph on the number of verdicts, and of differences that chance alone is expected to show."""
    verdicts = Counter(verdict(claim, cells) for claim in CLAIMS)
    arms = sum(row.get("verdict", "reference") != "reference" for table in cells.values() for row in table.values())
    words = ", ".join(f"{verdicts[name]} {text}" for name, text in (
        ("agrees", "agree"), ("disagrees", "disagree"), ("undecided", "are undecided"),
        (UNTESTABLE, "cannot be tested here"),
    ))  # fmt: skip
    text = (
        f"{COUNTED} {len(CLAIMS)} claims: {words}. The studies compare {arms} arms with a reference, each at the 5% "
        f"level, so about {0.05 * arms:.0f} of them are expected to show a difference that is not there."
    )
    return textwrap.fill(text, 100) + "\n\n"


def with_summary(page: str) -> str:
    """Return a page with its summary, the table and the paragraph after it, replaced."""
    made = summary(page)
    pattern = rf"^\| claim of the paper \|.*\n(?:\|.*\n)*\n*(?:{COUNTED}(?:.+\n)*\n*)?"
    return re.sub(pattern, lambda _: made, page, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(with_summary(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
