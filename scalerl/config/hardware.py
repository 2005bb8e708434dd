"""The hardware settings of a run: device, data types, threads."""

from __future__ import annotations

from typing import Literal

from scalerl.config.base import Part
from scalerl.config.numbers import NoneOrFew


class Hardware(Part):
    """Device, data types and threads."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if torch finds one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights of the forward pass; auto: float32 on CPU, bfloat16 on GPU (the optimizer keeps float32 masters)."""
    generator_threads: NoneOrFew = 0
    """CPU threads of the generator process; 0: half of the cores."""
    trainer_threads: NoneOrFew = 0
    """CPU threads of the trainer process; 0: half of the cores."""
    trainer_helpers: Literal["auto"] | NoneOrFew = "auto"
    """Additional threads, each with `trainer_threads`, that compute micro-batches on CPU while generators wait. Results
    do not depend on their number. auto: as many as fit on the cores, up to 3; 0: none. Each needs memory for a
    micro-batch and two gradients."""
