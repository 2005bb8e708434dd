"""scalerl: reinforcement learning for language models by the ScaleRL recipe, with a forecast of every run's curve.

>>> import scalerl
>>> run = scalerl.train("config.toml", seed=1, steps=100)      # doctest: +SKIP
>>> run.forecast(at=["2x", "4x"])                              # doctest: +SKIP

Names are imported when they are first used, so that `import scalerl` and `import scalerl.reading.curves` load no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalerl.core import VERSION as __version__
from scalerl.core import VIEWS

if TYPE_CHECKING:
    from scalerl.api import Run, load, resume, train
    from scalerl.core.errors import ConfigError, ProcessFailure, RunError, RunFailed, ScalerlError, UserError
    from scalerl.reading.curves import Curve, CurveError
    from scalerl.reading.pages.calls import advise, backtest, compare, fit, fit_together, forecast, frontier, report

_HOMES = {
    "scalerl.api": ("Run", "load", "resume", "train"),
    "scalerl.core.errors": ("ConfigError", "ProcessFailure", "RunError", "RunFailed", "ScalerlError", "UserError"),
    "scalerl.reading.curves": ("Curve", "CurveError"),
    "scalerl.reading.pages.calls": (
        "advise",
        "backtest",
        "compare",
        "fit",
        "fit_together",
        "forecast",
        "frontier",
        "report",
    ),
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


_HABITS = {
    "plot plot_fit plot_curve show": "write scalerl.fit(data).plot()",
    "predict extrapolate project": "write scalerl.forecast(data, at=['2x', '4x'])",
    "read read_csv read_json read_table read_run read_log read_wandb load_csv load_log open from_pandas from_dataframe "
    "from_csv from_wandb DataFrame": (
        "write scalerl.fit(data) with a path or a data frame, or scalerl.Curve.read(data) for the points alone"
    ),
    "curve_fit fit_curve fit_sigmoid Fit Model model": "write scalerl.fit(data)",
    "init log watch finish": "write scalerl.train(...) to train, or `scalerl follow LOG` for a run of another trainer",
    "summary describe": "write print(scalerl.fit(data))",
    "should_stop stop recommend decide": "write scalerl.advise(data)",
    "cross_validate cv evaluate": "write scalerl.backtest(data)",
    "ttest_ind ab_test test": "write scalerl.compare(first, second)",
    "fit_many fit_all fit_seeds": "write scalerl.fit_together(runs)",
    "health design paper_fit Prior Fit Forecast sigmoid": "it is in scalerl.reading.curves",
}
"""What to write instead of names that users of other packages try."""


def _late(module: str, name: str) -> Callable[..., Any]:
    return lambda *args, **options: getattr(import_module(module), name)(*args, **options)


VIEWS |= {
    "html_of": _late("scalerl.reading.pages.notebook", "html_of"),
    "plot": _late("scalerl.reading.pages.drawing", "plot"),
    "curve_from": _late("scalerl.reading.pages.outlook", "curve_from"),
}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    if name in ("scaling", "importers"):
        return import_module(f"scalerl.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module 'scalerl' has no attribute {name!r}")
    from scalerl.core.calls import missing

    raise missing("scalerl", name, _HABITS, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
