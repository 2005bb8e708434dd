"""Isolation and limits of the programs that a policy writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scalerl.config.base import Part
from scalerl.config.numbers import Count, Seconds


class Sandbox(Part):
    """Isolation and limits of programs under test (docs/rewards.md has the threat model)."""

    mode: Literal["auto", "bubblewrap", "gvisor", "unsafe"] = "auto"
    """auto: bubblewrap, or gVisor (runsc) if bubblewrap does not work; without either, the run does not start. unsafe:
    plain processes with limits and without isolation, for programs that you trust."""
    test_s: Seconds = 6.0
    """Time limit of a program for one test or one call, seconds; LiveCodeBench's default."""
    program_s: Seconds = 60.0
    """Time limit of all tests of one program, seconds."""
    memory_mb: Annotated[int, Field(ge=64, le=10**9)] = 1024
    """Address space of a program, MiB; at least 64."""
    output_kb: Count = 4096
    """Limit of standard output, or of one returned value, KiB."""
    python: str = ""
    """Python that runs the programs, with its packages; empty: the current one, with the standard library only."""
