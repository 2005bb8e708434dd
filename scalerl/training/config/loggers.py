"""The loggers that also receive the metrics of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from scalerl.training.config.base import Part, as_list
from scalerl.training.config.recipe import Custom, kind_of


class TensorBoardLogger(Part):
    """Event files that TensorBoard reads, in `tensorboard` of the run directory."""

    kind: Literal["tensorboard"] = "tensorboard"


class WandbLogger(Part):
    """A run on Weights & Biases. WANDB_MODE=offline, WANDB_ENTITY and the other variables of wandb apply."""

    kind: Literal["wandb"] = "wandb"
    project: str = "scalerl"
    """Project of the run."""


class MLflowLogger(Part):
    """A run of MLflow, at MLFLOW_TRACKING_URI or MLflow's own default."""

    kind: Literal["mlflow"] = "mlflow"
    experiment: str = "scalerl"
    """Experiment of the run; it is created if it does not exist."""


AnyLogger = Annotated[TensorBoardLogger | WandbLogger | MLflowLogger | Custom, Field(discriminator="kind")]
LOGGER_KINDS = ("tensorboard", "wandb", "mlflow")


def listed_loggers(value: Any) -> Any:
    """Return loggers as a tuple of tables.

    Args:
        value: A logger or a list of loggers, each as a name or a table.

    Raises:
        ValueError: A logger is given twice.
    """
    loggers = tuple({"kind": choice} if isinstance(choice, str) else choice for choice in as_list(value))
    kinds = [kind_of(table) for table in loggers]
    double = [kind for kind in LOGGER_KINDS if kinds.count(kind) > 1]
    if double:
        raise ValueError(f"got {double[0]!r} {kinds.count(double[0])} times; give each logger once")
    return loggers


Loggers = Annotated[tuple[AnyLogger, ...], BeforeValidator(listed_loggers)]
