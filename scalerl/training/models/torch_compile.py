"""Functions that torch.compile compiles once for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

COMPILER = "inductor"
"""Backend of torch.compile; tests take a faster one."""


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is compiled at its first call."""
    return torch.compile(function, dynamic=True, backend=COMPILER)
