"""No transfer: vLLM servers keep the weights of the model that they load, for `scalerl eval`."""

from __future__ import annotations

from scalerl.rollouts.process_engine import EngineDied
from scalerl.rollouts.vllm.protocol import WEIGHT_INFO, version_of
from scalerl.rollouts.weights import Call, WeightChannel, WeightTransfer


class KeptWeights(WeightChannel):
    """A channel over which nobody sends; the only version is 0."""

    capacity = 1

    def transfer(self, engine: int) -> WeightTransfer:
        """Return the client that finds the weights in its server."""
        return KeptTransfer()


class KeptTransfer(WeightTransfer):
    """The server has its weights already."""

    backend = ""

    def hold(self, version: int) -> None:
        """Do nothing: the weights are in the server."""

    def release(self, stored: None) -> None:
        """Do nothing."""

    async def apply(self, call: Call, version: int, stored: None) -> None:
        """Check that the server still has the weights that it has loaded."""
        got = version_of((await call("GET", WEIGHT_INFO))["weight_version"])
        if got != version:
            raise EngineDied(f"it should have the weights that it has loaded, but reports version {got}")
