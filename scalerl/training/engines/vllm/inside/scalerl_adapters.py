"""Replacement of an adapter in a running server: the part that runs inside vLLM's worker processes.

vLLM loads this file with `--worker-extension-cls scalerl_adapters.WorkerExtension`. It imports nothing from scalerl, so
that a server in a separate environment needs only this directory on PYTHONPATH. Written for vLLM 0.32 and 0.33
(`vllm/lora/worker_manager.py`).
"""

from __future__ import annotations

from typing import Any


class WorkerExtension:
    """Adds a method to vLLM's worker, which `/collective_rpc` calls in every worker process."""

    model_runner: Any

    def replace_adapter(self, name: str, path: str) -> None:
        """Load an adapter in place of the only one that the server has; running sequences keep keys and values.

        The server's own `load_inplace` would read the files again at every decode step, because every request carries
        the flag.

        Args:
            name: Name of the adapter.
            path: Directory with the new one in peft's format.

        Raises:
            RuntimeError: The model has no layer for a part of it, which vLLM would silently leave out.
        """
        from vllm.lora.request import LoRARequest

        manager = self.model_runner.lora_manager
        (number,) = manager.list_adapters()
        manager.add_adapter(LoRARequest(name, number, path, load_inplace=True))
        layers = manager._adapter_manager
        left_out = layers.get_adapter(number).loras.keys() - layers.modules.keys()
        if left_out:
            raise RuntimeError(f"{path} has adapters for {', '.join(sorted(left_out)[:5])}, which this model lacks")
