"""Where should the rest of a budget go? Three arms after a quarter of it: the slow one may still be the best.

python examples/allocate_budget.py
"""

import numpy as np

from scalerl.reading.curves import Curve, sigmoid
from scalerl.training.study.allocate import allocate


def simulate(seed, asymptote, midpoint):
    """The first quarter of a run, with 13 evaluations."""
    compute = np.linspace(0, 0.25, 13)
    noise = 0.004 * np.random.default_rng(seed).standard_normal(13)
    return Curve(compute, sigmoid(compute, asymptote, 1.8, midpoint, 0.2) + noise)


arms = {
    "low": [simulate(seed, 0.45, 0.03) for seed in (0, 1, 2)],
    "good": [simulate(seed, 0.60, 0.06) for seed in (3, 4, 5)],
    "slow": [simulate(seed, 0.66, 0.40) for seed in (6, 7, 8)],
}
print(allocate(arms))
