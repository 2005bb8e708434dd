"""Which library multiplies FP32 matrices faster on this CPU: both are timed at the shapes in use, once a machine.

MKL is half as fast as oneDNN on AMD processors and 5 to 25% faster on Intel's (docs/benchmarks.md), so neither is right
everywhere. The results differ by rounding. The choice is kept in the cache, so that equal commands on one machine make
the same one however close the two are.
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

from scalerl.files import cache_root
from scalerl.models.cpu import onednn
from scalerl.models.policy import Policy

LIBRARIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"onednn": onednn.linear, "torch": nn.functional.linear}

MARGIN = 0.97
"""torch's own library is chosen below this share of oneDNN's time; noise is not a reason to choose."""

ROUNDS = 7
"""Timed passes of each library, in turns; the first warms up."""

_MOST_FLOPS, _WIDEST, _FEWEST_ROWS = 2**28, 8192, 16
"""Of one timed product: a few milliseconds, and no second copy of a large head."""


@dataclass(frozen=True, slots=True)
class Products:
    """The matrix products of one step.

    Example (a Qwen3 of 4 layers that decodes 64 rows): Products(shapes=((256, 256, 4), (512, 256, 1), ...), rows=64,
    threads=1, backward=False)
    """

    shapes: tuple[tuple[int, int, int], ...]
    """(outputs, inputs, how many) of each kind of weight."""
    rows: int
    """Tokens that are multiplied together."""
    threads: int
    """CPU threads of the process."""
    backward: bool
    """Whether gradients are computed too."""


def products_of(policy: Policy, rows: int, threads: int, backward: bool) -> Products:
    """Return the FP32 products of a model's step.

    Args:
        policy: the model, on CPU.
        rows: tokens that are multiplied together.
        threads: CPU threads.
        backward: whether gradients are computed too.
    """
    head = policy.model.get_output_embeddings()
    layers = [m for m in policy.model.modules() if type(m) is nn.Linear and m is not head]
    weights = [layer.weight for layer in layers if layer.weight.dtype == torch.float32]
    if policy.rule.fp32 or policy.head_weight.dtype == torch.float32:
        weights.append(policy.head_weight)
    counts = Counter((int(weight.shape[0]), int(weight.shape[1])) for weight in weights)
    return Products(tuple(sorted((*shape, n) for shape, n in counts.items())), rows, threads, backward)


def seconds(work: Products) -> Mapping[str, float]:
    """Return the time that each library takes for the products of one step: medians over rounds in turns.

    One thread is timed by its own CPU seconds, which other processes hardly change; several by the clock.
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
    """One kind of weight, timed with fewer rows and outputs where it is large."""

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
        work: what is multiplied.
        timed: returns the seconds of a step by library; only asked where the cache has no choice for this machine.
    """
    if not work.shapes or not onednn.available():
        return "torch"
    file = _cache_file(work)
    if not file.exists():
        took = timed(work)
        library = "torch" if took["torch"] < MARGIN * took["onednn"] else "onednn"
        _keep(file, json.dumps({"library": library, "seconds": dict(took), "cpu": cpu(), "work": asdict(work)}))
    return str(json.loads(file.read_text(encoding="utf-8"))["library"])


def _keep(file: Path, text: str) -> None:
    """Write a file whole unless another process, which may have measured otherwise, was first."""
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


def cpu() -> str:
    """Return what tells kinds of processors apart: the model's name and number, and torch's instruction set."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = dict.fromkeys(line.split(":", 1)[1].strip() for line in lines if line.startswith("model"))
    return " ".join([*model, torch.backends.cpu.get_cpu_capability()])
