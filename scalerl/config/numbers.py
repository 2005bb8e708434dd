"""The kinds of numbers that fields hold, each with its range: what no machine can do is refused when it is read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1, le=10**9)]
"""At least 1."""
Natural = Annotated[int, Field(ge=0, le=10**9)]
"""At least 0."""
Held = Annotated[int, Field(ge=1, le=10**7)]
"""Things that are held in memory, such as prompts."""
Few = Annotated[int, Field(ge=1, le=10**4)]
"""Processes, layers, samples of a prompt."""
NoneOrFew = Annotated[int, Field(ge=0, le=10**4)]
"""The same, or 0."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""What torch takes as a seed."""
Positive = Annotated[float, Field(gt=0)]
"""Above 0."""
Share = Annotated[float, Field(ge=0, le=1)]
"""From 0 to 1."""
Fraction = Annotated[float, Field(gt=0, le=1)]
"""Above 0, at most 1."""
Seconds = Annotated[float, Field(gt=0, le=1e7)]
"""Seconds that something may take: at most 115 days, since the system's timers end somewhere above."""
