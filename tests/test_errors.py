"""Errors form one hierarchy, and the command line prints each of them as one message, in one place."""

import ast
import pickle
from importlib import import_module
from pathlib import Path

import pytest
from commands import call

import scalerl
from scalerl.core.errors import ConfigError, ProcessFailure, RunError, RunFailed, ScalerlError, UserError
from scalerl.reading.curves import CurveError

ROOT = Path(scalerl.__file__).parent
FLOW = {
    "Stopped": "a signal",
    "WaitEnded": "the end of a wait",
    "Interrupted": "a stop was requested while the run waited",
    "NoAnswer": "the same, and a process does not answer",
    "Stuck": "a bug of a schedule",
    "Failed": "a program failed its test",
    "TimeLimit": "ends a template",
    "_NextTurn": "ends a turn",
    "_NoCompiler": "other code takes over",
    "ParserRequest": "asks a command for its options",
    "Disconnected": "a program of an agent closed its connection; its call is counted",
    "Refused": "a request of an agent gets an answer of HTTP",
    "NoScore": "a judge's reply has no score; its completion counts as a failure",
    "NoValue": "another way of comparing answers takes over",
    "TooLarge": "the same, for a number",
    "NotPlain": "in the sandbox, which has no scalerl",
    "ProgramError": "in the sandbox, which has no scalerl",
}
"""Exceptions that steer the flow within a module, or are bugs, with their meaning."""


def exceptions():
    """Return (module, name) of every exception class of the package; subclasses of others in it included."""
    bases, home = {}, {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                parts = ("scalerl", *path.relative_to(ROOT).with_suffix("").parts)
                bases[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                home[node.name] = ".".join(parts).removesuffix(".__init__")
    builtin = {"Exception", "BaseException", "RuntimeError", "ValueError", "OSError", "KeyboardInterrupt", "TypeError"}
    found = set[str]()
    while new := {name for name in bases if bases[name] & (builtin | found)} - found:
        found |= new
    return sorted((home[name], name) for name in found)


def test_every_exception_is_a_scalerl_error_or_listed_as_flow():
    others = []
    for module, name in exceptions():
        if name not in FLOW and not issubclass(getattr(import_module(module), name), ScalerlError):
            others.append(f"{module}.{name}")
    assert others == [] and len(exceptions()) > 25


def test_the_kinds_have_their_exit_codes_and_builtin_bases():
    assert (UserError.exit_code, RunError.exit_code, ProcessFailure.exit_code) == (2, 1, 1)
    assert issubclass(UserError, ValueError) and issubclass(RunError, RuntimeError)
    assert issubclass(ProcessFailure, RuntimeError)
    assert issubclass(ConfigError, UserError) and issubclass(CurveError, UserError) and issubclass(RunFailed, RunError)
    again = pickle.loads(pickle.dumps(ConfigError("seed: got -1")))
    assert type(again) is ConfigError and str(again) == "seed: got -1"


@pytest.mark.parametrize("kind", [ConfigError, RunFailed, ProcessFailure])
def test_a_command_that_an_error_ends_prints_one_line_and_returns_the_exit_code_of_its_kind(kind, capsys, monkeypatch):
    error = kind("what was got; what to do")

    def fail():
        raise error

    monkeypatch.setattr("scalerl.cli.recipes.print_recipes", fail)
    code, out, text = call(capsys, "recipes")
    assert (out, text) == ("", "scalerl: what was got; what to do\n")
    assert code == (2 if isinstance(error, UserError) else 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "99999999"],
        ["--top-p", "2"],
        ["--revision", "a\0b"],
    ],
    ids=" ".join,
)
def test_a_value_out_of_range_is_one_line_in_eval(words, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    code, out, text = call(capsys, "eval", tmp_path, "--suite", tmp_path / "rows.jsonl", *words)
    assert (code, out) == (2, "") and text.startswith("scalerl: ") and text.count("\n") == 1
    assert "got" in text or "allowed" in text
