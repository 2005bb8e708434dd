"""Creates the loggers of a configuration."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from scalerl.config import RunConfig
from scalerl.config.recipe import Custom
from scalerl.core import plugins
from scalerl.core.errors import ConfigError
from scalerl.loggers.base import Logger

METHODS = {"start": 2, "log": 2, "figure": 3, "finish": 1}
"""Methods of a logger and the number of their arguments."""


class Kind(NamedTuple):
    """Module and package of a tracker's logger.

    Example: Kind("scalerl.loggers.mlflow", "MLflow", package="mlflow", extra="mlflow")
    """

    module: str
    name: str
    package: str
    extra: str


LOGGERS = {
    "tensorboard": Kind("scalerl.loggers.tensorboard", "TensorBoard", "tensorboard", "logs"),
    "wandb": Kind("scalerl.loggers.wandb", "Wandb", "wandb", "logs"),
    "trackio": Kind("scalerl.loggers.trackio", "Trackio", "trackio", "trackio"),
    "mlflow": Kind("scalerl.loggers.mlflow", "MLflow", "mlflow", "mlflow"),
}


def makers_of(config: RunConfig) -> dict[str, Callable[[], Logger]]:
    """Return functions that create the loggers of a configuration, by name.

    The functions import the libraries, in the threads of the loggers, because some imports take seconds. Custom loggers
    are created and checked immediately.

    Raises:
        ConfigError: A package is missing, or a custom logger cannot be created.
    """
    found: dict[str, Callable[[], Logger]] = {}
    for choice in config.loggers:
        if isinstance(choice, Custom):
            name = choice.function if choice.function not in found else f"{choice.function}-{len(found)}"
            found[name] = partial(_given, _custom(choice))
            continue
        kind = LOGGERS[choice.kind]
        if find_spec(kind.package) is None:
            raise ConfigError(
                f"loggers: {choice.kind!r} needs a package that is not installed: pip install 'scalerl[{kind.extra}]'"
            )
        found[choice.kind] = partial(_make, kind, choice.model_dump(exclude={"kind"}))
    return found


def _make(kind: Kind, values: dict[str, Any]) -> Logger:
    made: Logger = getattr(importlib.import_module(kind.module), kind.name)(**values)
    return made


def _given(logger: Logger) -> Logger:
    return logger


def _custom(choice: Custom) -> Logger:
    made = plugins.load_function(choice.function, "loggers.function")
    plugins.check_arguments(made, choice.function, "loggers.params", (), choice.params)
    try:
        logger = plugins.call(made, choice.function, **choice.params)
    except plugins.PluginError as error:
        raise ConfigError(f"loggers: {error}") from None
    for name, count in METHODS.items():
        method = getattr(logger, name, None)
        if not callable(method):
            raise ConfigError(
                f"loggers: {choice.function} returned {plugins.describe(logger)} without a method {name}; allowed: an "
                f"object with {_listed(list(METHODS))} (docs/watching.md)"
            )
        plugins.check_arguments(method, f"{choice.function}.{name}", "loggers.function", ("argument",) * count, {})
    return logger  # type: ignore[no-any-return]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
