"""Follows a log while its run trains: looks for new rows, and says what has changed. Used by `follow` and `watch`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError, UserError
from scalerl.core.files import open_regular
from scalerl.core.run_files import POINTS, is_run
from scalerl.core.status import read_status
from scalerl.reading.curves import CurveError
from scalerl.reading.curves.curve import ReadOptions
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.curves.stop import Judgment, StopRule, judge
from scalerl.reading.logs.growing import GrowingLog, Stamp, stamp_of
from scalerl.reading.pages.outlook import (
    Outlook,
    Source,
    choices_made,
    import_options,
    names_of,
    read_sources,
    source_of,
    source_outlook,
)
from scalerl.reading.pages.run import id_of
from scalerl.reading.tables.errors import Away, TooEarly
from scalerl.reading.tables.forms import wandb_path

EVERY_S = 15.0
"""Default interval between two looks at a log, seconds."""

FOLLOWING, WAITING, AWAY, GONE, PROBLEM, ENDED = "following", "waiting", "away", "gone", "problem", "ended"
"""States of a log: it has been read, lacks rows or the file, does not answer, was deleted, cannot be read, its run has
ended."""


@dataclass(frozen=True)
class Change:
    """What a look at a log has found.

    Example: `Change("forecast", "Continue: ...")`
    """

    kind: str
    """"forecast", "back", "restarted", or a state of the log."""
    text: str


@dataclass(frozen=True)
class Reading:
    """How a log is read and judged; the options of `scalerl fit`."""

    options: ReadOptions = field(default_factory=ReadOptions)
    """As for `outlook.read_sources`."""
    exclude_below: float = 0.0
    min_gain: float | None = None
    price: float | None = None


class FollowedLog:
    """One log, or the directory of a run of this package. Looks are made by one thread; others read the attributes."""

    def __init__(
        self,
        path: Path,
        reading: Reading | None = None,
        every_s: float = EVERY_S,
        rules: Sequence[StopRule] = (),
    ) -> None:
        """Prepare to follow a log, which may not exist yet.

        Args:
            path: A file, a run's directory, a tracker's store, or `wandb:entity/project/run`.
            reading: How it is read.
            every_s: Interval of looks that are made by `due`, in seconds.
            rules: Conditions that somebody waits for.
        """
        self.path, self.reading, self.every_s = path, reading or Reading(), every_s
        self.name = str(path) if wandb_path(str(path)) else names_of([path])[0]
        self.id = id_of(path)
        self.state, self.detail = WAITING, "nothing has been read yet"
        self.source: Source | None = None
        """The curve of the last look that could be read."""
        self.outlook: Outlook | None = None
        """Its forecast; None before `MIN_POINTS` points."""
        self.rules = tuple(rules)
        self.judgments = self._judged()
        """Whether each condition holds, and how far it is; of the last look that could be read."""
        self.version = 0
        """Increases with every change."""
        self.changed_at = time.monotonic()
        """Time of the last new rows."""
        self.lock = threading.Lock()
        """Held while the attributes change together."""
        self._log: GrowingLog | None = None
        """Reads the log of another trainer."""
        self._stamp: Stamp | None = None
        self._restarts = 0
        self._looked = -float("inf")

    @property
    def rest_s(self) -> float:
        """Seconds from one look to the next: the interval, and longer for a log that takes long to read."""
        return max(self.every_s, self._log.rest_s if self._log is not None else 0.0)

    def due(self) -> bool:
        """Return whether the interval since the last look is over."""
        return self.state != ENDED and time.monotonic() - self._looked >= self.rest_s

    def look(self) -> list[Change]:
        """Look for new rows; return what has changed, in its order.

        Raises:
            UserError: The log cannot be read as asked, and no look before could; later errors are changes.
        """
        self._looked = time.monotonic()
        try:
            source = self._read()
        except TooEarly as error:
            has_source = self.source is not None
            lost = has_source and not (wandb_path(str(self.path)) or self.path.exists())
            text = f"{self.path} is gone; its points so far are kept" if lost else _waits_for(str(error), has_source)
            return self._to(GONE if lost else WAITING, text)
        except Away as error:
            return self._to(AWAY, str(error))
        except (CurveError, ConfigError) as error:
            if self.source is None:
                raise
            return self._to(PROBLEM, str(error))
        changes = []
        if self.state in (AWAY, GONE, PROBLEM):
            changes.append(Change("back", f"{self.path} can be read again"))
        if source is None:
            if changes:
                self._to(FOLLOWING, "")
            return changes
        return [*changes, *self._take(source)]

    def look_again(self) -> None:
        """Look for new rows, for a page: an error is the state of the log."""
        try:
            self.look()
        except UserError as error:
            self._to(PROBLEM, str(error))

    def _take(self, source: Source) -> list[Change]:
        """Make the forecast of a curve that was read; return what has changed."""
        changes: list[Change] = []
        before = str(self.outlook.advice) if self.outlook else ""
        terms = {name: getattr(self.reading, name) for name in ("exclude_below", "min_gain", "price")}
        outlook, state, detail = None, FOLLOWING, ""
        try:
            outlook = source_outlook(source, **terms)
        except CurveError as error:
            count = len(source.curve)
            state = WAITING if count < MIN_POINTS else PROBLEM
            detail = f"{count} of {MIN_POINTS} {source.curve.what}" if count < MIN_POINTS else str(error)
        if self._log is not None and self._log.restarts > self._restarts:
            self._restarts = self._log.restarts
            length = f"the curve has {len(source.curve)} {source.curve.what}"
            changes.append(
                Change("restarted", f"{self.path} was cut back or replaced, and is read from its start: {length}")
            )
        with self.lock:
            self.source, self.outlook = source, outlook
            self.judgments = self._judged()
            self.changed_at = time.monotonic()
            self.version += 1
        if outlook is not None and str(outlook.advice) != before:
            changes.append(Change("forecast", str(outlook.advice)))
        changes += self._to(state, detail)
        if ended := self._ended():
            changes += self._to(ENDED, f"the run has ended: {ended}")
        return changes

    def _to(self, state: str, detail: str) -> list[Change]:
        """Change the state; return the change unless it is none, or nothing to tell."""
        same = state == self.state and (detail == self.detail or state == AWAY)
        if not same:
            with self.lock:
                self.state, self.detail = state, detail
                self.version += 1
        return [] if same or state == FOLLOWING else [Change(state, detail)]

    def _read(self) -> Source | None:
        """Return the curve; None if nothing has changed since the last look."""
        return self._read_run() if self.is_run() else self._read_log()

    def is_run(self) -> bool:
        """Return whether the path is the directory of a run of this package."""
        if self.source is not None:
            return self.source.info is not None
        return wandb_path(str(self.path)) is None and is_run(self.path)

    def _read_run(self) -> Source | None:
        if (stamp := stamp_of(self.path)) == self._stamp:
            return None
        with too_early_below(lines_in(self.path / POINTS)):
            (source,) = read_sources([self.path], **self.reading.options)
        self._stamp = stamp
        return source

    def _read_log(self) -> Source | None:
        options = self.reading.options
        if self._log is None:
            self._log = GrowingLog(self.path, points=not choices_made(options))
        if (table := self._log.look()) is None:
            return None
        log = None if table.points and self._log.points else self._log.imported(import_options(options))
        with too_early_below(table.size if log is None else len(log.rows)):
            return source_of(table, log, self.path, self.name, options)

    def _judged(self) -> list[Judgment]:
        """Judge the conditions. While the bounds move with the values, those on gain and ceiling wait."""
        fits = [self.outlook.fit] if self.outlook is not None else []
        judged = [judge(rule, fits) for rule in self.rules]
        if self.source is None or not self.source.about_bounds:
            return judged
        return [
            judgment if rule.kind == "falling" else judgment.waiting("the bounds are those of the values so far")
            for rule, judgment in zip(self.rules, judged, strict=True)
        ]

    def _ended(self) -> str:
        """Return how the run ended; "" while it trains, or if the log does not say so."""
        if self.is_run():
            status = read_status(self.path)
            return status.state if status is not None and status.state != "running" else ""
        return self._log.ended if self._log is not None else ""

    def summary(self) -> dict[str, Any]:
        """Return the log's entry in the list of the page, as JSON values."""
        return self.snapshot()[0]

    def snapshot(self) -> tuple[dict[str, Any], Source | None, Outlook | None]:
        """Return the log's entry in the list of the page, as JSON values, with the curve and its forecast."""
        with self.lock:
            advice = str(self.outlook.advice) if self.outlook else ""
            values = {name: getattr(self, name) for name in ("id", "name", "version", "state", "detail")}
            conditions = [judgment.text for judgment in self.judgments]
            entry = {**values, "path": str(self.path), "sentence": advice, "conditions": conditions}
            return entry, self.source, self.outlook


def _waits_for(text: str, has_source: bool) -> str:
    """Return what a log lacks, as the text of the state `WAITING`."""
    return f"{text}; the points so far are kept" if has_source else text


@contextmanager
def too_early_below(rows: int) -> Iterator[None]:
    """Make an error about rows that are too few for a fit one that more rows may mend."""
    try:
        yield
    except CurveError as error:
        if rows >= MIN_POINTS:
            raise
        raise TooEarly(str(error)) from error


def lines_in(file: Path) -> int:
    """Return the number of lines of a file, up to `MIN_POINTS`; 0 if it cannot be read."""
    try:
        with open_regular(file) as lines:
            return sum(1 for _ in islice(lines, MIN_POINTS))
    except OSError:
        return 0
