"""Text for a terminal of 80 columns."""

import sys

import pytest

from scalerl.cli.exits import complain
from scalerl.cli.terminal import print_lines, wrapped


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


@pytest.mark.parametrize(("show", "stream"), [(print_lines, "stdout"), (complain, "stderr")])
def test_a_pipe_gets_whole_lines_and_a_terminal_wrapped_ones(show, stream, monkeypatch, capsys):
    show("word " * 30)
    assert "".join(capsys.readouterr()).removeprefix("scalerl: ").strip() == ("word " * 30).strip()
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    show("word " * 30)
    assert max(map(len, "".join(capsys.readouterr()).splitlines())) <= 40
