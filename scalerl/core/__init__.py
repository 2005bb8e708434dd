"""Foundations: errors, files, random streams, processes, and calls of user code. Nothing above is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VERSION = "0.1.0"
"""Version of the package, here for readers that must not import its top level."""

VIEWS: dict[str, Callable[..., Any]] = {}
"""Functions of `scalerl.reading.pages` that records of packages below it call, by name: `html_of` of a record, `plot`
of a curve or a fit, `curve_from` a path, frame or rows. The package's face registers them."""
