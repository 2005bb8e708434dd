"""Simulated runs with known truth and noise, which follow the law or depart from it.

Compute is in multiples of the run's last point, so a truth at 2.0 is the level at twice the compute spent. Every run
has one evaluation before training and 40 at equal steps after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalerl.reading.curves import Curve, sigmoid

POINTS = 41
RHOS = (1, 2, 4, 8, 16)
"""Ratio of the last compute to C_mid."""
EFFICIENCIES = (0.7, 1.0, 2.0, 3.0)
NOISES = ("white", "AR")

Truth = Callable[[np.ndarray], np.ndarray]
Random = np.random.Generator


@dataclass(frozen=True)
class Run:
    """A simulated curve and its true level."""

    curve: Curve
    truth: Truth
    """True level at any compute, in multiples of the last point."""
    asymptote: float


def white(rng: Random, level: np.ndarray) -> np.ndarray:
    """Draw noise of 16 answers to 1,000 fixed prompts (half of it between prompts), plus white noise of 0.0025."""
    return rng.standard_normal(len(level)) * np.sqrt(level * (1 - level) * 0.5 / 16_000 + 0.0025**2)


def autocorrelated(rng: Random, level: np.ndarray) -> np.ndarray:
    """Draw AR(1) noise with phi 0.7 and sd 0.008, plus white noise of 0.0025."""
    innovation = rng.standard_normal(len(level))
    noise = np.empty(len(level))
    noise[0] = 0.008 * innovation[0]
    for t in range(1, len(level)):
        noise[t] = 0.7 * noise[t - 1] + 0.008 * np.sqrt(1 - 0.7**2) * innovation[t]
    return noise + 0.0025 * rng.standard_normal(len(level))


def loud(rng: Random, level: np.ndarray) -> np.ndarray:
    """Draw white noise of 0.04, as that of training rewards."""
    return 0.04 * rng.standard_normal(len(level))


NOISE = {"white": white, "AR": autocorrelated, "loud": loud}


def observed(rng: Random, truth: Truth, noise: str, asymptote: float, points: int = POINTS) -> Run:
    """Draw a run with this truth and kind of noise."""
    compute = np.linspace(0.0, 1.0, points)
    level = np.clip(truth(compute), 0, 1)
    return Run(Curve(compute, np.clip(level + NOISE[noise](rng, level), 0, 1)), truth, asymptote)


def levels(rng: Random) -> tuple[float, float]:
    """Draw A in [0.35, 0.92] and R0 in [0.02, 0.5], with a difference in [0.1, 0.65]."""
    while True:
        asymptote, initial = rng.uniform(0.35, 0.92), rng.uniform(0.02, 0.5)
        if 0.1 <= asymptote - initial <= 0.65:
            return asymptote, initial


def log_uniform(rng: Random, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def lawful(rng: Random, rho: float, efficiency: float, noise: str) -> Run:
    """Draw a run that follows the law to rho times its midpoint."""
    asymptote, initial = levels(rng)
    return observed(rng, lambda c: sigmoid(c, asymptote, efficiency, 1 / rho, initial), noise, asymptote)


def saturated(rng: Random, noise: str) -> Run:
    """Draw a finished run, trained to 20 to 100 midpoints."""
    asymptote, initial = levels(rng)
    efficiency, midpoint = rng.uniform(1.5, 3), 1 / log_uniform(rng, 20, 100)
    return observed(rng, lambda c: sigmoid(c, asymptote, efficiency, midpoint, initial), noise, asymptote)


def creeping(rng: Random, noise: str) -> Run:
    """Draw a finished climb plus a linear drift that has gained 0.01 to 0.05 so far."""
    asymptote = rng.uniform(0.35, 0.5)
    initial = rng.uniform(0.02, asymptote - 0.12)
    efficiency, midpoint, drift = rng.uniform(1.5, 3), 1 / log_uniform(rng, 8, 30), log_uniform(rng, 0.01, 0.05)
    return observed(
        rng, lambda c: np.minimum(sigmoid(c, asymptote, efficiency, midpoint, initial) + drift * c, 1.0), noise, np.nan
    )


def late(rng: Random, noise: str) -> Run:
    """Draw a run without change in its first 20 to 70%, which then follows the law to 0.5 to 4 midpoints."""
    asymptote, initial = levels(rng)
    delay, efficiency = rng.uniform(0.2, 0.7), rng.uniform(1, 2.5)
    midpoint = (1 - delay) / log_uniform(rng, 0.5, 4)
    return observed(
        rng, lambda c: sigmoid(np.maximum(c - delay, 0), asymptote, efficiency, midpoint, initial), noise, asymptote
    )


def two_phase(rng: Random, noise: str) -> Run:
    """Draw a run with an early first climb, and a second that is half complete between 0.4 and 1.2 of the run."""
    initial, first, second = rng.uniform(0.02, 0.3), rng.uniform(0.1, 0.3), rng.uniform(0.1, 0.3)
    at, then = rng.uniform(0.05, 0.15), log_uniform(rng, 0.4, 1.2)
    steep, steeper = rng.uniform(1.5, 3), rng.uniform(2, 5)
    return observed(
        rng,
        lambda c: sigmoid(c, initial + first, steep, at, initial) + sigmoid(c, second, steeper, then, 0.0),
        noise,
        initial + first + second,
    )


def hardly_begun(rng: Random, noise: str) -> Run:
    """Draw a run that follows the law to 0.15 to 0.5 midpoints, so that most of the climb is still ahead."""
    asymptote, initial = levels(rng)
    efficiency, midpoint = rng.uniform(1.5, 3), 1 / log_uniform(rng, 0.15, 0.5)
    return observed(rng, lambda c: sigmoid(c, asymptote, efficiency, midpoint, initial), noise, asymptote)


SCENARIOS = {
    "saturated": saturated,
    "creeping": creeping,
    "late": late,
    "two-phase": two_phase,
    "hardly begun": hardly_begun,
}


def any_law(rng: Random, noise: str) -> Run:
    """Draw a run that follows the law to 2, 4, 8 or 16 midpoints."""
    return lawful(rng, float(rng.choice([2, 4, 8, 16])), log_uniform(rng, 0.7, 3), noise)


def exponential(rng: Random, noise: str) -> Run:
    """Draw a run that ends exponentially, with a time constant of 0.08 to 0.5 of the run, stretched or not."""
    asymptote, initial = levels(rng)
    tau, stretch = rng.uniform(0.08, 0.5), rng.choice([1.0, rng.uniform(0.6, 1.6)])
    return observed(
        rng, lambda c: initial - (asymptote - initial) * np.expm1(-((c / tau) ** stretch)), noise, asymptote
    )


def power(rng: Random, noise: str) -> Run:
    """Draw a run that ends as a power of compute from its first step: A - (A - R0) (1 + C / c0)^-b."""
    asymptote, initial = levels(rng)
    scale, exponent = log_uniform(rng, 0.02, 0.3), rng.uniform(0.5, 2.0)
    return observed(rng, lambda c: asymptote - (asymptote - initial) * (1 + c / scale) ** -exponent, noise, asymptote)


def unseen_rise(rng: Random, noise: str) -> Run:
    """Draw a run that follows the law to 4 to 16 midpoints, and rises again between 1.3 and 4 times its compute."""
    asymptote, initial = levels(rng)
    midpoint, efficiency = 1 / log_uniform(rng, 4, 16), rng.uniform(1.2, 2.5)
    second, at = rng.uniform(0.05, 0.2), log_uniform(rng, 1.6, 4)
    most = min(asymptote + second, 1.0)
    return observed(
        rng,
        lambda c: sigmoid(c, asymptote, efficiency, midpoint, initial) + sigmoid(c, most - asymptote, 6.0, at, 0.0),
        noise,
        most,
    )


def hump(rng: Random, noise: str) -> Run:
    """Draw a run that climbs, and has slowly lost 0.02 to 0.08 since its best at half of its compute."""
    asymptote, initial = levels(rng)
    midpoint, efficiency, lost = 1 / log_uniform(rng, 6, 20), rng.uniform(1.5, 3), rng.uniform(0.02, 0.08)
    return observed(
        rng,
        lambda c: (
            sigmoid(c, asymptote, efficiency, midpoint, initial)
            - lost * np.clip((np.minimum(c, 1.0) - 0.5) / 0.5, 0, 1)
        ),
        noise,
        np.nan,
    )


def fallen(rng: Random, noise: str) -> Run:
    """Draw a run that falls by 0.3 to 0.8 of its climb within a tenth of its compute, and stays there."""
    asymptote, initial = levels(rng)
    midpoint, efficiency = 1 / log_uniform(rng, 6, 20), rng.uniform(1.5, 3)
    lost, at = rng.uniform(0.3, 0.8) * (asymptote - initial), rng.uniform(0.5, 0.75)
    return observed(
        rng,
        lambda c: sigmoid(c, asymptote, efficiency, midpoint, initial) - lost * np.clip((c - at) / 0.1, 0, 1),
        noise,
        np.nan,
    )


KINDS = {
    "law": any_law,
    "power": power,
    "exponential": exponential,
    "fallen": fallen,
    "second rise": two_phase,
    "unseen rise": unseen_rise,
    "hump": hump,
    **{name: SCENARIOS[name] for name in ("saturated", "creeping", "late", "hardly begun")},
}
"""Worlds of the calibration; their A is NaN if they have none."""


def before_fall(rng: Random) -> tuple[Truth, float, float]:
    """Draw a climb to 6 to 20 midpoints, how far it falls (0.3 to 0.8 of the climb), and at which compute."""
    asymptote, initial = levels(rng)
    midpoint, efficiency = 1 / log_uniform(rng, 6, 20), rng.uniform(1.5, 3)
    lost, at = rng.uniform(0.3, 0.8) * (asymptote - initial), rng.uniform(0.5, 0.92)
    return lambda c: sigmoid(c, asymptote, efficiency, midpoint, initial), lost, at


def fell_at_once(rng: Random, noise: str) -> Run:
    """Draw a run that falls between two evaluations and stays there."""
    climb, lost, at = before_fall(rng)
    return observed(rng, lambda c: climb(c) - lost * (c > at), noise, np.nan)


def fell_slowly(rng: Random, noise: str) -> Run:
    """Draw a run that falls within 0.05 to 0.4 of its compute, also after its last point, and stays there."""
    climb, lost, at = before_fall(rng)
    within = rng.uniform(0.05, 0.4)
    return observed(rng, lambda c: climb(c) - lost * np.clip((c - at) / within, 0, 1), noise, np.nan)


def fell_and_returned(rng: Random, noise: str) -> Run:
    """Draw a run that falls at once, and at once returns after 3 to 16 evaluations."""
    climb, lost, at = before_fall(rng)
    back = at + log_uniform(rng, 3, 16) / (POINTS - 1)
    return observed(rng, lambda c: climb(c) - lost * ((c > at) & (c < back)), noise, np.nan)


def fell_and_recovers(rng: Random, noise: str) -> Run:
    """Draw a run that falls at once, and recovers 0.5 to 1 of it with a time constant of 0.1 to 1 of the run."""
    climb, lost, at = before_fall(rng)
    share, tau = rng.uniform(0.5, 1), log_uniform(rng, 0.1, 1)
    left = lambda c: 1 - share * -np.expm1(-np.maximum(c - at, 0) / tau)  # noqa: E731
    return observed(rng, lambda c: climb(c) - lost * left(c) * (c > at), noise, np.nan)


def lower_after_start(rng: Random, noise: str) -> Run:
    """Draw a run that begins 0.3 to 0.5 above the level at which it stays from its second to fourth evaluation on."""
    level, above = rng.uniform(0.1, 0.45), rng.uniform(0.3, 0.5)
    first = rng.integers(1, 4) - 0.5
    return observed(rng, lambda c: level + above * (c * (POINTS - 1) < first), noise, np.nan)


FALLS = {
    "fell at once": (fell_at_once, 10 / 26),
    "fell slowly": (fell_slowly, 10 / 26),
    "fell and returned": (fell_and_returned, 3 / 26),
    "fell and recovers": (fell_and_recovers, 3 / 26),
    "lower after the start": (lower_after_start, 0.0),
}
"""Worlds after a fall, and their shares: of 26 parts of public runs that had fallen, 20 recovered less than half of it
(`counts.STAYED_DOWN`); the split of each is even. The last was reported and not counted, so it is in no mean."""
