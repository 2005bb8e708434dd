"""scalerl: reinforcement learning for language models by the ScaleRL recipe, with a forecast of every run's curve.

>>> import scalerl
>>> run = scalerl.train("config.toml", seed=1, steps=100)      # doctest: +SKIP
>>> run.forecast(at=["2x", "4x"])                              # doctest: +SKIP

Names are imported when they are first used, so that `import scalerl` and `import scalerl.scaling` load no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalerl.core import VERSION as __version__

if TYPE_CHECKING:
    from scalerl.api import Run, load, resume, train
    from scalerl.core.errors import ConfigError, ProcessFailure, RunError, RunFailed, ScalerlError, UserError
    from scalerl.scaling import Curve, CurveError, advise, backtest, compare, fit, fit_together, forecast, frontier
    from scalerl.view.report import report

_HOMES = {
    "scalerl.api": ("Run", "load", "resume", "train"),
    "scalerl.core.errors": ("ConfigError", "ProcessFailure", "RunError", "RunFailed", "ScalerlError", "UserError"),
    "scalerl.scaling": (
        "Curve",
        "CurveError",
        "advise",
        "backtest",
        "compare",
        "fit",
        "fit_together",
        "forecast",
        "frontier",
    ),
    "scalerl.view.report": ("report",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigError",
    "Curve",
    "CurveError",
    "ProcessFailure",
    "Run",
    "RunError",
    "RunFailed",
    "ScalerlError",
    "UserError",
    "__version__",
    "advise",
    "backtest",
    "compare",
    "fit",
    "fit_together",
    "forecast",
    "frontier",
    "load",
    "report",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'scalerl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
