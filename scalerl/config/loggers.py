"""The loggers that also receive the metrics of a run, and notifications."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from scalerl.config.base import Part, Seconds
from scalerl.config.recipe import Custom, kind_of
from scalerl.core.errors import short


class TensorBoardLogger(Part):
    """Event files that TensorBoard reads."""

    kind: Literal["tensorboard"] = "tensorboard"
    directory: str = ""
    """Directory of the event files; empty: `tensorboard` in the run directory."""


class WandbLogger(Part):
    """A run on Weights & Biases. WANDB_MODE=offline and the other environment variables of wandb apply."""

    kind: Literal["wandb"] = "wandb"
    project: str = "scalerl"
    """Project of the run."""
    entity: str = ""
    """User or team; empty: the default of the account."""


class TrackioLogger(Part):
    """A run in the local store of Trackio, or in a Space."""

    kind: Literal["trackio"] = "trackio"
    project: str = "scalerl"
    """Project of the run."""
    space: str = ""
    """Name of a Hugging Face Space that shows the project; empty: the store of this machine."""


class MLflowLogger(Part):
    """A run of MLflow."""

    kind: Literal["mlflow"] = "mlflow"
    experiment: str = "scalerl"
    """Experiment of the run; it is created if it does not exist."""
    tracking_uri: str = ""
    """Server or store; empty: MLFLOW_TRACKING_URI, or MLflow's own default."""


AnyLogger = Annotated[
    TensorBoardLogger | WandbLogger | TrackioLogger | MLflowLogger | Custom, Field(discriminator="kind")
]
KINDS = ("tensorboard", "wandb", "trackio", "mlflow")


def listed_loggers(value: Any) -> Any:
    """Return loggers as a tuple of tables.

    Args:
        value: A logger or a list of loggers, each as a name or a table.

    Raises:
        ValueError: A logger is given twice.
    """
    loggers = tuple(value) if isinstance(value, list | tuple) else (value,)
    found = tuple({"kind": one} if isinstance(one, str) else one for one in loggers)
    kinds = [kind_of(one) for one in found]
    double = [kind for kind in KINDS if kinds.count(kind) > 1]
    if double:
        raise ValueError(f"got {double[0]!r} {kinds.count(double[0])} times; give each logger once")
    return found


Loggers = Annotated[tuple[AnyLogger, ...], BeforeValidator(listed_loggers)]


class Notify(Part):
    """Notifications about the end of a run, a falling held-out metric and an identified ceiling (docs/watching.md)."""

    command: tuple[str, ...] = ()
    """Program and its arguments, started without a shell; it gets the message in its environment and standard input."""
    webhook: str = ""
    """URL to which the message is sent as JSON by POST."""
    on: tuple[Literal["finished", "failed", "falling", "identified"], ...] = (
        "finished",
        "failed",
        "falling",
        "identified",
    )
    """Events to report: the run has finished or failed, its held-out metric falls, its ceiling is identified."""
    timeout_s: Seconds = 30.0
    """Time limit of the command or the request, seconds."""

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f"got {short(value)}; allowed: a list of words, as in ['notify-send', 'scalerl']")
        if isinstance(value, list | tuple) and value and not str(value[0]):
            raise ValueError("got an empty program; allowed: a list of words whose first is a program")
        return value

    @field_validator("on", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("webhook")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(f"got {short(value)}; allowed: a URL that begins with http:// or https://")
        return value
