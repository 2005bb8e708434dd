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
from scalerl.scaling.fit import Band, Fit, fit
from scalerl.scaling.forecast import Forecast, Reach, forecast
from scalerl.scaling.frontier import Frontier, Option, frontier
from scalerl.scaling.health import Symptom, health
from scalerl.scaling.law import Draws, sigmoid
from scalerl.scaling.paper import PUBLISHED_GRID, PaperFit, PaperGrid, paper_fit
from scalerl.scaling.posterior import Prior
from scalerl.scaling.readers import CurveError

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
    "Fit",
    "Forecast",
    "Frontier",
    "Option",
    "PaperFit",
    "PaperGrid",
    "Prior",
    "Reach",
    "Symptom",
    "advise",
    "backtest",
    "compare",
    "fit",
    "forecast",
    "frontier",
    "health",
    "paper_fit",
    "sigmoid",
]
