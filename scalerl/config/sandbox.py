"""Where programs that a policy wrote are run, and what they may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scalerl.config.base import Part
from scalerl.config.numbers import Count, Seconds


class Sandbox(Part):
    """Isolation and limits of programs under test (docs/rewards.md has the threat model)."""

    mode: Literal["auto", "bubblewrap", "gvisor", "unsafe"] = "auto"
    """auto: bubblewrap, or gVisor (runsc) where bubblewrap does not work; a run without either is refused. unsafe:
    plain processes with limits and no isolation, for programs that you trust."""
    test_s: Seconds = 6.0
    """Seconds a program may take for one test or one call; LiveCodeBench's default."""
    program_s: Seconds = 60.0
    """Seconds all tests of one program may take."""
    memory_mb: Annotated[int, Field(ge=64, le=10**9)] = 1024
    """MiB of address space of a program, at least 64."""
    output_kb: Count = 4096
    """KiB of standard output, or of one returned value."""
    python: str = ""
    """Python that runs the programs, with its packages; empty: this one, with the standard library only."""
