"""Weights by the names and shapes of a checkpoint on disk, and a model over existing weights.

transformers keeps the experts of a layer in one tensor but saves them separately, as they were published, and renames
some weights of some families. Programs that load checkpoints, such as vLLM, need the names on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def checkpoint_weights(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with the names and shapes that `model.save_pretrained` would give them.

    Tensors are converted one at a time, so that no second copy of the model is held.

    Args:
        model: A transformers model, whose class and configuration determine the conversion.
        weights: Full tensors by the names of the model's parameters.
    """
    from transformers.core_model_loading import revert_weight_conversion

    for name, weight in weights:
        yield from revert_weight_conversion(model, {name: weight}).items()


def plain_model(model: Any, weights: dict[str, Tensor]) -> Any:
    """Return a model of the same architecture over given weights, without copying them.

    Args:
        model: A transformers model whose parameters are sharded or have adapters.
        weights: Full tensors on the host by the architecture's names; tied ones appear once.
    """
    with torch.device("meta"):
        plain = type(model)(model.config)
    persistent = {name: buffer.cpu() for name, buffer in model.named_buffers()}
    plain.load_state_dict({**weights, **persistent}, strict=False, assign=True)
    plain.tie_weights()
    missing = [name for name, parameter in plain.named_parameters() if parameter.is_meta]
    assert not missing, missing
    plain.generation_config = model.generation_config
    return plain
