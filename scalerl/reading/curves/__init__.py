"""Fit, forecast and compare compute-performance curves of RL runs. Needs only numpy and scipy.

From points to advice, each file uses those above it:

    curve              points -> Curve, checked
    law, linear, grid, noise, level, falls
                       the equations: the law, its linear part, the noise, a run that stays, a run that has fallen
    families, sampling the families of curves that a run may follow; draws of one that rises
    counts             what happened to public runs
    posterior          Curve -> Posterior: draws of all families, with weights for means and for intervals
    health             symptoms of a curve
    fit                Curve -> Fit: estimates, bands, and whether the ceiling is identified
    forecast           Fit -> Forecast at more compute, next to the `baselines`
    price, advise      Fit -> Advice: the decision, its gain, its price, and how often such advice was right
    stop               conditions that end a run

Others use a Fit: comparison (two recipes), backtesting, together (related runs), pool and frontiers (runs with
different settings), designs (how to evaluate a run before it starts). `paper` is the procedure of the paper, next to
all this. They are loaded when one of their names is first used.

>>> from scalerl.reading.curves import Curve, fit, forecast, advise
>>> curve = Curve.read("runs/mine")  # or Curve(compute, metric)        # doctest: +SKIP
>>> print(forecast(fit(curve), at=["2x", "4x"]))                        # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalerl.reading.curves.advise import Advice, advise
from scalerl.reading.curves.baselines import BASELINES
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import Estimate, EstimateAt
from scalerl.reading.curves.fit import Band, Fit, fit
from scalerl.reading.curves.forecast import Forecast, Reach, forecast
from scalerl.reading.curves.health import Symptom, health
from scalerl.reading.curves.law import Draws, sigmoid
from scalerl.reading.curves.sampling import Prior
from scalerl.reading.tables.errors import CurveError

if TYPE_CHECKING:
    from scalerl.reading.curves.backtesting import Backtest, backtest
    from scalerl.reading.curves.comparison import Comparison, compare
    from scalerl.reading.curves.designs import Evaluations, RunDesign, design, expected_curve, expected_of_runs
    from scalerl.reading.curves.frontiers import Frontier, Option, frontier
    from scalerl.reading.curves.paper import PUBLISHED_GRID, PaperFit, PaperGrid, paper_fit
    from scalerl.reading.curves.together import Together, fit_together

_HOMES = {
    "backtesting": ("Backtest", "backtest"),
    "comparison": ("Comparison", "compare"),
    "designs": ("Evaluations", "RunDesign", "design", "expected_curve", "expected_of_runs"),
    "frontiers": ("Frontier", "Option", "frontier"),
    "paper": ("PUBLISHED_GRID", "PaperFit", "PaperGrid", "paper_fit"),
    "together": ("Together", "fit_together"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BASELINES",
    "PUBLISHED_GRID",
    "Advice",
    "Backtest",
    "Band",
    "Comparison",
    "Curve",
    "CurveError",
    "Draws",
    "Estimate",
    "EstimateAt",
    "Evaluations",
    "Fit",
    "Forecast",
    "Frontier",
    "Option",
    "PaperFit",
    "PaperGrid",
    "Prior",
    "Reach",
    "RunDesign",
    "Symptom",
    "Together",
    "advise",
    "backtest",
    "compare",
    "design",
    "expected_curve",
    "expected_of_runs",
    "fit",
    "fit_together",
    "forecast",
    "frontier",
    "health",
    "paper_fit",
    "sigmoid",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"scalerl.reading.curves.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'scalerl.reading.curves' has no attribute {name!r}")
