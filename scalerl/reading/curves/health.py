"""Checks whether a curve has the shape that the law describes.

Axes in names: N evaluation points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.falls import rolling_mean
from scalerl.reading.curves.families import CREEP, LATE_START, SECOND_RISE
from scalerl.reading.curves.law import Draws
from scalerl.reading.curves.noise import local_noise
from scalerl.reading.curves.posterior import Posterior, posterior

DATA_POINTS = 10
"""Number of points below which intervals depend more on the prior than on the data."""

FALL = 0.05
"""Smallest decline, as a share of the metric's range; it must also be four standard deviations of the noise."""

STEEPER = 0.05
"""A curve rises again if its slope in log compute, after a decrease, increases by this share of the largest slope."""

EARLY_SHARE = 0.9
"""Share of the climb at the first point above which the climb counts as before the first evaluation."""


LIKELY = 0.1
"""Probability above which a departure is a symptom."""

FIRST_SPACINGS = 3.0
"""Largest compute of the first point, in multiples of the distance of the points, that counts as the start of a run."""


@dataclass(frozen=True)
class Symptom:
    """One finding about a curve, with the numbers behind it."""

    name: str
    """A key of `CHECKS`, or late take-off, two-phase rise, slow end, creep."""

    message: str
    """One sentence with the numbers and what to do."""

    numbers: dict[str, float]
    """The same numbers by name."""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def health(curve: Curve) -> tuple[Symptom, ...]:
    """Return all symptoms of a curve. The curve is fitted to find late starts and second rises."""
    if len(curve) < 5:
        return shape_symptoms(curve)
    return (*shape_symptoms(curve), *departure_symptoms(posterior(curve)))


def shape_symptoms(curve: Curve) -> tuple[Symptom, ...]:
    """Return the symptoms that need no fit."""
    symptoms = (check(curve) for check in CHECKS.values())
    return tuple(symptom for symptom in symptoms if symptom is not None)


def departure_symptoms(solution: Posterior) -> tuple[Symptom, ...]:
    """Return the symptoms that need a fit: departures from the law with a probability above 0.1."""
    return tuple(
        DEPARTURE_SYMPTOMS[name](solution.curve, solution.draws.select(solution.of(name)), probability)
        for name, probability in solution.departures.items()
        if name in DEPARTURE_SYMPTOMS and probability > LIKELY
    )


def late_start(curve: Curve, draws: Draws, probability: float) -> Symptom:
    """Describe a level that was constant for the first part of the run."""
    delay = float(np.median(draws.delay))
    message = (
        f"with probability {probability:.2f} the climb starts only at {curve.text(delay)} and follows the law "
        f"from there; the forecast includes this"
    )
    return Symptom("late take-off", message, {"probability": probability, "start": delay})


def second_rise(curve: Curve, draws: Draws, probability: float) -> Symptom:
    """Describe a second sigmoid that has begun, or a climb that ends more slowly than the law."""
    midpoint = float(np.median(draws.second_midpoint))
    if not rises_again(curve, draws):
        message = (
            f"with probability {probability:.2f} the climb ends more slowly than the law predicts, from about "
            f"{curve.text(midpoint)} on; C_mid and B describe its first part, and the ceiling is less certain"
        )
        return Symptom("slow end", message, {"probability": probability, "second_midpoint": midpoint})
    message = (
        f"with probability {probability:.2f} a second rise has begun (half complete near {curve.text(midpoint)}); "
        f"C_mid and B describe the first rise, the ceiling is that of both"
    )
    return Symptom("two-phase rise", message, {"probability": probability, "second_midpoint": midpoint})


def rises_again(curve: Curve, draws: Draws) -> bool:
    """Return whether most draws become steeper again after they flattened, as a function of log compute."""
    compute_M = np.geomspace(curve.compute[curve.compute > 0][0], curve.last_compute, 60)
    slope_MD = np.diff(draws.levels(compute_M), axis=0)
    flatter_MD = np.logical_or.accumulate(np.diff(slope_MD, axis=0) < 0)
    least_MD = np.minimum.accumulate(np.where(flatter_MD, slope_MD[1:], np.inf))
    again_D = np.where(flatter_MD, slope_MD[1:] - least_MD, 0.0).max(axis=0)
    return bool((again_D > STEEPER * slope_MD.max(axis=0)).mean() > 0.5)


def creep(curve: Curve, draws: Draws, probability: float) -> Symptom:
    """Describe a level that drifts up after the climb."""
    rise = float(np.median(draws.second_gain / draws.second_midpoint)) * curve.last_compute
    message = (
        f"with probability {probability:.2f} the level creeps up, by {rise:.3f} for each further "
        f"{curve.text(curve.last_compute)}; there is no ceiling"
    )
    return Symptom("creep", message, {"probability": probability, "rise_per_run": rise})


DEPARTURE_SYMPTOMS: dict[str, Callable[[Curve, Draws, float], Symptom]] = {
    LATE_START.name: late_start,
    SECOND_RISE.name: second_rise,
    CREEP.name: creep,
}
"""The symptom of each departure from the law."""


def too_few_points(curve: Curve) -> Symptom | None:
    """Check for too few points for reliable intervals."""
    if len(curve) >= DATA_POINTS:
        return None
    message = f"{len(curve)} points; with fewer than {DATA_POINTS} the prior outweighs the data. Evaluate more often"
    return Symptom("too few points", message, {"points": len(curve)})


def decline(curve: Curve) -> Symptom | None:
    """Check for a metric that has fallen from its best by more than the noise explains."""
    if len(curve) < 5:
        return None
    smooth = rolling_mean(curve.metric)
    best = int(smooth.argmax())
    fall, noise = float(smooth[best] - smooth[-1]), local_noise(curve.metric)
    low, high = curve.bounds
    if fall < max(FALL * (high - low), 4 * noise):
        return None
    best_compute = float(curve.compute[best + 1])
    message = (
        f"the metric fell by {fall:.3f} since its best near {curve.text(best_compute)} (noise {noise:.4f}); the law "
        f"only rises, so look for the cause, or fit the part before the fall"
        + (" (of a metric that should fall, such as a loss, fit its negative)" if falls_throughout(curve) else "")
    )
    return Symptom("decline", message, {"fall": fall, "best_at": best_compute, "noise": noise})


def falls_throughout(curve: Curve) -> bool:
    """Return whether the metric falls from its first points to its last, as a loss does."""
    thirds = [float(part.mean()) for part in np.array_split(curve.metric, 3)]
    return int(rolling_mean(curve.metric).argmax()) <= len(curve) // 10 and thirds[0] > thirds[1] > thirds[2]


def early_saturation(curve: Curve) -> Symptom | None:
    """Check for a climb that came before the first point after compute 0, so that B and C_mid cannot be estimated."""
    if curve.compute[0] != 0 or len(curve) < 5:
        return None
    start, top = float(curve.metric[0]), float(rolling_mean(curve.metric).max())
    noise = local_noise(curve.metric)
    if top - start <= max(4 * noise, 0.01 * (curve.bounds[1] - curve.bounds[0])):
        return None
    share = (float(curve.metric[1]) - start) / (top - start)
    if share < EARLY_SHARE:
        return None
    message = (
        f"{share:.0%} of the climb came before the first evaluation, at {curve.text(curve.compute[1])}; "
        f"the ceiling can be estimated, B and C_mid cannot. Evaluate earlier in the next run"
    )
    return Symptom("saturation before the window", message, {"share": share, "first": float(curve.compute[1])})


def missing_start(curve: Curve) -> Symptom | None:
    """Check for compute that does not begin near 0, such as that of a run that continued another one."""
    first, last = float(curve.compute[0]), curve.last_compute
    spacing = float(np.median(np.diff(curve.compute))) if len(curve) > 1 else last
    if first <= FIRST_SPACINGS * spacing or first < 0.02 * last:
        return None
    message = (
        f"the curve starts at {curve.text(first)}, {first / spacing:.0f} times the distance of its evaluations; the "
        "law counts compute from the start of training. Add the earlier points, or subtract what was not this run's"
    )
    return Symptom("missing start", message, {"first": first, "spacing": spacing})


CHECKS: dict[str, Callable[[Curve], Symptom | None]] = {
    "too few points": too_few_points,
    "decline": decline,
    "saturation before the window": early_saturation,
    "missing start": missing_start,
}
"""Symptoms that need no fit, by name."""
