"""RMS norms and decoding attention on CPU, in loops of C (kernels.c) that the machine's compiler builds.

Without them a step of the lab takes 1.10 to 1.18 times the CPU time (benchmarks/cpu_loops.py). They are used wherever
they can be: a compiler was found, the tensors are FP32 and contiguous on CPU, and the caller computes with one thread,
as the loops do. Otherwise torch computes. There is no switch, so the results do not depend on what else a process does.

transformers computes x * rsqrt(mean(x^2) + eps) * w in seven operations, with as many for the gradient. A module is
replaced only if its forward gives these values, so norms with another formula (Gemma's 1 + w) are unchanged.

Decoding attention is for one new token per sequence over a slot cache. The keys of all heads of a position are
contiguous, as are the values, so that a new position is written as one row. The function is registered with
transformers' attention interface, applies only to decoding on CPU, and passes all calls that the loop does not accept
to transformers' SDPA.

Legend: R sequences, H key-value heads, G queries per key-value head, D size, K cached positions, N rows.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn

from scalerl.core.files import atomic_file, cache_root, is_own, read_bytes
from scalerl.core.limits import COMPILE_S

LIBRARY_NAME = "scalerl_slots"
_UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Keyword arguments that change the formula."""
SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros",
    "-freciprocal-math", "-ffp-contract=fast", "-shared", "-fPIC",
)  # fmt: skip
"""Compiler options. -ffast-math is not used, because it may treat NaN as a number and hide a failed update."""

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS: dict[str, list[Any]] = {
    "decode_attention": [_P] * 6 + [_I] * 6 + [_F],
    "rms_norm": [_P] * 4 + [_I, _I, _F],
    "rms_norm_backward": [_P] * 6 + [_I, _I],
}

_LONGEST = 200
"""Maximum number of characters of a compiler's message in an error."""


class _NoCompiler(Exception):
    """No compiler was found."""


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


@cache
def problem() -> str | None:
    """Return why the loops cannot be used on this machine; None if they can. The first call compiles them."""
    try:
        wrong = _wrong()
    except _NoCompiler:
        return "there is no C compiler (cc, gcc or clang) on PATH"
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        ended = f"exit status {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
        detail = str(getattr(error, "stderr", None) or ended).strip().splitlines()[0]
        return f"the C compiler failed ({detail[:_LONGEST]})"
    return f"the compiled {wrong} gives wrong values" if wrong else None


def serves(*tensors: Tensor) -> bool:
    """Return whether the loops can be used here and accept these tensors: FP32, on CPU and contiguous."""
    if torch.get_num_threads() != 1 or problem() is not None:
        return False
    for x in tensors:  # noqa: SIM110  a generator expression takes as long as a small norm
        if x.dtype is not torch.float32 or not x.is_cpu or not x.is_contiguous():
            return False
    return True


# ---------------------------------------------------------------------------------------------------------------- norms


def accelerate_norms(model: nn.Module) -> None:
    """Make the RMS norms of a model on CPU use the loops, in place; parameters and state dict do not change."""
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if type(module).__name__.endswith("RMSNorm") and isinstance(eps, float) and _agrees(module, eps):
            module.forward = partial(_forward, module, eps)  # a closure could not be pickled


def _forward(norm: nn.Module, eps: float, x: Tensor) -> Tensor:
    weight_D = cast(Tensor, norm.weight)
    if not serves(x, weight_D):
        return cast(Tensor, type(norm).forward(norm, x))
    return rms_norm(x, weight_D, eps)


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, with a gradient, for activations [..., D]."""
    if torch.is_grad_enabled() and (x.requires_grad or weight_D.requires_grad):
        return cast(Tensor, _RmsNorm.apply(x, weight_D, eps))  # type: ignore[no-untyped-call]
    return norm_forward(x, weight_D, eps)[0]


@torch.no_grad()
def _agrees(module: nn.Module, eps: float) -> bool:
    weight_D = getattr(module, "weight", None)
    if not isinstance(weight_D, Tensor) or weight_D.ndim != 1 or weight_D.dtype != torch.float32:
        return False
    if weight_D.device.type != "cpu" or "forward" in vars(module):
        return False
    x_2D = torch.linspace(-3.0, 2.0, 2 * len(weight_D)).view(2, -1)
    expected_2D = nn.functional.rms_norm(x_2D, weight_D.shape, weight_D, eps)
    return torch.allclose(module(x_2D), expected_2D, rtol=1e-5, atol=1e-6)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        out, scale = norm_forward(x, weight_D, eps)
        ctx.save_for_backward(x, weight_D, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return *norm_backward(grads[0].contiguous(), *ctx.saved_tensors), None


# ------------------------------------------------------------------------------------------------------------ attention


def install_attention(model: Any) -> None:
    """Let a model on CPU whose attention is SDPA decode with the compiled loop."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = model.config._attn_implementation == "sdpa" and model._supports_attention_backend
    if not plain or next(model.parameters()).device.type != "cpu":
        return

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        """Return [R, 1, H * G, D] for queries [R, H * G, 1, D], keys and values [R, H, K, D] and masks [R, 1, 1, K]."""
        mask = attention_mask  # the name with which some architectures pass it
        together = key.stride(2) == key.shape[1] * key.shape[3] and key.stride() == value.stride()
        if (
            not (query.shape[2] == 1 and together)
            or mask is None
            or mask.shape[1] != 1
            or key.dtype != torch.float32
            or not serves(query, bias_RK := mask[:, 0, 0])
            or any(options.get(name) is not None for name in _UNKNOWN)
        ):
            return sdpa_attention_forward(module, query, key, value, mask, **options)
        scaling = query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]
        key_RKHD, value_RKHD = key.transpose(1, 2), value.transpose(1, 2)
        return decode_attention(query[:, :, 0], key_RKHD, value_RKHD, bias_RK, scaling)[:, None], None

    ALL_ATTENTION_FUNCTIONS.register(LIBRARY_NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(LIBRARY_NAME, sdpa_mask)
    model.config._attn_implementation = LIBRARY_NAME


def positions_first(cache_SHCD: Tensor) -> Tensor:
    """Return storage with contiguous positions, viewed as [slots, heads, capacity, size], as one row per position."""
    slots, heads, capacity, size = cache_SHCD.shape
    return cache_SHCD.transpose(1, 2).view(slots * capacity, heads * size)


# ------------------------------------------------------------------------------------------------- calls of the library


def decode_attention(q_RAD: Tensor, key_RKHD: Tensor, value_RKHD: Tensor, bias_RK: Tensor, scaling: float) -> Tensor:
    """Return [R, A, D], the attention of one new token per sequence; A = H * G query heads.

    Args:
        q_RAD: Queries.
        key_RKHD: Keys; all heads of a position are contiguous.
        value_RKHD: Values, with the strides of the keys.
        bias_RK: 0 for visible positions, -inf for others.
        scaling: Factor of the scores.
    """
    rows, span, heads, size = key_RKHD.shape
    groups = q_RAD.shape[1] // heads
    assert q_RAD.shape == (rows, heads * groups, size) and bias_RK.shape == (rows, span), (q_RAD.shape, bias_RK.shape)
    assert key_RKHD.stride() == value_RKHD.stride() and key_RKHD.stride()[1:] == (heads * size, size, 1)
    out_RAD, score_GK = torch.empty_like(q_RAD), q_RAD.new_empty(groups, span)
    pointers = _pointers(q_RAD, key_RKHD, value_RKHD, bias_RK, score_GK, out_RAD)
    _load().decode_attention(*pointers, rows, heads, groups, size, span, key_RKHD.stride(0), scaling)
    return out_RAD


def norm_forward(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / sqrt(mean(x^2) + eps) * weight, and the factor 1 / sqrt(mean(x^2) + eps) as [..., 1]."""
    out, scale = torch.empty_like(x), x.new_empty(*x.shape[:-1], 1)
    _load().rms_norm(*_pointers(x, weight_D, out, scale), scale.numel(), x.shape[-1], eps)
    return out, scale


def norm_backward(grad: Tensor, x: Tensor, weight_D: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `norm_forward` for x and the weights."""
    grad_x, grad_D = torch.empty_like(x), torch.zeros_like(weight_D)
    _load().rms_norm_backward(*_pointers(grad, x, weight_D, scale, grad_x, grad_D), scale.numel(), x.shape[-1])
    return grad_x, grad_D


def _pointers(*tensors: Tensor) -> Iterator[int]:
    return map(Tensor.data_ptr, tensors)


@cache
def _load() -> Any:
    """Load the library, compiled once per machine, compiler and version of the source; without a cache, each time."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise _NoCompiler
    version = _run(compiler, "--version")
    key = hashlib.sha256("\0".join([SOURCE.read_text(), version, *FLAGS, cpu()]).encode()).hexdigest()[:16]
    binary = cache_root() / "kernels" / f"{key}.so"
    if _is_usable(binary):
        library = ctypes.CDLL(str(binary))
    else:
        with TemporaryDirectory(prefix="scalerl-") as temporary:
            built = Path(temporary) / binary.name
            _run(compiler, *FLAGS, "-o", str(built), str(SOURCE), "-lm")
            # the cache may be full, or may not be writable; programs may not run from the temporary directory
            library = ctypes.CDLL(str(binary if _store(built, binary) else built))
    for name, types in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library


def _store(built: Path, binary: Path) -> bool:
    """Copy a library to the cache; return whether it is there now. If not, the next process compiles again."""
    content = built.read_bytes()
    try:
        binary.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(binary) as temporary:
            temporary.write_bytes(content + hashlib.sha256(content).digest())  # bytes after the end are ignored
    except OSError:
        return False
    return _is_usable(binary)


def _is_usable(library: Path) -> bool:
    """Return whether a library is this user's and ends with its digest; loading part of one kills the process."""
    try:
        content = read_bytes(library)
        return is_own(library) and hashlib.sha256(content[:-32]).digest() == content[-32:]
    except OSError:
        return False


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=True)
    return done.stdout


def _wrong() -> str | None:
    """Return the name of a function whose values differ from torch's; None if all agree."""
    x, w = torch.linspace(-3.0, 2.0, 48).view(2, 24), torch.linspace(0.5, 2.0, 24)
    kv, q = torch.linspace(-1.0, 1.0, 96).view(2, 3, 2, 8), torch.linspace(2.0, -1.0, 64).view(2, 4, 8)
    bias = torch.tensor([[0.0, 0.0, 0.0], [0.0, -torch.inf, -torch.inf]])
    mixed = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None], kv.transpose(1, 2), kv.transpose(1, 2), bias[:, None, None], scale=0.5, enable_gqa=True
    )
    cases = {
        "rms_norm": (norm_forward(x, w, 0.1)[0], torch.nn.functional.rms_norm(x, (24,), w, 0.1)),
        "decode_attention": (decode_attention(q, kv, kv, bias, 0.5), mixed[:, :, 0]),
    }
    return next((name for name, (a, b) in cases.items() if not torch.allclose(a, b, rtol=1e-5, atol=1e-6)), None)
