"""Checks for your plug-ins: `check_engine` tests an engine against the whole contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalerl.rollouts.contract import EngineError, bench_of, check_contract
from scalerl.rollouts.custom import EngineParts


def check_engine(function: str, model: str, params: Mapping[str, Any] | None = None) -> None:
    """Test your engine against the contract, with synthetic prompts and a small model on CPU.

    The following is checked:

    - Every request finishes once, with arrays of equal length, tokens of the vocabulary and the model's
      log-probabilities. Canceled requests never finish.
    - Deterministic engines: tokens do not depend on the other requests in the batch. After a swap, the engine uses the
      new weights with the old cache, and every token has the right version and log-probability.
    - Engines with `exact_resume`: a new engine continues from a saved state with the same tokens.

    Args:
        function: `package.module:ClassOrFactory`, called with an EngineParts and the parameters.
        model: Directory of a model, small enough to be loaded several times.
        params: Keyword arguments of the engine.

    Raises:
        EngineError: The engine violates the contract; the message states the actual and the expected behavior.
        ConfigError: The engine cannot be imported or created, or lacks a method.

    Example:
        >>> check_engine("my_engine:Counting", "tiny-model", {"every": 100})   # doctest: +SKIP
    """
    import torch

    from scalerl.config.recipe import Custom
    from scalerl.models.policy import load_policy
    from scalerl.rollouts.custom import make_engine

    choice = Custom(function=function, params=dict(params or {}))
    with torch.no_grad():
        check_contract(
            bench_of(
                lambda parts: make_engine(choice, parts),
                load_policy(model),
                lambda: load_policy(model),
                model,
                versions=2,
            )
        )


__all__ = ["EngineError", "EngineParts", "check_engine"]
