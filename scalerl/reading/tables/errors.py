"""The errors of a log: what cannot be used, what a choice would mend, and what more rows may mend."""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.core.errors import UserError

LIST = "scalerl import --trainers"
"""Command that lists what can be read."""


class CurveError(UserError):
    """An error in the input; its message gives what was got, what is allowed and what to do."""


class LogError(CurveError):
    """An error in a log; the command line adds the command to type next."""

    def __init__(
        self, text: str, *, add: Sequence[str] = (), without: str = "", paths: Sequence[str] = (), command: str = ""
    ) -> None:
        """Store the message and the choices that would mend it.

        Args:
            text: One line.
            add: Options to add to the command, such as ("--run", "base").
            without: An option to leave out of it.
            paths: Paths instead of those of the command.
            command: Another command to type, if no choice helps.
        """
        super().__init__(text)
        self.add, self.without, self.paths, self.command = tuple(add), without, tuple(paths), command


class TooEarly(LogError):
    """A log lacks what later rows may bring: numbers, the metric, the file itself. `scalerl follow` waits for it."""


class Away(LogError):
    """A tracker or a disk does not answer now. `scalerl follow` tries again."""


def with_command(error: CurveError) -> CurveError:
    """Return an error of reading with the command that lists what can be read, unless it has a command already."""
    if "`" in str(error) or "pip install" in str(error) or bool(getattr(error, "command", None)):
        return error
    kind = type(error) if isinstance(error, LogError) else LogError
    return kind(str(error), command=LIST)
