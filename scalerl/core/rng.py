"""Stateless random streams keyed by their purpose, so that draws do not depend on the order of the work.

Every sample has a stream keyed by (seed, purpose, prompt, visit, sample), and token t uses the t-th number. A sample
therefore gets the same numbers in any batch, on any machine, and after any resume.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

UIntArray = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_key(*parts: object) -> int:
    """Return a 64-bit key for a stream; equal parts give equal keys in every process and Python version."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(key_B: UIntArray, position_B: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) for each (key, position), by the output function of splitmix64."""
    with np.errstate(over="ignore"):  # the algorithm relies on wrap-around
        z_B = key_B + (position_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z_B = (z_B ^ (z_B >> np.uint64(30))) * _MIX_1
        z_B = (z_B ^ (z_B >> np.uint64(27))) * _MIX_2
        z_B = z_B ^ (z_B >> np.uint64(31))
    high_B: npt.NDArray[np.float64] = (z_B >> np.uint64(11)).astype(np.float64)
    return high_B * 2.0**-53
