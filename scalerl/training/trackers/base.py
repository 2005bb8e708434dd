"""The interface of loggers, and those of a configuration. A custom class with its methods is a logger."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from scalerl.core import plugins
from scalerl.core.errors import ConfigError
from scalerl.training.config.loggers import Loggers
from scalerl.training.config.recipe import Custom


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run that is logged.

    Example: LoggedRun(name="scalerl-001", path=Path("runs/scalerl-001"), id="3f2a9c1b", resumed_step=40)
    """

    name: str
    """Name of the run directory; from part 2 on with the number of the part."""
    path: Path
    """The run directory."""
    id: str
    """Result of `start` at the beginning of the run; empty if a logged run is to be started."""
    resumed_step: int | None
    """Number of updates in the resumed checkpoint; None for a new run."""
    part: int = 1
    """1, or more after the run went back to an earlier step: the number of the logged run that starts anew there."""


class Logger(Protocol):
    """Writes to a tracker. All calls come from one separate thread, in the order of the run.

    If a method raises, its data are lost and the run continues. Steps never decrease in a logged run. If a run goes
    back to an earlier step, a new logged run starts, which gets all rows of the run's files.
    """

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Begin a logged run, or continue the one with `run.id`; called once, before everything else.

        Args:
            config: Configuration as nested plain values, without `loggers`.
            run: Run to log.

        Returns:
            The id of the logged run, which is kept in the run directory for a later resume; not empty.
        """

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers by name (docs/metrics.md); all of them are finite.

        Args:
            metrics: Metrics of a training step, or of an evaluation (names with `eval/` and `forecast/`).
            step: Number of updates so far.
        """

    def figure(self, name: str, png: Path, step: int) -> None:
        """Log a picture.

        Args:
            name: Name of the picture: `curve`.
            png: File with the picture; it is removed after the call.
            step: Number of updates so far.
        """

    def finish(self, state: str) -> None:
        """End the logged run; called once, after all other methods.

        Args:
            state: State of the run: finished, stopped (it can be resumed) or failed.
        """


METHODS = ("start", "log", "figure", "finish")


TRACKER_EXTRAS = {"tensorboard": "logs", "wandb": "logs", "mlflow": "mlflow"}
"""The extra that installs each tracker. The tracker's package and the module of its logger have the same name."""


def makers_of(loggers: Loggers) -> dict[str, Callable[[], Logger]]:
    """Return functions that create the loggers of a configuration, by name.

    The functions import the libraries, in the threads of the loggers, because some imports take seconds. Custom loggers
    are created and checked immediately.

    Raises:
        ConfigError: A package is missing, or a custom logger cannot be created.
    """
    makers: dict[str, Callable[[], Logger]] = {}
    for choice in loggers:
        if isinstance(choice, Custom):
            name = choice.function if choice.function not in makers else f"{choice.function}-{len(makers)}"
            logger = _custom(choice)
            makers[name] = lambda logger=logger: logger  # type: ignore[misc]
        elif find_spec(choice.kind):
            makers[choice.kind] = partial(_make, choice.kind, choice.model_dump(exclude={"kind"}))
        else:
            raise ConfigError(
                f"loggers: {choice.kind!r} needs a package that is not installed: "
                f"pip install 'scalerl[{TRACKER_EXTRAS[choice.kind]}]'"
            )
    return makers


def _make(kind: str, values: dict[str, Any]) -> Logger:
    tracker: Logger = importlib.import_module(f"scalerl.training.trackers.{kind}").Tracker(**values)
    return tracker


def _custom(choice: Custom) -> Logger:
    function = plugins.load_function(choice.function, "loggers.function")
    plugins.check_arguments(function, choice.function, "loggers.params", (), choice.params)
    try:
        logger: Logger = plugins.call(function, choice.function, **choice.params)
    except plugins.PluginError as error:
        raise ConfigError(f"loggers: {error}") from None
    absent = [name for name in METHODS if not callable(getattr(logger, name, None))]
    if absent:
        raise ConfigError(
            f"loggers: {choice.function} returned {plugins.describe(logger)} without a method {absent[0]}; allowed: an "
            f"object with {', '.join(METHODS)} (docs/monitoring.md)"
        )
    return logger
