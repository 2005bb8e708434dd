"""Description of the processor, used in the keys of caches."""

from __future__ import annotations

from pathlib import Path

import torch


def cpu() -> str:
    """Return a description of the processor: its model name and number, and torch's instruction set."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = dict.fromkeys(line.split(":", 1)[1].strip() for line in lines if line.startswith("model"))
    return " ".join([*model, torch.backends.cpu.get_cpu_capability()])
