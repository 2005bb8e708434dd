"""How a verb ends: exit codes, signals, one line for every error a user can cause."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

USER_ERROR, FAILED, INTERRUPTED = 2, 1, 130
LONGEST = 1000
"""Characters of a message from which on its middle is left out."""
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that would act on a terminal, or that it cannot show."""


class StopFlag:
    """Turns the first SIGINT or SIGTERM into a request to stop after this step; a second SIGINT stops at once."""

    def __init__(self, kept: str = "with a checkpoint") -> None:
        """Catch both signals.

        Args:
            kept: what becomes of the work done so far, for the message.
        """
        self.signal, self._kept = 0, kept
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore(self) -> None:
        """Give the signals back to whoever handled them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Return whether a stop was asked for."""
        return bool(self.signal)

    def _note(self, number: int, frame: Any) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        print(f"\nstopping after this step, {self._kept} (once more to stop at once)", file=sys.stderr)


def prepare_environment() -> None:
    """Set what torch reads once, when it is first imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads of two processes slow each other 20-fold
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages: about 8% on the cache-bound decode
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def guarded(action: Callable[[], int]) -> int:
    """Run a verb; a user's error becomes one line on standard error."""
    from pydantic import ValidationError

    from scalerl.config.base import ConfigError, problems
    from scalerl.files import trouble
    from scalerl.scaling import CurveError

    try:
        return action()
    except (ConfigError, CurveError) as error:
        complain(str(error))
        return USER_ERROR
    except ValidationError as error:  # a record that was built without `build`
        complain(problems(error))
        return USER_ERROR
    except BrokenPipeError:  # what reads our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        complain("stopped at once; what was saved is kept, and `scalerl resume` continues from there")
        return INTERRUPTED
    except OSError as error:
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise  # of a socket or a process: nothing that a path of the user has caused
        complain(trouble(error))
        return FAILED


def complain(text: str) -> None:
    """Print one line for the user on standard error; of a very long one the middle is left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 300]} ... ({len(text) - LONGEST + 50} characters left out) ... {text[-250:]}"
    text = UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
    print(f"scalerl: {text}", file=sys.stderr)
