"""Checks of the engine contract: run made-up prompts through an engine and verify everything that it returns.

`check_engine` runs all checks, for authors of engines. `check_engine_plugin` runs a quick subset at the start of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from scalerl.core.errors import ConfigError
from scalerl.core.limits import CONTRACT_S
from scalerl.core.plugins import PluginError, call
from scalerl.core.types import Rollout
from scalerl.training.config.placement import Placement
from scalerl.training.config.recipe import Custom
from scalerl.training.engines.custom import EngineParts, make_engine
from scalerl.training.engines.engine import ENGINE_POLL_S, Engine, ExactEngine, Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.replay import ReplayMismatch, check_current, check_difference, largest_difference
from scalerl.training.engines.served import EngineHandle, Restarter
from scalerl.training.models.policy import Policy, load_policy, rounding

TOKENS = 6
"""Length of every made-up completion: there is no stop token."""
SLOTS = 2
"""Fewer slots than requests, so that slots are refilled."""
MakeEngine = Callable[[EngineParts], Any]
"""Makes the engine under test, or its handle."""


class EngineError(PluginError):
    """An engine violates the contract; the message gives what it did and what is expected."""


@dataclass(frozen=True)
class Bench:
    """An engine under test and the policy it is compared with."""

    make: MakeEngine
    policy: Policy
    """The policy with the weights of version 1."""
    load_policy: Callable[[], Policy]
    """Loads another copy of the model, which an engine may modify."""
    model_path: str
    handles: list[EngineHandle] = field(default_factory=list)
    """Handles that were made; `stop` ends them."""

    def receive(self, version: int) -> dict[str, torch.Tensor]:
        """Return the weights of a version: those of the policy for version 1, the same times 0.9 for version 2."""
        return {name: weight.cpu() * 0.9 ** (version - 1) for name, weight in self.policy.weights()}

    def engine(self) -> Engine:
        """Return a new engine that uses version 1."""
        rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=TOKENS)
        parts = EngineParts(self.load_policy, self.model_path, SLOTS, 3, rule, Sampling(), self.receive)
        made = self.make(parts)
        if isinstance(made, EngineHandle):
            self.handles.append(made)
            made = Restarter(lambda: self.handles[-1], "the engine", SLOTS, Placement(), print).engines[0]
        else:
            missing = ", ".join(name for name in dir(ExactEngine) if name[0] != "_" and not hasattr(made, name))
            expect(not missing, f"it lacks {missing}; expected an ExactEngine, or an EngineHandle (post, report, stop)")
        engine: Engine = made
        self.swap(engine, 1)
        return engine

    def stop(self) -> None:
        """End the engines that sample on their own."""
        while self.handles:
            self.handles.pop().stop()

    @staticmethod
    def swap(engine: Engine, version: int) -> None:
        """Swap and wait until the version is in use."""
        engine.swap(version)
        until = time.monotonic() + CONTRACT_S
        while engine.version != version:
            expect(
                not isinstance(engine, ExactEngine) and time.monotonic() < until,
                f"after swap({version}) its version is {engine.version!r}; expected {version}",
            )
            engine.poll(ENGINE_POLL_S)  # nothing is under way

    def requests(self, count: int = 5) -> list[Request]:
        """Return made-up requests of two prompts."""
        last = self.policy.vocab_size - 1
        prompts = [(1 % self.policy.vocab_size, 0), (0, last, last // 2)]
        return [Request((number % 2, number // 2), prompts[number % 2], key=7 + number) for number in range(count)]


def expect(holds: bool, message: str) -> None:
    """Raise an EngineError with a message unless a condition holds."""
    if not holds:
        raise EngineError(message)


def finish(engine: Engine, polls: int | None = None) -> dict[tuple[int, int], Rollout]:
    """Poll until the engine is idle, at most `polls` times; return the finished rollouts by id."""
    rollouts: dict[tuple[int, int], Rollout] = {}
    until, done = time.monotonic() + CONTRACT_S, 0
    while engine.occupancy().busy and (polls is None or done < polls):
        expect(time.monotonic() < until, f"nothing finished for {CONTRACT_S:g} s with {engine.occupancy()}")
        if isinstance(engine, ExactEngine):
            engine.begin()
        polled = engine.poll(ENGINE_POLL_S)
        twice = [one.id for one in polled if one.id in rollouts]
        expect(not twice, f"poll returned {twice} a second time; expected each sequence once")
        rollouts |= {one.id: one.rollout for one in polled}
        done += 1
        until = time.monotonic() + CONTRACT_S if polled else until
    return rollouts


def check_rollout(bench: Bench, number: tuple[int, int], rollout: Rollout) -> None:
    """Check the arrays of one made-up completion: shapes, token ids, log-probabilities."""
    arrays = {name: np.asarray(getattr(rollout, name)) for name in ("tokens", "logps", "versions", "sampled")}
    length = arrays["tokens"].shape
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    expect(
        len(length) == 1 and length[0] >= 1 and all(array.shape == length for array in arrays.values()),
        f"rollout {number} has {shapes}; expected arrays of one length, at least 1",
    )
    tokens, vocabulary = arrays["tokens"], bench.policy.vocab_size
    expect(
        bool(((tokens >= 0) & (tokens < vocabulary)).all()),
        f"rollout {number} has tokens from {tokens.min()} to {tokens.max()}; expected 0 to {vocabulary - 1}",
    )
    expect(bool(arrays["sampled"].any()), f"rollout {number} has no sampled token; expected at least one")
    expect(
        length[0] == TOKENS and bool(rollout.truncated),
        f"rollout {number} has {length[0]} tokens and truncated = {rollout.truncated}; expected {TOKENS} and True: the "
        "length limit, without a stop token",
    )


def check_basics(bench: Bench) -> tuple[Engine, dict[tuple[int, int], Rollout]]:
    """Sample made-up requests with version 1; return the engine and the rollouts.

    Raises:
        EngineError: A sequence is missing or returned twice, its arrays are wrong, or its log-probabilities do not
            match the weights.
    """
    engine = bench.engine()
    expect(not engine.occupancy().busy, f"a new engine has {engine.occupancy()}; expected nothing running or waiting")
    requests = bench.requests()
    engine.submit(requests)
    done = finish(engine)
    wanted = {request.id for request in requests}
    expect(done.keys() == wanted, f"it returned {sorted(done)}; expected one rollout for each of {sorted(wanted)}")
    for number, rollout in done.items():
        check_rollout(bench, number, rollout)
        expect(
            set(np.asarray(rollout.versions).tolist()) == {1},
            f"rollout {number} has versions {rollout.versions}; expected 1, the weights in use",
        )
    prompts = {request.id: request.prompt for request in requests}
    pairs = [(prompts[number], rollout) for number, rollout in done.items()]
    try:
        check_current(bench.policy, 1, pairs)
    except ReplayMismatch as error:
        raise EngineError(str(error)) from None
    if isinstance(engine, ExactEngine):
        engine.state()  # every checkpoint calls it
    return engine, done


def check_repeats(bench: Bench, first: Mapping[tuple[int, int], Rollout]) -> None:
    """Check that an exact engine gives equal tokens for equal requests, in any batch."""
    engine = bench.engine()
    engine.submit(bench.requests()[:1])
    ((number, again),) = finish(engine).items()
    expect(
        again.tokens.tolist() == first[number].tokens.tolist(),
        f"alone in the batch, request {number} gave {again.tokens.tolist()}, and with others "
        f"{first[number].tokens.tolist()}; an exact engine gives equal tokens for equal keys",
    )


def check_cancel(bench: Bench) -> None:
    """Check that canceled sequences, running or waiting, are never returned, and that the others are."""
    engine = bench.engine()
    requests = bench.requests()
    engine.submit(requests)
    dropped = {requests[0].id, requests[-1].id}
    engine.cancel(dropped)
    rollouts = finish(engine)
    expect(
        rollouts.keys() == {request.id for request in requests} - dropped,
        f"after cancel({sorted(dropped)}) it returned {sorted(rollouts)}; expected only the others",
    )


def check_swap(bench: Bench) -> None:
    """Check that an exact engine uses new weights from the next token on and keeps the cache of the old ones."""
    engine = bench.engine()
    requests = bench.requests(SLOTS)
    engine.submit(requests)
    finish(engine, polls=2)
    bench.swap(engine, 2)
    rollouts = finish(engine)
    for number, rollout in rollouts.items():
        expect(
            rollout.versions.tolist() == [1] * 2 + [2] * (TOKENS - 2),
            f"after a swap to version 2 at token 2, rollout {number} has versions {rollout.versions.tolist()}; "
            "expected 1 for the first two tokens and 2 for the others",
        )
    changed = bench.load_policy()
    changed.load_weights(2, bench.receive(2))
    prompts = {request.id: request.prompt for request in requests}
    difference = largest_difference(
        {1: bench.policy, 2: changed}, [(prompts[number], rollout) for number, rollout in rollouts.items()]
    )
    try:
        check_difference(difference, 2, rounding(bench.policy.dtype))
    except ReplayMismatch as error:
        raise EngineError(f"after a swap with sequences under way: {error}") from None


def check_state(bench: Bench, first: Mapping[tuple[int, int], Rollout]) -> None:
    """Check that a new exact engine continues from a saved state with the same tokens."""
    engine, again = bench.engine(), bench.engine()
    assert isinstance(engine, ExactEngine) and isinstance(again, ExactEngine)
    engine.submit(bench.requests())
    rollouts = finish(engine, polls=3)
    again.load_state(engine.state())
    rollouts |= finish(again)
    for number, rollout in first.items():
        expect(number in rollouts, f"request {number} was lost by state() and load_state(); expected its rollout")
        expect(
            rollouts[number].tokens.tolist() == rollout.tokens.tolist(),
            f"after load_state request {number} gave {rollouts[number].tokens.tolist()}; expected "
            f"{rollout.tokens.tolist()}",
        )


def check_contract(bench: Bench) -> None:
    """Run every check.

    Raises:
        EngineError: From the first check that fails.
    """
    engine, first = check_basics(bench)
    check_cancel(bench)
    if isinstance(engine, ExactEngine):
        check_repeats(bench, first)
        check_swap(bench)
        check_state(bench, first)


def check_engine(function: str, model: str, params: Mapping[str, Any] | None = None) -> None:
    """Test your engine against the contract, with synthetic prompts and a small model on CPU.

    The following is checked:

    - Every request finishes once, with arrays of equal length, tokens of the vocabulary and the model's
      log-probabilities. Canceled requests never finish.
    - Exact engines: tokens do not depend on the other requests in the batch. After a swap, the engine uses the new
      weights with the old cache, and every token has the right version and log-probability. A new engine continues from
      a saved state with the same tokens.

    Args:
        function: `package.module:ClassOrFactory`, called with an EngineParts and the parameters.
        model: Directory of a model, small enough to be loaded several times.
        params: Keyword arguments of the engine.

    Raises:
        EngineError: The engine violates the contract; the message states the actual and the expected behavior.
        ConfigError: The engine cannot be imported or created.

    Example:
        >>> check_engine("my_engine:Counting", "tiny-model", {"every": 100})   # doctest: +SKIP
    """
    choice = Custom(function=function, params=dict(params or {}))
    bench = Bench(partial(make_engine, choice), load_policy(model), partial(load_policy, model), model)
    try:
        with torch.no_grad():
            check_contract(bench)
    finally:
        bench.stop()


@torch.no_grad()
def check_engine_plugin(
    choice: Custom, policy: Policy, load_policy: Callable[[], Policy], model_path: str, exact: bool
) -> list[Rollout]:
    """Try a user's engine on made-up prompts before a run starts, and return its rollouts.

    Args:
        choice: The engine's entry in the configuration.
        policy: The run's policy.
        load_policy: Function that loads another copy of it, for the engine.
        model_path: Directory or hub name of the model.
        exact: Whether the run's schedule needs an exact engine.

    Raises:
        ConfigError: The engine cannot be made, raises, or violates the contract.
    """
    bench = Bench(partial(make_engine, choice), policy, load_policy, model_path)
    try:
        engine, rollouts = call(check_basics, choice.function, bench)
    except PluginError as error:
        raise ConfigError(f"placement.engine: {choice.function}, on made-up prompts: {error}") from None
    finally:
        bench.stop()
    if exact and not isinstance(engine, ExactEngine):
        raise ConfigError(
            f"placement.engine: {choice.function} samples on its own; allowed: rollouts.schedule = 'eager', or an "
            "ExactEngine, which decodes a step when it is told to"
        )
    return list(rollouts.values())


__all__ = ["EngineError", "EngineParts", "check_engine", "check_engine_plugin"]
