"""Packages that the base install lacks, how to install them, and the environment that torch needs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from scalerl.core.errors import ConfigError
from scalerl.core.machine import check_address_space

TRAINING_MODULES = ("torch", "transformers", "safetensors", "xxhash", "pydantic", "tomli_w")
"""Modules without which nothing can be trained or sampled."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": (*TRAINING_MODULES, "tokenizers", "huggingface_hub", "math_verify", "pint", "pyseccomp"),
    "data": ("pyarrow", "datasets"),
    "lora": ("peft",),
    "vllm": ("httpx",),
    "ray": ("ray",),
    "report": ("plotly",),
    "watch": ("starlette", "uvicorn"),
    "agents": ("starlette", "uvicorn"),
    "reasoning-gym": ("reasoning_gym",),
}
"""Modules that an extra of pyproject.toml installs."""


def check_installed(modules: Iterable[str]) -> None:
    """Check that modules are installed, without importing them.

    Raises:
        ConfigError: One is not; the message has the command that installs it.
    """
    for name in modules:
        if find_spec(name) is None:
            raise ConfigError(install_advice(name))


def install_advice(module: str | None) -> str:
    """Return the error for a module that cannot be found; empty if no extra installs it."""
    top = (module or "").partition(".")[0]
    extra = next((name for name, modules in EXTRAS.items() if top in modules), "")
    return extra and f"this needs the package {top}, which is not installed: pip install 'scalerl[{extra}]'"


def prepare_environment(modules: Sequence[str] = ()) -> None:
    """Set the environment variables that torch reads when it is first imported.

    Raises:
        ConfigError: A module is not installed, a limit of memory is too small for torch, or the current directory was
            removed, in which no process can start.
    """
    check_installed(modules)
    if set(TRAINING_MODULES) <= set(modules):
        check_address_space()
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current directory was removed; change to another one, and start again") from None
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads of two processes are 20 times as slow
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages: decoding is about 8% faster
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
