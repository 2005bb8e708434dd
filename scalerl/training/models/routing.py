"""Routing of mixtures of experts: recording, comparison and replay, without code for single architectures.

Engine and trainer compute the same router logits up to rounding, which is enough to change the last expert of a token.
Such tokens cause most of the mismatch of a mixture. Replaying the engine's choice in the trainer removes it ("R3",
arXiv 2510.11370). Replay intercepts the router's call of torch.topk and returns the recorded experts with the trainer's
scores, so the weights of the experts keep their gradient.

Legend: N tokens of a forward pass, L layers with experts, K experts per token, E experts per layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

UNKNOWN = -1
"""Marks a token without recorded experts; the router chooses them."""

_TOPK = (torch.topk, Tensor.topk)


class Routing:
    """The routers of one model, whose `forward` is wrapped. Without recorded experts, a pass only keeps the indices."""

    def __init__(self, model: Any) -> None:
        """Wrap the routers of a transformers model. A model must be wrapped only once; use `routing_of`."""
        routers = routers_of(model)
        self.layers, self.active = len(routers), int(getattr(routers[0], "top_k", 0)) if routers else 0
        self.experts: list[Tensor | None] = [None] * self.layers
        """[N, K] for each layer: the experts used in the last forward pass."""
        self._differs: list[Tensor | None] = [None] * self.layers
        self._given_NLK: Tensor | None = None
        self._replay = False
        for layer, router in enumerate(routers):
            router.forward = _Routed(self, layer, router)

    def use(self, given_NLK: Tensor | None, replay: bool = False) -> None:
        """Compare with recorded experts, or replay them, in all following passes; None stops this.

        The setting must last for the backward pass, which recomputes checkpointed activations.

        Args:
            given_NLK: Recorded experts as integers, UNKNOWN where nothing was recorded.
            replay: Whether to use them instead of the router's choice.
        """
        assert given_NLK is None or given_NLK.shape[1:] == (self.layers, self.active), given_NLK.shape
        self._given_NLK, self._replay = given_NLK, replay

    def differs_NL(self) -> Tensor:
        """Return where the router's choice in the last pass differs from the recorded set of experts."""
        parts = [part for part in self._differs if part is not None]
        assert len(parts) == self.layers, (len(parts), self.layers)
        return torch.stack(parts, dim=1)


class _Routed:
    """The forward of one router; an object, not a closure, so that the model can still be pickled and copied."""

    def __init__(self, owner: Routing, layer: int, router: nn.Module) -> None:
        self._owner, self._layer, self._forward = owner, layer, router.forward

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        owner, layer = self._owner, self._layer
        if owner._given_NLK is None:
            out = self._forward(*inputs, **options)
        else:
            with GivenTopK(owner._given_NLK[:, layer].long(), owner._replay) as top_k:
                out = self._forward(*inputs, **options)
            assert top_k.differs_N is not None, "a router that does not call torch.topk"
            owner._differs[layer] = top_k.differs_N
        owner.experts[layer] = out[2]
        return out


class GivenTopK(TorchFunctionMode):
    """Mode in which torch.topk compares its choice with recorded experts and, on replay, returns these."""

    def __init__(self, given_NK: Tensor, replay: bool) -> None:
        super().__init__()
        self.differs_N: Tensor | None = None
        self._given_NK, self._replay = given_NK, replay

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in _TOPK:
            return out
        scores_NE, own_NK, given_NK = args[0], out[1], self._given_NK
        assert own_NK.shape == given_NK.shape, (own_NK.shape, given_NK.shape)
        known_N1 = (given_NK != UNKNOWN).all(dim=1, keepdim=True)
        self.differs_N = known_N1[:, 0] & (own_NK.sort(dim=1).values != given_NK.sort(dim=1).values).any(dim=1)
        if not self._replay:
            return out
        used_NK = torch.where(known_N1, given_NK, own_NK)
        return scores_NE.gather(1, used_NK), used_NK


def routers_of(model: Any) -> list[nn.Module]:
    """Return the routers of a transformers model in layer order: the modules whose class name ends in TopKRouter.

    Since transformers 5 most of them return (logits, scores, chosen experts); `can_record` checks this.
    """
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def routing_of(policy: Any) -> Routing:
    """Return a policy's routing, which the first call creates."""
    routing: Routing | None = getattr(policy, "_routing", None)
    if routing is None:
        routing = policy._routing = Routing(policy.model)
    return routing


@torch.no_grad()
def can_record(policy: Any) -> bool:
    """Return whether all routers of a policy return the experts they choose, tested with three tokens."""
    if not policy.sizes.experts or not routers_of(policy.model):
        return False
    routing, tokens_BT = routing_of(policy), torch.zeros(1, 3, dtype=torch.long, device=policy.device)
    try:
        routing.use(torch.full((3, routing.layers, routing.active), UNKNOWN, device=policy.device))
        policy.hidden(tokens_BT)
    except (AssertionError, IndexError, TypeError):  # the architecture's router has another interface
        return False
    finally:
        routing.use(None)
    return all(part is not None and part.shape == (3, routing.active) for part in routing.experts)
