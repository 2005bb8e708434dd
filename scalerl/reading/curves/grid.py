"""Grids for a density over a box of few dimensions: functions that zoom in on its mass and draw from it.

Axes in names: K dimensions of the box, V variants (discrete alternatives on the same box), D draws. A grid of cells has
one array axis per dimension of the box, after the axis of the variants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.curves.law import Array

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]

FEW_CELLS = 12.0
"""Number of cells in the mass (inverse participation ratio) below which the grid is too coarse to show the width."""

RUNNERS_UP = 0.02
"""Share of the cells in the next box if the grid is too coarse."""

ENOUGH_CELLS = 250.0
"""Number of cells in the mass from which the grid is fine enough."""

SLIVER = 1e-3
"""Mass outside a box; much smaller than the mass outside an interval on each side."""

MAX_ZOOMS = 20
"""Limit on the number of zooms; data without noise need about nine."""


class Cells(NamedTuple):
    """Equal cells over a box, and the log density at their centers for each variant."""

    centers_K: list[Array]
    """Centers along each dimension."""
    step_K: Array
    """Sides of a cell."""
    log_density: Array
    """Log density at the centers, shape (V, cells along each dimension...)."""

    def log_mass(self, variants: slice = slice(None)) -> float:
        """Log integral of the density over the box, averaged over the given variants."""
        log_density = self.log_density[variants]
        peak = float(log_density.max())
        total = float(np.exp(log_density - peak).sum()) * float(self.step_K.prod()) / len(log_density)
        return peak + float(np.log(total))


class Picks(NamedTuple):
    """Points drawn from cells, each at a random place within its cell."""

    variant_D: Index
    place_KD: Array
    log_density_D: Array
    """Log density at the center of the cell; the weight of a draw is the density at the point divided by it."""


def zoom(log_density: Callable[[list[Array]], Array], limits_K2: Array, cells_K: tuple[int, ...]) -> Cells:
    """Return cells over the part of a box that contains the mass.

    A sharp posterior can be a hundred times narrower than the first cells. Intervals from such coarse cells would
    contain the truth far too rarely.

    Args:
        log_density: Function of the centers along each dimension; returns shape (V, cells along each dimension...).
        limits_K2: Limits of each dimension.
        cells_K: Number of cells along each dimension.
    """
    box_K2 = limits_K2
    for _ in range(MAX_ZOOMS):
        step_K = np.ptp(box_K2, axis=1) / cells_K
        centers_K = [box_K2[k, 0] + step_K[k] * (np.arange(n) + 0.5) for k, n in enumerate(cells_K)]
        density = log_density(centers_K)
        peak = density.max(axis=0)
        log_mass = peak + np.log(np.exp(density - peak).sum(axis=0))
        mass = np.exp(log_mass - log_mass.max())
        sharing = float(mass.sum() ** 2 / (mass**2).sum())
        smaller_K2 = box_around(kept_cells(log_mass, sharing), box_K2, step_K, limits_K2)
        shrinkage = float((np.ptp(smaller_K2, axis=1) / np.ptp(box_K2, axis=1)).min())
        # the last condition: with a ridge across the box, the zoom makes no progress
        if sharing > ENOUGH_CELLS or (sharing > FEW_CELLS and shrinkage > 0.6) or shrinkage > 0.95:
            break
        box_K2 = smaller_K2
    return Cells(centers_K, step_K, density)


def kept_cells(log_mass: Array, sharing: float) -> Mask:
    """Return a mask, of the shape of the grid, of the cells that the next box must contain.

    These are the cells with all but `SLIVER` of the mass. If the mass is in few cells near the peak, the grid does
    not show the width, and the next best cells are kept too.
    """
    # sorted by logarithm, because far from a sharp peak all masses underflow to zero
    best_first = np.argsort(log_mass, axis=None)[::-1]
    cumulative = np.cumsum(np.exp(log_mass.ravel()[best_first] - log_mass.max()))
    count = int(np.searchsorted(cumulative, (1 - SLIVER) * cumulative[-1])) + 1
    mask = np.zeros(log_mass.size, dtype=bool)
    mask[best_first[: max(count, int(RUNNERS_UP * log_mass.size) if sharing < FEW_CELLS else 0)]] = True
    return mask.reshape(log_mass.shape)


def box_around(mask: Mask, box_K2: Array, step_K: Array, limits_K2: Array) -> Array:
    """Return the smallest box around marked cells, plus a margin of one cell, so that it can also grow."""
    marked_K = np.nonzero(mask)
    low_K = box_K2[:, 0] + step_K * [marked.min() - 1 for marked in marked_K]
    high_K = box_K2[:, 0] + step_K * [marked.max() + 2 for marked in marked_K]
    return np.stack([np.maximum(low_K, limits_K2[:, 0]), np.minimum(high_K, limits_K2[:, 1])], axis=1)


def pick(cells: Cells, count: int, rng: np.random.Generator) -> Picks:
    """Draw points in proportion to the density, at random places within their cells."""
    flat = cells.log_density.ravel()
    chosen_D = systematic(np.exp(flat - flat.max()), count)
    variant_D, *index_K = np.unravel_index(chosen_D, cells.log_density.shape)
    center_KD = np.stack([centers[index] for centers, index in zip(cells.centers_K, index_K, strict=True)])
    place_KD = center_KD + cells.step_K[:, None] * (rng.random(center_KD.shape) - 0.5)
    return Picks(np.asarray(variant_D, dtype=np.int64), place_KD, flat[chosen_D])


def systematic(weights: Array, count: int) -> Index:
    """Draw indices in proportion to weights by systematic resampling, which adds little random error."""
    cumulative = np.cumsum(weights)
    index = np.searchsorted(cumulative / cumulative[-1], (np.arange(count) + 0.5) / count)
    return np.asarray(np.minimum(index, len(weights) - 1), dtype=np.int64)
