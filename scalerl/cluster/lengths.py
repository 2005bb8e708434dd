"""Lengths of completions for a simulation: lognormal with the recipe's limits, or measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalerl.config.recipe import Interruption, LengthControl
from scalerl.core.errors import ConfigError
from scalerl.core.files import parse_json, read_bytes, trouble

Lengths = npt.NDArray[np.int64]

POPULATION = 1 << 16
"""Number of lengths that a simulation draws from."""


def cut(raw: npt.NDArray[np.float64], control: LengthControl, seed: int = 0) -> Lengths:
    """Apply the recipe's length control to lengths.

    Without interruption, longer completions end at the limit. With interruption, a completion that reaches its thinking
    limit, uniform over [low, high], continues with an answer of 1 to `answer_tokens` tokens, uniform.
    """
    rng = np.random.default_rng(seed)
    if isinstance(control, Interruption):
        low, high = control.thinking_tokens
        limit = rng.integers(low, high + 1, len(raw))
        answer = rng.integers(1, control.answer_tokens + 1, len(raw))
        raw = np.where(raw > limit, limit + answer, raw)
    lengths: Lengths = np.clip(np.rint(raw), 1, control.max_tokens).astype(np.int64)
    return lengths


def lognormal(mean: float, sigma: float, control: LengthControl, count: int = POPULATION) -> Lengths:
    """Return lognormal lengths whose mean is `mean` after length control.

    Args:
        mean: Mean length after length control, tokens.
        sigma: Standard deviation of the logarithm, before length control.
        control: The recipe's length control.
        count: Number of lengths.

    Raises:
        ConfigError: No lognormal distribution has that mean after length control.
    """
    shape = np.exp(sigma * np.random.default_rng(1).standard_normal(count))
    low, high = -10.0, 25.0  # bounds on the logarithm of the scale; the mean increases with it
    if not float(cut(shape * np.exp(low), control).mean()) <= mean <= float(cut(shape * np.exp(high), control).mean()):
        most = float(cut(shape * np.exp(high), control).mean())
        raise ConfigError(
            f"mean length: got {mean:g} tokens; allowed: 1 to {most:,.0f} with this recipe.length. Give --mean-tokens, "
            "or change rollouts.expected_tokens"
        )
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if cut(shape * np.exp(middle), control).mean() < mean else (low, middle)
    return cut(shape * np.exp(high), control)


KEYS = ("completion_tokens", "tokens", "length")
"""Names under which a JSONL row may hold a length."""


def read_lengths(file: Path) -> Lengths:
    """Read measured lengths: a JSONL file of numbers, or of objects with `completion_tokens`, `tokens` or `length`.

    Raises:
        ConfigError: The file does not exist, or a line has no length of at least 1.
    """
    found: list[int] = []
    try:
        for number, line in enumerate(read_bytes(file).decode("utf-8-sig").split("\n"), 1):
            if not line.strip():
                continue
            row = parse_json(line)
            value = next((row[key] for key in KEYS if key in row), None) if isinstance(row, dict) else row
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 10**9:
                raise ConfigError(
                    f"{file}, line {number}: got {line[:60]!r}; allowed: a number of tokens from 1 to 10^9, "
                    f"or an object with one of {', '.join(KEYS)}"
                )
            found.append(round(value))
    except OSError as error:
        raise ConfigError(trouble(error)) from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file}: not a readable file of lengths ({error}); give one JSON value per line") from None
    if not found:
        raise ConfigError(f"{file}: the file has no lengths; give a JSONL file with one per line")
    return np.asarray(found, np.int64)
