"""Verifier of programs: it runs each program in a fresh sandbox and compares the results outside it.

A program's sandbox gets only the program and the inputs or arguments; the expected outputs stay in this process.
Assertions and `check` run in a second sandbox without code of the program. Their calls of the program and its results
pass through this process as plain data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any, TypeVar

from scalerl.core.errors import raising
from scalerl.core.limits import SANDBOX_SPARE_S, SANDBOX_START_S
from scalerl.core.types import Prompt
from scalerl.training.config.placement import Sandbox
from scalerl.training.config.run import Scoring
from scalerl.training.rewards.base import Verdict, verdict
from scalerl.training.rewards.code_answer import difference, program_of, value_difference, with_prompt
from scalerl.training.rewards.code_tests import Calls, Checks, InputOutput, Tests, read_tests
from scalerl.training.rewards.sandbox.box import Box, BoxEnded, BoxFlood, BoxLate, BoxPool
from scalerl.training.rewards.sandbox.commands import OUTPUT_KB
from scalerl.training.rewards.sandbox.detect import offer
from scalerl.training.rewards.sandbox.guest.plain import dumps, loads
from scalerl.training.rewards.sandbox.guest.program import FROM

T = TypeVar("T")
MOST_QUESTIONS = 100_000
"""Maximum number of calls that the tests of one program may make."""


class Failed(Exception):
    """The program failed a test. The message describes the failure."""


class ProgramJudge:
    """Runs the tests of programs one after another, each in fresh sandboxes."""

    def __init__(self, settings: Sandbox) -> None:
        """Find this machine's sandbox.

        Raises:
            ConfigError: The machine has no sandbox.
        """
        self._settings = settings
        self._pool = BoxPool(offer(settings))

    def verdict(self, program: str, tests: Tests) -> Verdict:
        """Return whether a program passes all tests; stop at the first failure."""
        passed, text = self._run(lambda ends: TEST_KINDS[type(tests)](self, program, tests, ends))
        return verdict(passed, f"passed: {text}" if passed else text)

    def output(self, program: str) -> str:
        """Return what a program prints, and why it failed if it did."""

        def printed(ends: float) -> str:
            with closing(self._pool.take()) as box:
                box.begin("stdin", self._soon(ends), program=program)
                return _of_program(self._report(box, "", ends), self._printed)

        return self._run(printed)[1]

    def _run(self, work: Callable[[float], str]) -> tuple[bool, str]:
        """Return whether a program succeeded, and the text that `work`, given the deadline, returned; or the reason."""
        try:
            return True, work(time.monotonic() + self._settings.program_s)
        except Failed as failure:
            return False, str(failure)
        except BoxLate:
            return False, f"took longer than {self._settings.test_s:g} s, or {self._settings.program_s:g} s in total"
        except BoxFlood:
            return False, f"wrote more than {OUTPUT_KB} KiB"
        except BoxEnded as error:
            return False, f"the program's process ended: {error}"

    def close(self) -> None:
        """Kill the sandboxes that were started in advance."""
        self._pool.close()

    # --------------------------------------------------------------------------------------------- the forms of tests

    def _input_output(self, program: str, tests: InputOutput, ends: float) -> str:
        with closing(self._pool.take()) as box:
            box.begin("stdin", self._soon(ends), program=program)
            for number, (stdin, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True), start=1):
                if problem := _of_program(self._report(box, stdin, ends), self._problem, expected, tests.tolerance):
                    raise Failed(f"test {number} of {len(tests.inputs)}: {problem}")
        return f"{len(tests.inputs)} tests"

    def _report(self, box: Box, stdin: str, ends: float) -> bytes:
        box.send(b"I", stdin.encode("utf-8", "surrogatepass"), self._soon(ends))
        kind, payload = box.receive(self._soon(ends, SANDBOX_START_S))  # the harness inside enforces test_s
        self._check_frame(kind, payload, b"O")
        return payload

    def _printed(self, report: dict[str, Any]) -> str:
        return str(report["output"].decode("utf-8", "replace")) + (self._problem(report, None) or "")

    def _problem(self, report: dict[str, Any], expected: str | None, tolerance: float = 0.0) -> str | None:
        """Return a description of what is wrong with one output; None if it is correct. Without `expected`, any is."""
        if report["why"] == "late":
            return f"took longer than {self._settings.test_s:g} s"
        if report["why"] == "flood":
            return f"wrote more than {OUTPUT_KB} KiB"
        if report["status"] != 0:
            detail = str(report["complaint"])[-200:].strip()
            return f"ended with exit status {report['status']}" + (f" ({detail})" if detail else "")
        return (
            None if expected is None else difference(report["output"].decode("utf-8", "replace"), expected, tolerance)
        )

    def _calls(self, program: str, tests: Calls, ends: float) -> str:
        with closing(self._pool.take()) as box:
            self._serve(box, program, ends)
            for number, (arguments, expected) in enumerate(zip(tests.arguments, tests.results, strict=True), start=1):
                box.send(b"J", dumps(["call", tests.name, "", arguments, {}]), self._soon(ends))
                kind, payload = box.receive(self._soon(ends))
                if kind == b"V":
                    problem = _of_program(payload, value_difference, expected, tests.wrapped, tests.tolerance)
                else:
                    problem = _of_program(payload, lambda error: f"{error[0]}: {error[1]}"[:300])
                if problem:
                    raise Failed(f"test {number} of {len(tests.results)}: {problem}")
        return f"{len(tests.results)} tests"

    def _checks(self, program: str, tests: Checks, ends: float) -> str:
        with closing(self._pool.take()) as checker, closing(self._pool.take()) as box:
            self._serve(box, program, ends)
            words = {"setup": tests.setup, "tests": tests.tests, "names": list(tests.names), "entry": tests.entry}
            checker.begin("check", self._soon(ends), **words, runner=tests.runner)
            return self._relay(checker, box, ends)

    def _relay(self, checker: Box, box: Box, ends: float) -> str:
        """Forward calls and results, without inspecting them, until the checker has its verdict.

        A frame, the end of a process or a deadline ends each wait.
        """
        questions, started = 0, False
        while questions < MOST_QUESTIONS:
            kind, payload = checker.receive(self._soon(ends, SANDBOX_SPARE_S if started else SANDBOX_START_S))
            started = True
            if kind == b"P" and questions:
                return f"the checks, with {questions} calls"
            if kind not in (b"A", b"K"):
                raise Failed("the tests never called the program" if kind == b"P" else _of_program(payload, str)[:600])
            questions += kind == b"A"  # K: what a name is
            box.send(b"A", payload, self._soon(ends))
            answer, payload = box.receive(self._soon(ends))
            checker.send(answer if answer == b"V" else b"E", payload, self._soon(ends))
        raise Failed(f"the tests called the program more than {MOST_QUESTIONS} times")

    def _serve(self, box: Box, program: str, ends: float) -> None:
        box.begin("serve", self._soon(ends), program=program)
        self._check_frame(*box.receive(self._soon(ends, SANDBOX_START_S)), b"R")

    def _check_frame(self, kind: bytes, payload: bytes, expected: bytes) -> None:
        if kind == b"X":
            raise Failed(f"does not run: {_of_program(payload, str)[:300]}")
        if kind != expected:
            raise Failed("sent an unexpected frame")

    def _soon(self, ends: float, spare_s: float = SANDBOX_SPARE_S) -> float:
        """Return the deadline of one exchange: the limit of a test, plus `spare_s` for the transfer."""
        return min(ends, time.monotonic() + self._settings.test_s) + spare_s


TEST_KINDS: dict[type, Callable[..., str]] = {
    InputOutput: ProgramJudge._input_output,
    Calls: ProgramJudge._calls,
    Checks: ProgramJudge._checks,
}


def _of_program(payload: bytes, read: Callable[..., T], *words: Any) -> T:
    """Return `read` of a value that a program sent, and of further arguments.

    Only this function reads a program's data in this process. The length of the frame limits its work.

    Raises:
        Failed: `read` raised anything; the program's data is the cause.
    """
    with raising(Failed, lambda error: f"sent an invalid value ({type(error).__name__}: {error})"):
        return read(loads(payload), *words)


# ------------------------------------------------------------------------------------------------------- the verifier

_settings = Sandbox()


def prepare(scoring: Scoring) -> None:
    """Set the limits of the programs that this process judges; call it before `judge`."""
    global _settings
    _settings = scoring.sandbox


@cache
def judge() -> ProgramJudge:
    """Return the judge of this process; raises what `ProgramJudge` raises."""
    return ProgramJudge(_settings)


def start(scoring: Scoring) -> None:
    """Prepare this process for `verify`; raises what `ProgramJudge` raises."""
    prepare(scoring)
    judge()


def limit_s(scoring: Scoring) -> float:
    """Return the seconds after which a verifier process is killed: 30 s more than a program's limit."""
    return scoring.sandbox.program_s + 30


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return whether the program of a completion passes the tests of its prompt.

    Raises:
        BadTests: The prompt's tests cannot be read; `checks.py` checks this before a run.
        ConfigError: This machine has no sandbox.
    """
    tests = read_tests(prompt.columns)
    if isinstance(tests, Checks) and tests.entry:  # the prompt is the beginning of the function (HumanEval)
        program = with_prompt(completion, prompt.columns.get("prompt"), tests.entry)
    else:
        names = (tests.name,) if isinstance(tests, Calls) else tests.names if isinstance(tests, Checks) else ()
        names = tuple(name for name in names if name not in FROM) or names
        reads = isinstance(tests, InputOutput) and any(text.strip() for text in tests.inputs)
        program = program_of(completion, names, reads)
    if program is None:
        return verdict(False, "found no program in the answer")
    return judge().verdict(program, tests)
