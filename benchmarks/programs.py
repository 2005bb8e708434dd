"""Measures the rate of programs in fresh sandboxes, and whether HumanEval's references pass and broken copies fail.

    python benchmarks/programs.py                            # generated programs per second, by form of test
    python benchmarks/programs.py HumanEval.jsonl.gz         # all references, and one broken copy of each
    python benchmarks/programs.py HumanEval.jsonl.gz --json results.json

A broken copy has one changed operator. Not every change has an effect: with `<` instead of `<=`, the results may be the
same on all inputs of the tests. Copies are therefore tried in the order of the operators in the program, and the first
whose results differ from the reference's on the arguments of the tests counts as broken. This does not use the expected
values of the tests: both programs run on the arguments that `check` passes. The benchmark then checks that the copy
fails. If no operator has an effect, the name of a function is changed (`lower` to `upper`), or else a constant.
Problems without a broken copy are listed and not counted.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scalerl.training.config.placement import Sandbox
from scalerl.training.rewards.code import ProgramJudge
from scalerl.training.rewards.code_answer import with_prompt
from scalerl.training.rewards.code_tests import Calls, Checks, InputOutput, Tests, read_tests
from scalerl.training.rewards.sandbox.box import BoxEnded, BoxLate
from scalerl.training.rewards.sandbox.detect import offer
from scalerl.training.rewards.sandbox.guest.plain import dumps, loads

SPEED: dict[str, tuple[str, Tests]] = {
    "one input": ("print(sum(map(int, input().split())))", InputOutput(("3 4\n",), ("7\n",))),
    "ten inputs": ("print(sum(map(int, input().split())))", InputOutput(("3 4\n",) * 10, ("7\n",) * 10)),
    "ten calls": ("def f(x): return x + 1", Calls("f", ([1],) * 10, (2,) * 10)),
    "three assertions": ("def f(x): return x + 1", Checks("", "assert f(1) == 2\n" * 3, ("f",))),
}

SWAPS: dict[type, list[type]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Add],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.Lt: [ast.GtE, ast.LtE],
    ast.LtE: [ast.Gt, ast.Lt],
    ast.Gt: [ast.LtE, ast.GtE],
    ast.GtE: [ast.Lt, ast.Gt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
    ast.USub: [ast.UAdd],
    ast.BitXor: [ast.BitAnd],
    ast.BitAnd: [ast.BitOr],
}


def speed(count: int, workers: int) -> list[dict[str, Any]]:
    rows = []
    for name, (program, tests) in SPEED.items():
        judges = [ProgramJudge(Sandbox()) for _ in range(workers)]
        try:
            began, before = time.perf_counter(), os.times()

            def some(judge: ProgramJudge, program: str = program, tests: Tests = tests) -> int:
                return sum(judge.verdict(program, tests).passed for _ in range(count // workers))

            with ThreadPoolExecutor(workers) as threads:
                passed = sum(threads.map(some, judges))
            seconds, after = time.perf_counter() - began, os.times()
        finally:
            for judge in judges:
                judge.close()
        cpu = sum(after[:4]) - sum(before[:4])
        row = {"form": name, "programs": count // workers * workers, "passed": passed, "seconds": round(seconds, 2)}
        rows.append({**row, "programs_per_s": round(passed / seconds, 1), "own_cpu_ms": round(1e3 * cpu / passed, 1)})
        print(f"{name:<20} {passed:>5} programs  {passed / seconds:6.1f} per second on {workers} workers", flush=True)
    return rows


NAMES = {
    "lower": "upper", "upper": "lower", "swapcase": "lower", "min": "max", "max": "min", "any": "all", "all": "any",
    "startswith": "endswith", "sorted": "list", "set": "list", "sum": "max", "ceil": "floor", "insert": "extend",
    "int": "str", "len": "max",
}  # fmt: skip
"""Replacements of function names, for programs in which no operator matters."""


def changed(source: str) -> Iterator[str]:
    """Yield copies of a program with one change each: first its operators, then names of functions, then constants."""
    nodes = list(ast.walk(ast.parse(source)))
    plain = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings, which have no effect
    for changes in (operators, names, constants):
        for index, node in enumerate(nodes):
            for field, position, value in changes(node) if id(node) not in plain else []:
                tree = ast.parse(source)
                copy = list(ast.walk(tree))[index]
                if position is None:
                    setattr(copy, field, value)
                else:
                    getattr(copy, field)[position] = value
                yield ast.unparse(tree)


Change = tuple[str, int | None, Any]
"""A field of a node, a position in it or None, and the new value."""


def operators(node: ast.AST) -> list[Change]:
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp | ast.UnaryOp):
        return [("op", None, kind()) for kind in SWAPS.get(type(node.op), [])]
    if isinstance(node, ast.Compare):
        return [("ops", i, kind()) for i, op in enumerate(node.ops) for kind in SWAPS.get(type(op), [])]
    return []


def names(node: ast.AST) -> list[Change]:
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        return [("attr", None, NAMES[node.attr])]
    if isinstance(node, ast.Name) and node.id in NAMES:
        return [("id", None, NAMES[node.id])]
    return []


def constants(node: ast.AST) -> list[Change]:
    if not isinstance(node, ast.Constant):
        return []
    if isinstance(node.value, bool):
        return [("value", None, not node.value)]
    if isinstance(node.value, int | float):
        return [("value", None, node.value + 1)]
    return [("value", None, node.value + "x")] if isinstance(node.value, str) else []


def arguments_of(judge: ProgramJudge, program: str, tests: Checks) -> list[list[Any]]:
    """Return the arguments with which `check` calls a correct program, from the messages between the two sandboxes."""
    seen: list[list[Any]] = []
    checker, box = judge._pool.take(), judge._pool.take()
    try:
        ends = time.monotonic() + 60
        judge._serve(box, program, ends)
        words = {"setup": tests.setup, "tests": tests.tests, "names": list(tests.names), "entry": tests.entry}
        checker.begin("check", ends, **words, runner=tests.runner)
        kind, payload = checker.receive(ends)
        while kind in (b"A", b"K"):
            if kind == b"A":
                seen.append(list(loads(payload, str)[3]))
            box.send(b"A", payload, ends)
            answer, data = box.receive(ends)
            checker.send(answer, data, ends)
            kind, payload = checker.receive(ends)
    finally:
        checker.close()
        box.close()
    return seen


def results(judge: ProgramJudge, program: str, name: str, calls: list[list[Any]]) -> list[bytes]:
    """Return the results of calls of a program as bytes, until the program ends."""
    found: list[bytes] = []
    box = judge._pool.take()
    try:
        judge._serve(box, program, time.monotonic() + 10)
    except Exception:  # a copy that does not start also differs
        box.close()
        return found
    try:
        for arguments in calls:
            deadline = time.monotonic() + 2
            box.send(b"A", dumps(["call", name, "", arguments, {}]), deadline)
            found.append(b"".join(box.receive(deadline)))
    except (BoxEnded, BoxLate):
        pass
    finally:
        box.close()
    return found


def humaneval(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    judge = ProgramJudge(Sandbox(test_s=3.0))
    wrong, believed, without, tried = [], [], [], 0
    began = time.perf_counter()
    for row in rows:
        tests, entry = read_tests(row), row["entry_point"]
        assert isinstance(tests, Checks)
        right = with_prompt(row["canonical_solution"], row["prompt"], entry)
        assert right is not None
        found = judge.verdict(right, tests)
        if not found.passed:
            wrong.append({"task": row["task_id"], "reason": found.reason})
            continue
        calls = arguments_of(judge, right, tests)
        expected = results(judge, right, entry, calls)
        for copy in changed(right):
            tried += 1
            if results(judge, copy, entry, calls) != expected:
                break
        else:
            without.append(row["task_id"])
            continue
        if judge.verdict(copy, tests).passed:
            believed.append({"task": row["task_id"], "copy": copy})
    judge.close()
    broken = len(rows) - len(wrong) - len(without)
    print(f"{len(rows) - len(wrong)} of {len(rows)} references pass; failed: {wrong}")
    print(f"{broken - len(believed)} of {broken} broken copies fail ({tried} changes tried)")
    print(f"without a change that matters on the tests' arguments: {without}")
    for row in believed:
        print(f"passed although changed: {row['task']}\n{row['copy']}")
    return {
        "references": len(rows), "references_failed": wrong, "broken": broken, "broken_passed": believed,
        "without_a_change_that_matters": without, "changes_tried": tried,
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="HumanEval rows; none: the speed is measured")
    parser.add_argument("--count", type=int, default=200, help="programs of each form")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    line = offer(Sandbox()).line
    print(line)
    load = os.getloadavg()[0]
    found: Any = humaneval(arguments.file) if arguments.file else speed(arguments.count, arguments.workers)
    if arguments.json:
        arguments.json.write_text(json.dumps({"sandbox": line, "load_before": load, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
