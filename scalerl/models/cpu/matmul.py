"""Choice of the faster library for FP32 products on this CPU, by timing both at the shapes in use.

MKL is half as fast as oneDNN on AMD processors and 5 to 25% faster on Intel processors (docs/benchmarks.md). Their
results differ by rounding. The choice is cached for each machine, so that equal commands make the same choice even if
the two are close.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from scalerl.files import cache_root, read_json
from scalerl.models.cpu import onednn
from scalerl.models.cpu.processor import cpu
from scalerl.models.policy import Policy

LIBRARIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"onednn": onednn.linear, "torch": nn.functional.linear}

MARGIN = 0.97
"""torch's default library is chosen if it takes less than this share of oneDNN's time; timings are noisy."""

ROUNDS = 7
"""Timed passes of each library, alternating, after one warm-up pass."""

_MOST_FLOPS, _WIDEST, _FEWEST_ROWS = 2**28, 8192, 16
"""Limits of one timed product: it takes a few milliseconds and needs no second copy of a large head."""


@dataclass(frozen=True, slots=True)
class Products:
    """The matrix products of one step.

    Example (a Qwen3 of 4 layers that decodes 64 rows): Products(shapes=((256, 256, 4), (512, 256, 1), ...), rows=64,
    threads=1, backward=False)
    """

    shapes: tuple[tuple[int, int, int], ...]
    """(outputs, inputs, count) for each shape of weights."""
    rows: int
    """Tokens per product."""
    threads: int
    """CPU threads of the process."""
    backward: bool
    """Whether gradients are computed too."""


def products_of(policy: Policy, rows: int, threads: int, backward: bool) -> Products:
    """Return the FP32 products of a model's step.

    Args:
        policy: The model, on CPU.
        rows: Tokens per product.
        threads: CPU threads.
        backward: Whether gradients are computed too.
    """
    head = policy.model.get_output_embeddings()
    layers = [m for m in policy.model.modules() if type(m) is nn.Linear and m is not head]
    weights = [layer.weight for layer in layers if layer.weight.dtype == torch.float32]
    if policy.rule.fp32 or policy.head_weight.dtype == torch.float32:
        weights.append(policy.head_weight)
    counts = Counter((int(weight.shape[0]), int(weight.shape[1])) for weight in weights)
    return Products(tuple(sorted((*shape, n) for shape, n in counts.items())), rows, threads, backward)


def seconds(work: Products) -> Mapping[str, float]:
    """Return the seconds that each library takes for the products of one step, as medians over alternating rounds.

    One thread is timed by its CPU time, which other processes hardly affect; several threads by wall-clock time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(work.threads)
    try:
        cases = [_Case(out, of, count, work) for out, of, count in work.shapes]
        took: dict[str, list[list[float]]] = {name: [[] for _ in cases] for name in LIBRARIES}
        for _ in range(1 + ROUNDS):
            for name in LIBRARIES:
                for case, values in zip(cases, took[name], strict=True):
                    values.append(case.seconds(name))
    finally:
        torch.set_num_threads(before)
    return {name: sum(statistics.median(values[1:]) for values in cases_of) for name, cases_of in took.items()}


class _Case:
    """One shape of weights, timed with fewer rows and outputs if it is large."""

    def __init__(self, outputs: int, inputs: int, count: int, work: Products) -> None:
        wide = min(outputs, _WIDEST)
        rows = min(work.rows, max(_FEWEST_ROWS, _MOST_FLOPS // (2 * wide * inputs)))
        self.scale = count * (outputs / wide) * (work.rows / rows)
        self.backward, self.clock = work.backward, time.thread_time if work.threads == 1 else time.perf_counter
        self.x_NI = torch.ones(rows, inputs, requires_grad=work.backward)
        self.weight_OI = torch.ones(wide, inputs, requires_grad=work.backward)
        self.grad_NO = torch.ones(rows, wide)

    def seconds(self, library: str) -> float:
        began = self.clock()
        if self.backward:
            out_NO = LIBRARIES[library](self.x_NI, self.weight_OI)
            torch.autograd.grad(out_NO, (self.x_NI, self.weight_OI), self.grad_NO)
        else:
            with torch.inference_mode():
                LIBRARIES[library](self.x_NI, self.weight_OI)
        return self.scale * (self.clock() - began)


def choose(work: Products, timed: Callable[[Products], Mapping[str, float]] = seconds) -> str:
    """Return the library for the products of a step: "onednn" or "torch".

    Args:
        work: Products of the step.
        timed: Function that returns the seconds of a step by library; called only if no choice is cached.
    """
    if not work.shapes or not onednn.available():
        return "torch"
    file = _cache_file(work)
    if not file.exists():
        took = timed(work)
        library = "torch" if took["torch"] < MARGIN * took["onednn"] else "onednn"
        _keep(file, json.dumps({"library": library, "seconds": dict(took), "cpu": cpu(), "work": asdict(work)}))
    return str(read_json(file)["library"])


def _keep(file: Path, text: str) -> None:
    """Write a file atomically unless another process, whose measurement may differ, was faster."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(text + "\n", encoding="utf-8")
    try:
        os.link(temporary, file)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _cache_file(work: Products) -> Path:
    key = json.dumps([asdict(work), cpu(), torch.__version__])
    return cache_root() / "matmul" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
