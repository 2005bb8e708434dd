"""What happened to public runs: the counts behind probabilities of rare events and behind sentences of the advice.

The runs are 47 curves of other trainers, read from their published logs. All fallen ones are from one repository. The
counts are frozen: constants that follow from them are evidence only for runs that nobody has seen.
"""

from __future__ import annotations

from typing import NamedTuple


class Count(NamedTuple):
    """How many of some public runs did something.

    Example: `Count(4, 51, "...").share` is 0.078.
    """

    happened: int
    all: int
    meaning: str
    """What happened, of which runs."""

    @property
    def share(self) -> float:
        """Return the count as a share."""
        return self.happened / self.all

    def __str__(self) -> str:
        return f"{self.happened} of {self.all}"


STAYED_DOWN = Count(20, 26, "parts of runs that ended after a fall and recovered less than half of it")

NO_CLIMB = Count(
    16,
    32,
    "runs without a clear climb at an evaluation from the tenth on that ended more than 0.01 above it, by means of a "
    "fifth of the points",
)

LATER_FALL = {
    "noisy": Count(4, 51, "first parts of noisy runs that ended at or near their best and fell later"),
    "smooth": Count(1, 64, "first parts of smooth runs that ended at or near their best and fell later"),
}
"""A fall is more than 0.1 and more than twice the noise. The rest of a run was about one doubling of compute on
average."""

TAKE_OFF = {
    "still": Count(
        3, 6, "first parts that a level explains better than a rise, with noise below 0.01, that rose later"
    ),
    "other": Count(3, 29, "other first parts that a level explains better than a rise and that rose later"),
}
"""A rise is as large as a fall in `LATER_FALL`."""
