"""No transfer: vLLM servers keep the weights of the model that they load, for `scalerl eval`."""

from __future__ import annotations

from scalerl.training.engines.vllm.protocol import check_label
from scalerl.training.engines.weights import ServerCall, WeightChannel, WeightTransfer


class KeptWeights(WeightChannel):
    """A channel over which nobody sends; the only version is 0."""

    capacity = 1

    def transfer(self, engine: int) -> WeightTransfer:
        """Return the client that finds the weights in its server."""
        return KeptTransfer()


class KeptTransfer(WeightTransfer):
    """The server has its weights already."""

    backend = ""

    async def apply(self, call: ServerCall, version: int, stored: None) -> None:
        """Check that the server still has the weights that it has loaded."""
        await check_label(call, version, "should have the weights that it has loaded")
