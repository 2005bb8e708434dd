"""Runs commands of `scalerl` in the process of the test."""

from scalerl import cli


def call(capsys, *words):
    """Return the exit code of a command, its output and its errors."""
    code = cli.main([str(word) for word in words])
    out = capsys.readouterr()
    return code, out.out, out.err
