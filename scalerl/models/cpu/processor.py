"""Description of the processor, and of the code that computes on it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch


@cache
def amd() -> bool:
    """Return whether this is an AMD processor."""
    return "AuthenticAMD" in _cpuinfo("vendor_id")


def cpu() -> str:
    """Return a description of the processor: its model name and number, and torch's instruction set."""
    return " ".join([*_cpuinfo("model"), torch.backends.cpu.get_cpu_capability()])


def _cpuinfo(start: str) -> list[str]:
    """Return the different values of all fields of Linux's /proc/cpuinfo whose name begins with `start`."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return list(dict.fromkeys(line.split(":", 1)[1].strip() for line in lines if line.startswith(start)))
