"""The reference of the KL term: the weights with which the learner was made, which are those of the start model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Reference:
    """A frozen copy of trained weights, of a rank's shards if they are sharded.

    A resume makes the learner from the start model before it reads the checkpoint, which has no copy of them. Adapters
    begin without effect, so only theirs are copied, and the reference is the model below them.
    """

    def __init__(self, parameters: Sequence[Tensor], changed: Callable[[], None]) -> None:
        """Copy the weights.

        Args:
            parameters: Trained parameters.
            changed: Function that drops what was computed from their values.
        """
        self._parameters, self._changed = parameters, changed
        self._weights = [parameter.detach().clone() for parameter in parameters]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Exchange the weights in training with the reference's, without a second copy of either."""
        self._exchange()
        try:
            with torch.no_grad():
                yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, weight in zip(self._parameters, self._weights, strict=True):
            present = parameter.detach().clone()
            parameter.copy_(weight)
            weight.copy_(present)
        self._changed()
