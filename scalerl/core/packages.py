"""Packages that the base install lacks, and the line that says how to install them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from scalerl.core.errors import ConfigError

TRAINING = ("torch", "transformers", "safetensors", "xxhash")
"""Modules without which nothing can be trained or sampled."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": (*TRAINING, "tokenizers", "huggingface_hub", "math_verify", "pyseccomp"),
    "data": ("pyarrow", "datasets"),
    "lora": ("peft",),
    "vllm": ("httpx",),
    "ray": ("ray",),
    "report": ("plotly",),
    "watch": ("starlette", "uvicorn"),
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
            raise ConfigError(missing(name))


def missing(module: str | None) -> str:
    """Return the error for a module that cannot be found; empty if no extra installs it."""
    top = (module or "").partition(".")[0]
    extra = next((name for name, modules in EXTRAS.items() if top in modules), "")
    return extra and f"this needs the package {top}, which is not installed: pip install 'scalerl[{extra}]'"
