"""The machine's part of a run's configuration: device, types, threads, libraries."""

from __future__ import annotations

from typing import Literal

from scalerl.config.base import Part
from scalerl.config.numbers import NoneOrFew


class Hardware(Part):
    """The machine."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where torch sees one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights of the forward pass; auto: float32 on CPU, bfloat16 on GPU (the optimiser keeps float32 masters)."""
    generator_threads: NoneOrFew = 0
    """CPU threads of the generator process; 0: half of the cores."""
    trainer_threads: NoneOrFew = 0
    """CPU threads of the trainer process; 0: half of the cores."""
    trainer_helpers: Literal["auto"] | NoneOrFew = "auto"
    """Threads beside the trainer's own, each with `trainer_threads`, that compute micro-batches on CPU while generators
    wait. Results do not depend on them. auto: as many as there are cores for, up to 3; 0: none. Each needs memory for
    a micro-batch and two gradients."""
    generator_matmul: Literal["auto", "onednn", "torch"] = "auto"
    """Library that multiplies FP32 matrices in the generators on CPU. onednn: the one that ships inside torch; torch:
    what torch's own linear uses (MKL on x86). auto: the faster of both at the run's shapes, timed once a machine and
    kept in the cache. They differ by rounding, so equal bits need equal values. On GPU: torch."""
    trainer_matmul: Literal["auto", "onednn", "torch"] = "auto"
    """Likewise for the trainer."""
