"""Text for a terminal of 80 columns."""

import sys

from scalerl.cli.exits import complain
from scalerl.cli.terminal import say, wrapped


def test_a_long_line_is_wrapped_between_words_under_its_label():
    text = "short\nadvice    " + "Continue: the forecast gains more than it costs. " * 3
    lines = wrapped(text, 80).split("\n")
    assert lines[0] == "short" and len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert [line[:10] for line in lines[1:]] == ["advice    ", " " * 10, " " * 10]
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())


def test_a_path_is_never_broken_and_a_line_that_fits_is_unchanged():
    path = "/a/directory-with-hyphens" * 5
    assert path in wrapped(f"run       {path} {path}", 80).split("\n")[0]
    assert wrapped("  A       0.6    the ceiling", 80) == "  A       0.6    the ceiling"


def test_an_error_is_wrapped_on_a_terminal_and_one_line_elsewhere(monkeypatch, capsys):
    long = "runs/" + "a-name-of-many-characters-" * 4
    complain(
        f"{long} already holds a run; continue it with `scalerl resume`, or give another --run-dir. Nothing changed"
    )
    whole = capsys.readouterr().err
    assert whole.count("\n") == 1
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    complain(whole.removeprefix("scalerl: ").strip())
    lines = capsys.readouterr().err.splitlines()
    assert [len(line) <= 80 or line.split()[-1] == long for line in lines] == [True] * len(lines) and len(lines) >= 2


def test_a_pipe_gets_whole_lines_and_a_terminal_wrapped_ones(monkeypatch, capsys):
    say("word " * 30)
    assert capsys.readouterr().out == "word " * 30 + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    say("word " * 30)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
