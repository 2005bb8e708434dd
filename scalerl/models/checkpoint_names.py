"""Weights by the names and shapes of a checkpoint on disk, and a model over weights that lie elsewhere.

transformers keeps the experts of a layer in one tensor and writes them to disk one by one, as they were published; some
families are renamed on the way too. Whoever loads checkpoints, as vLLM does, needs the names on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def checkpoint_weights(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights as `model.save_pretrained` would name and shape them.

    Each tensor is converted alone, so that no second copy of the model is ever held.

    Args:
        model: a transformers model, whose class and configuration say how names are converted.
        weights: by the model's own names, whole.
    """
    from transformers.core_model_loading import revert_weight_conversion

    for name, weight in weights:
        yield from revert_weight_conversion(model, {name: weight}).items()


def plain_model(model: Any, weights: dict[str, Tensor]) -> Any:
    """Return a model of the same architecture over given weights, without a second copy of them.

    Args:
        model: a transformers model whose own parameters are shares or have adapters beside them.
        weights: whole, by the names that the architecture gives them, tied ones once, on the host.
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
