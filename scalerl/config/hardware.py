"""The hardware settings of a run: device, data types, threads, libraries."""

from __future__ import annotations

from typing import Literal

from scalerl.config.base import Part
from scalerl.config.numbers import NoneOrFew


class Hardware(Part):
    """Device, data types, threads and libraries."""

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
    generator_matmul: Literal["auto", "onednn", "torch"] = "auto"
    """Library for FP32 matrix products in the generators on CPU. onednn: oneDNN, as included in torch. torch: the
    library of torch.nn.Linear (MKL on x86). auto: the faster of both at the run's shapes, timed once per machine and
    cached. They differ by rounding, so bit-identical runs need the same library. On GPU: torch."""
    trainer_matmul: Literal["auto", "onednn", "torch"] = "auto"
    """The same for the trainer."""
    kernels: Literal["auto", "compiled", "torch"] = "auto"
    """Kernels of decoding attention, RMS norms, gated MLPs and rotary embeddings in FP32 on CPU. compiled: loops in C,
    built once per machine; processes with several threads use torch. torch: the operations of torch. auto: compiled if
    a C compiler is found. They differ by rounding, so bit-identical runs need the same kernels. On GPU: torch."""
