"""`scalerl score`: scores the completions of a file with a verifier."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

from scalerl.cli.options import Parser, add_json, number
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import ConfigError, short
from scalerl.core.files import check_file, trouble
from scalerl.core.packages import prepare_environment
from scalerl.core.types import Prompt, Score
from scalerl.reading.curves.estimate import percent
from scalerl.training.config import Scoring
from scalerl.training.config.base import build, is_utf8
from scalerl.training.config.data import PromptFile
from scalerl.training.prompts.files import read_objects
from scalerl.training.rewards.audit import Audit
from scalerl.training.rewards.checks import check_tests, sandbox_line
from scalerl.training.rewards.scoring import judge_all, verifier_scorer
from scalerl.training.rewards.user_rewards import Failures
from scalerl.training.rewards.verifiers import VERIFIERS


def score_parser() -> Parser:
    """Return the parser of `scalerl score`."""
    words = "Score rows {prompt, completion, answer or tests}; print verdicts and a summary (docs/rewards.md)."
    parser = Parser(prog="scalerl score", description=words)
    parser.add_argument("file", type=Path, help="JSONL: one object per line")
    parser.add_argument("--task", required=True, help="verifier, such as math or code")
    parser.add_argument("--workers", type=int, default=0, help="completions scored in parallel; default: one per core")
    parser.add_argument("--timeout", type=number, help="seconds per completion; default: scoring.timeout_s")
    parser.add_argument("--sandbox", default="bubblewrap", help="bubblewrap (default) or unsafe (scoring.sandbox.mode)")
    parser.add_argument("--packages", default="", metavar="A,B", help="modules for programs (scoring.sandbox.packages)")
    parser.add_argument("--audit", action="store_true", help="compare with `expected` in the rows, or with --against")
    parser.add_argument("--against", metavar="TASK", help="audit: another verifier, whose verdicts are expected")
    parser.add_argument("--closed-forms", action="store_true", help="math: accept 2^10 for 1024 (scoring.closed_forms)")
    add_json(parser, "print one JSON object per row, in order")
    return parser


def run_score(words: list[str]) -> int:
    """Print the verdicts; return the exit code.

    Raises:
        ConfigError: The verifier is unknown, a row is invalid, or there is no sandbox for programs.
    """
    arguments = score_parser().parse_args(words)
    prepare_environment()
    scoring = _settings(arguments)
    allowed = sorted({*VERIFIERS} - {"custom"})  # it would run the code that a row names; rows are data
    if arguments.task not in allowed:
        raise ConfigError(f"--task: got {arguments.task!r}; allowed: {', '.join(allowed)}")
    rows = list(_rows(arguments.file, arguments.task))
    expected = _expected(rows, arguments, scoring) if arguments.audit or arguments.against else None
    if arguments.task == "code":
        line = sandbox_line(scoring.sandbox, [prompt for prompt, _ in rows])  # raises an error without a sandbox
        if not arguments.json:
            print_lines(line)
    if expected is not None:
        return _audit(rows, expected, arguments, scoring)
    passed, total, judged, count = 0, 0.0, 0, 0
    for row, (prompt, score) in enumerate(_judged(rows, arguments.task, scoring), start=1):
        value, count = (score.reward + 1) / 2, row
        if score.counted:
            passed, total, judged = passed + score.passed, total + value, judged + 1
        if arguments.json:
            verdict = {"passed": score.passed, "score": value} if score.counted else {"passed": None, "score": None}
            print(json.dumps({**verdict, "reason": score.reason}), flush=True)
        elif score.counted:
            print_lines(f"{'pass' if score.passed else 'FAIL'}  {value:.2f}  {prompt.where}  {score.reason}")
        else:
            print_lines(f"none        {prompt.where}  {score.reason}")
    if not arguments.json:
        rates = f" ({percent(passed / judged)}), mean score {total / judged:.3f}" if judged else ""
        missing = f"; {count - judged} have no verdict and are not counted" if judged < count else ""
        print_lines(f"{passed} of {judged} passed{rates}{missing}")
    return 0


def _judged(rows: list[tuple[Prompt, str]], task: str, scoring: Scoring) -> Iterator[tuple[Prompt, Score]]:
    scorer = verifier_scorer(task, scoring)
    scorer.failures = Failures(task, limit=1.0)  # never stop: failures are printed with the rows
    return judge_all(scorer, rows)


def _expected(rows: list[tuple[Prompt, str]], arguments: argparse.Namespace, scoring: Scoring) -> list[bool | None]:
    """Return the verdict that each row should have: its column `expected`, or that of the verifier `--against`.

    Raises:
        ConfigError: The verifier is unknown, or a row has no expected verdict.
    """
    if arguments.against:
        allowed = sorted({*VERIFIERS} - {"custom", "code"})
        if arguments.against not in allowed:
            raise ConfigError(f"--against: got {arguments.against!r}; allowed: {', '.join(allowed)}")
        scores = (score for _, score in _judged(rows, arguments.against, scoring))
        return [score.passed if score.counted else None for score in scores]
    for prompt, _ in rows:
        if not isinstance(prompt.columns.get("expected"), bool):
            raise ConfigError(
                f"{prompt.where}: 'expected' is {short(prompt.columns.get('expected'))}; allowed: true or false in "
                "each row, or --against TASK for the verdicts of another verifier"
            )
    return [prompt.columns["expected"] for prompt, _ in rows]


def _audit(
    rows: list[tuple[Prompt, str]], expected: list[bool | None], arguments: argparse.Namespace, scoring: Scoring
) -> int:
    """Print the confusion table of a verifier, and its errors by `kind` (or `fault`) of the rows."""
    audit, formless = Audit(), 0
    for (prompt, text), target, (_, score) in zip(rows, expected, _judged(rows, arguments.task, scoring), strict=True):
        kind = str(prompt.columns.get("kind") or prompt.columns.get("fault") or "all")
        formless += score.form == "none"
        passed = score.passed if score.counted and target is not None else None
        audit.add(bool(target), passed, kind, f"{prompt.where}: {short(text)} for {short(prompt.answer)}")
    if arguments.json:
        print(json.dumps({**audit.to_dict(), "no form": formless}))
        return 0
    for line in audit.lines():
        print_lines(line)
    if formless:
        print_lines(f"{formless} of {len(rows)} completions have no answer in a form of docs/rewards.md")
    return 0


def _settings(arguments: argparse.Namespace) -> Scoring:
    values = {
        "workers": arguments.workers or os.cpu_count() or 1,
        "sandbox": {"mode": arguments.sandbox, "packages": [name for name in arguments.packages.split(",") if name]},
        "closed_forms": arguments.closed_forms,
        **({"timeout_s": arguments.timeout} if arguments.timeout is not None else {}),
    }
    return build(Scoring, values, "scalerl score")


def _rows(path: Path, task: str) -> Iterator[tuple[Prompt, str]]:
    """Yield the prompt, with file and line, and the completion of each row.

    Raises:
        ConfigError: The file does not exist, or a row is invalid; the message names file, line and field.
    """
    try:
        check_file(path)
    except OSError as error:
        raise ConfigError(trouble(error)) from None
    number = 0
    for place, row in read_objects(build(PromptFile, {"path": os.path.join(".", path)}, "file")):
        number += 1
        if not isinstance(row.get("completion"), str):
            raise ConfigError(f"{place}: 'completion' is missing or not text; allowed: an object with 'completion'")
        if task in ("math", "arithmetic", "programs") and row.get("answer") in (None, ""):
            raise ConfigError(f"{place}: 'answer' is {row.get('answer')!r}; allowed: the reference answer")
        if isinstance(row.get("answer"), bool | list | dict):
            raise ConfigError(f"{place}: 'answer' is {short(row['answer'])}; allowed: text or a number")
        if not is_utf8(json.dumps(row, ensure_ascii=False)):
            raise ConfigError(f"{place}: got a lone surrogate; write the whole character")
        prompt = row.get("prompt", "")
        checked = Prompt(f"{number:016x}", prompt if isinstance(prompt, str) else json.dumps(prompt), (),
                       str(row.get("answer", "")), task, row, place)  # fmt: skip
        if task == "code":
            check_tests([checked])
        yield checked, row["completion"]
    if not number:
        raise ConfigError(f"{path}: the file has no rows; allowed: one JSON object per line")
