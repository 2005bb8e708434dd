"""Types of numeric fields with their ranges; values that no machine can handle are rejected when read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1, le=10**9)]
"""At least 1."""
Natural = Annotated[int, Field(ge=0, le=10**9)]
"""At least 0."""
Held = Annotated[int, Field(ge=1, le=10**7)]
"""Counts of objects in memory, such as prompts."""
Few = Annotated[int, Field(ge=1, le=10**4)]
"""Counts of processes, layers, samples per prompt."""
NoneOrFew = Annotated[int, Field(ge=0, le=10**4)]
"""The same, or 0."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Seeds that torch accepts."""
Positive = Annotated[float, Field(gt=0)]
"""Above 0."""
Share = Annotated[float, Field(ge=0, le=1)]
"""From 0 to 1."""
Fraction = Annotated[float, Field(gt=0, le=1)]
"""Above 0, at most 1."""
Seconds = Annotated[float, Field(gt=0, le=1e7)]
"""Time limits in seconds: at most 115 days, because larger values overflow timers of the system."""
