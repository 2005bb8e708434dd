"""The reward of training as a curve: windows of steps with standard errors from their scatter, and what it hides.

Axes in names: N rows with a reward, W windows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scalerl.reading.tables.table import Array, Table, key

MOST_WINDOWS = 100
"""Most windows. With more rows, neighbors are averaged; a window is then at most 1% of the run."""

NEIGHBOR_WINDOWS = 10
"""Windows on each side from which the scatter of a window is estimated; few rows in one window say little about it."""


def windows(compute_N: Array, value_N: Array) -> tuple[NDArray[np.intp], Array, Array]:
    """Return the windows of rows in order of compute: the last row of each, its mean, its standard error, shape (W,).

    The scatter is that of neighboring rows, because the level itself changes over a run: half of the mean squared
    difference of neighbors is the variance of one row.
    """
    count = len(value_N)
    size = -(-count // MOST_WINDOWS)
    starts = np.arange(count % size, count, size) if count % size else np.arange(0, count, size)
    if starts[0]:  # the first window takes the rest, so that all others have the same size
        starts = np.concatenate([[0], starts])
    ends = np.append(starts[1:], count)
    sizes = ends - starts
    mean_W = np.add.reduceat(value_N, starts) / sizes
    if count < 3:
        return ends - 1, mean_W, np.full(len(starts), np.nan)
    half_square = np.append(np.diff(value_N) ** 2 / 2, np.nan)
    reach = NEIGHBOR_WINDOWS * size
    stderr_W = np.array([
        np.sqrt(np.nanmean(half_square[max(0, start - reach) : end + reach]) / rows)
        for start, end, rows in zip(starts, ends, sizes, strict=True)
    ])  # fmt: skip
    return ends - 1, mean_W, stderr_W


HIDDEN = (
    (r"num_gen_batches|dynamic_sampling|dynamic_filtering_pass_rate|(?:^|_)keep_rate|num_zero_variance_filtered"
     r"|filtered_reward|filter_groups|should_accept|num_prompts_dropped|(?:^|_)batch_filtered",
     "dynamic sampling: the log has {}; a reward of the prompts that were kept can look flat while the model improves"),
    (r"(?:^|_)pool_(?:easy|hard|normal|unseen)|retired|excluded_(?:prompts|indices)|no_resampling|num_solved_removed"
     r"|curriculum_(?:level|stage|difficulty)|(?:^|_)difficulty(?:_|$)",
     "the prompts change: the log has {}; solved prompts that leave make the reward fall, not the model"),
    (r"overlong|length_penalty|len_penalty|cosine_length|(?:^|_)length_reward|soft_punish|max_?len_reward",
     "a length penalty: the log has {}; the reward can rise because completions become shorter"),
)  # fmt: skip
"""Columns that show what the reward of training hides, as `table.key` writes them, and the mark for each."""


def hidden_causes(table: Table, metric: str, names: Sequence[str]) -> list[str]:
    """Return what the reward of training hides, as far as columns of the log show it."""
    texts = []
    for words, text in HIDDEN:
        shown = [
            name
            for name in names
            if re.search(words, key(name)) and name != metric and not key(name).endswith("_std") and varies(table, name)
        ]
        if shown:
            texts.append(text.format(", ".join(shown[:2])))
    return texts


def varies(table: Table, name: str) -> bool:
    """Return whether a column has a value other than 0 and 1 alone (a filter that never acted)."""
    value_N = table.column(name)
    value_N = value_N[np.isfinite(value_N)]
    return bool(len(value_N)) and not (bool(np.all(value_N == 0)) or bool(np.all(value_N == 1)))
