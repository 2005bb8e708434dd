"""Fit, forecast and compare compute-performance curves of RL runs. Needs only numpy and scipy.

>>> from scalerl.scaling import Curve, fit, forecast, advise
>>> curve = Curve.read("runs/mine")  # or Curve(compute, metric)        # doctest: +SKIP
>>> print(forecast(fit(curve), at=["2x", "4x"]))                        # doctest: +SKIP
"""

from scalerl.scaling.advise import Advice, advise
from scalerl.scaling.backtest import Backtest, backtest
from scalerl.scaling.baselines import BASELINES
from scalerl.scaling.compare import Comparison, compare
from scalerl.scaling.curve import Curve
from scalerl.scaling.estimate import Estimate, EstimateAt
from scalerl.scaling.fit import METHODS, fit
from scalerl.scaling.forecast import Band, Fit, Forecast, Reach, forecast
from scalerl.scaling.frontier import Frontier, Option, frontier
from scalerl.scaling.health import Symptom, health
from scalerl.scaling.law import Draws, sigmoid
from scalerl.scaling.least_squares import PUBLISHED_GRID, PaperGrid, Search
from scalerl.scaling.posterior import Prior
from scalerl.scaling.readers import CurveError

__all__ = [
    "BASELINES",
    "METHODS",
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
    "Fit",
    "Forecast",
    "Frontier",
    "Option",
    "PaperGrid",
    "Prior",
    "Reach",
    "Search",
    "Symptom",
    "advise",
    "backtest",
    "compare",
    "fit",
    "forecast",
    "frontier",
    "health",
    "sigmoid",
]
