"""Checks for the tests of your own plug-ins: `check_engine` runs an engine through the whole contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalerl.rollouts.contract import EngineError, bench_of, check_contract
from scalerl.rollouts.custom import EngineParts


def check_engine(function: str, model: str, params: Mapping[str, Any] | None = None) -> None:
    """Run an engine of your own through the contract, on made-up prompts of a small model on CPU.

    Checked are: every request finishes once, with arrays of one length, tokens of the vocabulary and log-probabilities
    that are those of the model; cancelled requests never come. Of an engine that is deterministic also: tokens do
    not depend on what else is in the batch, and a swap in the middle uses new weights over the old cache, label and
    log-probability of every token included. With `exact_resume`, a new engine continues from a state with equal tokens.

    Args:
        function: `package.module:ClassOrFactory`, called with an EngineParts and the parameters.
        model: directory of a model, small enough to be loaded several times.
        params: given by name.

    Raises:
        EngineError: what the engine did, and what is expected.
        ConfigError: it cannot be imported or made, or lacks a method.

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
