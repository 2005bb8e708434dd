"""Adapters without the model: the learner writes them to a file, and vLLM servers load them with its own LoRA layers.

The servers hold the model as it was before training; only A and B travel, which are about 0.5% of an 8B model at rank
16. All requests ask for one adapter, which a server replaces while it is paused: running sequences keep their keys and
values and continue with the new one, as with merged weights. Entries of the prefix cache are found only by requests of
the same version (`salt` in client.py).

Both ends are here: `AdapterChannel` is the learner's, `AdapterTransfer` that of a server's client. What runs inside the
server is inside/scalerl_adapters.py. Written from the source of vLLM 0.32 and 0.33 (`vllm/lora/`).
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.core.errors import outcome
from scalerl.training.engines.directory import DirectoryChannel, DirectoryTransfer
from scalerl.training.engines.vllm.checks import output_of
from scalerl.training.engines.vllm.protocol import (
    LOAD_ADAPTER,
    MODELS,
    PAUSE,
    RESUME,
    RPC,
    SET_VERSION,
    check_label,
)
from scalerl.training.engines.vllm.server import ADAPTERS
from scalerl.training.engines.weights import ServerCall, WeightTransfer

if TYPE_CHECKING:  # the import loads torch, which a client of a server does not need
    from scalerl.training.config.model import Lora
    from scalerl.training.models.weights import WeightLayout

ADAPTER_NAME = "policy"
"""Name of the adapter in the servers."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank (`MaxLoRARanks` in vllm/config/lora.py)."""

MODELS_PACKAGE = "vllm.model_executor.models."
"""Package of vLLM's models."""


class AdapterChannel(DirectoryChannel):
    """A directory with one safetensors file of adapters per version."""

    def __init__(self, path: Path, layout: WeightLayout, lora: Lora, capacity: int = 4) -> None:
        """Use a directory.

        Args:
            path: Directory; created if it does not exist.
            layout: Names of the tensors, as `LoraPolicy.adapters` yields them.
            lora: Rank and scale.
            capacity: Versions held at a time.
        """
        super().__init__(path, capacity)
        for left in path.glob(".serving_*_version_*"):
            shutil.rmtree(left)
        self._rank = lora.rank
        modules = [place.name.rpartition(".lora_")[0] for place in layout.places]
        self._ends = tuple(dict.fromkeys(module.rpartition(".")[2] for module in modules))
        self.settings: dict[str, object] = {
            "peft_type": "LORA", "r": lora.rank, "lora_alpha": lora.alpha, "bias": "none",
            "target_modules": list(self._ends),
        }  # fmt: skip
        """Contents of adapter_config.json."""

    def server_arguments(self) -> tuple[str, ...]:
        """Return the arguments of vLLM for a server that takes these adapters.

        Without the targets, vLLM would compute adapters for all layers and for the head, which needs room for the
        vocabulary.
        """
        rank = next(most for most in RANKS if most >= self._rank)
        most = ("--max-loras", "1", "--max-lora-rank", str(rank))
        return ("--enable-lora", *most, "--lora-target-modules", *self._ends)

    def transfer(self, engine: int) -> WeightTransfer:
        """Return the client that lets a server load adapters of this directory."""
        return AdapterTransfer(self, engine)


class AdapterTransfer(DirectoryTransfer):
    """The server loads an adapter that the learner wrote, through a shared file system."""

    backend, adapter = ADAPTERS, ADAPTER_NAME

    def __init__(self, channel: AdapterChannel, engine: int = 0) -> None:
        """Release what the engine held before its last start.

        Args:
            channel: The directory.
            engine: Number of the engine, among those that share the directory.
        """
        for left in channel.path.glob(f".serving_{engine}_*"):
            self.release(left)
        super().__init__(channel, engine)
        self._settings, self._loaded = channel.settings, False

    def hold(self, version: int) -> Path:
        """Put the version's file under a second name into a directory in peft's format, and return the directory.

        Raises:
            EngineDied: The file does not exist.
        """
        file = super().hold(version)
        directory = file.with_suffix("")
        directory.mkdir()
        file.rename(directory / "adapter_model.safetensors")
        (directory / "adapter_config.json").write_text(json.dumps(self._settings), encoding="utf-8")
        return directory

    def release(self, stored: Path) -> None:
        """Remove the directory."""
        shutil.rmtree(stored, ignore_errors=True)

    async def apply(self, call: ServerCall, version: int, stored: Path) -> None:
        """Pause the server, replace its adapter, label it, check the version that it reports, and resume it."""
        path = str(stored.resolve())
        await call("POST", PAUSE)
        if not self._loaded:  # makes the name known, once for each start of a server, which may have had other clients
            if ADAPTER_NAME not in {model.get("id") for model in (await call("GET", MODELS))["data"]}:
                await call("POST", LOAD_ADAPTER, {"lora_name": ADAPTER_NAME, "lora_path": path}, again=False)
            self._loaded = True
        await call("POST", RPC, {"method": "replace_adapter", "args": [ADAPTER_NAME, path]}, again=False)
        await call("POST", SET_VERSION, {"new_version": str(version)}, again=False)
        await check_label(call, version, f"received version {version} of the adapters")
        await call("POST", RESUME)


def adapter_problem(path: str, revision: str, python: str) -> str:
    """Return why vLLM cannot load the adapters of a model, by its configuration and vLLM's source.

    Empty if it can, or if that is not known here: vLLM may be installed on other machines only.

    Args:
        path: Directory, or name on the hub.
        revision: Branch, tag or commit on the hub.
        python: The Python that has vLLM.
    """
    from scalerl.training.models.loading import load_config
    from scalerl.training.models.sizes import of_config

    loading = outcome(lambda: load_config(path, revision)[0])
    if loading.exception() is not None:  # loading the model, which comes next, reports it
        return ""
    model = loading.result()
    sizes = outcome(lambda: of_config(model.to_dict().get))
    if sizes.exception() is None and sizes.result().experts:
        return "adapters of a mixture have not been tried with vLLM"
    (architecture,) = (model.architectures or [""])[:1]
    package = _package(python)
    if package is not None and not has_adapter_layers(package, architecture):
        return f"vLLM cannot load adapters of {architecture or 'this model'}"
    return ""


def has_adapter_layers(package: Path, architecture: str) -> bool:
    """Return whether vLLM has adapters for an architecture, by its source: the class, or a base, is `SupportsLoRA`.

    Args:
        package: Directory of vLLM.
        architecture: Name in a config.json, such as Qwen3ForCausalLM.
    """
    models = package / "model_executor/models"
    registry = (models / "registry.py").read_text(encoding="utf-8")
    entry = re.search(rf'"{re.escape(architecture)}":\s*\(\s*"([\w.]+)",\s*"(\w+)"', registry)
    return entry is not None and _supports(models, entry[1], entry[2])


def _supports(models: Path, module: str, name: str) -> bool:
    file = models.joinpath(*module.split(".")).with_suffix(".py")
    if not file.exists():
        return False
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (node.module.removeprefix(MODELS_PACKAGE), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and (node.level or node.module.startswith(MODELS_PACKAGE))
        for alias in node.names
    }
    waiting = [name]
    for base in waiting:  # grows
        if base == "SupportsLoRA":
            return True
        if base in classes:
            waiting += [ast.unparse(one) for one in classes[base].bases]
        elif base in imported and _supports(models, *imported[base]):
            return True
    return False


def _package(python: str) -> Path | None:
    """Return the directory of the vLLM that a Python has, which is not imported; None if it has none here."""
    code = "import importlib.util as u; print(*(u.find_spec('vllm').submodule_search_locations or ())[:1])"
    directory = output_of(python, code)
    return Path(directory) if directory else None
