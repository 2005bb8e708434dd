"""Fits the arms of a study: checks that they can be compared, fits their runs, and detects collapsed runs.

Axes in names: S runs (seeds) of an arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scalerl.scaling.compare import Runs, check_alike, listed
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import Fit, fit
from scalerl.scaling.health import Symptom, decline
from scalerl.scaling.readers import CurveError

COLLAPSE_SD = 5.0
"""Size from which a decline counts as a collapse, in standard deviations of the noise before it."""


class FittedArm(NamedTuple):
    """One arm with the fits of its runs."""

    arm: str
    spent_S: tuple[float, ...]
    """Compute of each run so far."""
    fits: tuple[Fit, ...]
    """Fits of the runs that could be fitted and have not collapsed."""
    unfitted: str
    """Reason why a run could not be fitted; empty if all could."""
    fallen: tuple[Symptom, ...]
    """Decline of each run that has collapsed."""

    @property
    def collapsed(self) -> bool:
        """Whether at least half of the runs have collapsed."""
        return 2 * len(self.fallen) >= len(self.spent_S)

    @property
    def spent(self) -> float:
        """Compute of all runs."""
        return sum(self.spent_S)

    @property
    def left_out(self) -> str:
        """The runs that the verdict does not use, as the end of a sentence."""
        too_short = len(self.spent_S) - len(self.fits) - len(self.fallen)
        counts = {"collapsed": len(self.fallen), "too short to fit": too_short}
        parts = [f"{count} {what}" for what, count in counts.items() if count]
        return f"; runs left out: {', '.join(parts)}" if parts else ""

    @property
    def problem(self) -> str:
        """Reason why the arm could not be judged."""
        if self.collapsed:
            return f"{len(self.fallen)} of its {len(self.spent_S)} runs have collapsed: {self.fallen[0].message}"
        return f"too early to judge: {self.unfitted}"


def checked_arms(arms: Mapping[str, Runs]) -> list[Curve]:
    """Return the curves of all arms; raise an error if the arms cannot be compared."""
    if len(arms) < 2:
        raise CurveError(
            f"an allocation needs at least two arms; got {len(arms)} ({', '.join(arms) or 'none'}). Add an arm, or use "
            f"advise() for a single run"
        )
    curves = []
    for name, runs in arms.items():
        if not listed(runs):
            raise CurveError(
                f"every arm needs at least one run; got none for {name!r}. Give it a curve or leave the arm out"
            )
        for run in listed(runs):
            if isinstance(run, Fit) and run.method != "posterior":
                raise CurveError(
                    f"an allocation needs posterior fits; got method {run.method!r} in arm {name!r}. Fit its runs with "
                    "the method posterior"
                )
            curves.append(run.curve if isinstance(run, Fit) else run)
    check_alike(curves)
    return curves


def fitted_arm(arm: str, runs: list[Curve | Fit]) -> FittedArm:
    """Fit the runs of one arm; runs that cannot be fitted are listed with the reason."""
    fits, fallen, unfitted = [], [], ""
    for run in runs:
        try:
            fitted = run if isinstance(run, Fit) else fit(run)
        except CurveError as error:  # too few points; the arm continues
            unfitted = str(error)
            continue
        if np.ptp(fitted.curve.metric) == 0:
            unfitted = f"every metric value is {fitted.curve.metric[0]:g}"
            continue
        symptom = collapse(fitted.curve)
        if symptom is None:
            fits.append(fitted)
        else:
            fallen.append(symptom)
    return FittedArm(arm, tuple(run.last_compute for run in runs), tuple(fits), unfitted, tuple(fallen))


def collapse(curve: Curve) -> Symptom | None:
    """Return a decline that autocorrelated noise does not explain; None if there is none.

    The noise is estimated from a fit of the part before the decline; a fit of the whole would count the decline as
    noise.
    """
    symptom = decline(curve)
    if symptom is None:
        return None
    try:
        before = fit(curve.between(most=symptom.numbers["best_at"]))
    except CurveError:  # this part is too short for a fit, so only the size of the decline counts
        return symptom
    return symptom if symptom.numbers["fall"] >= COLLAPSE_SD * before.noise_sd else None
