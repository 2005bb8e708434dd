"""Custom engines: the checks of the contract, and errors before a run starts."""

from functools import partial

import pytest
import torch
from tiny_models import tiny_model

from scalerl.config.recipe import Custom
from scalerl.core.errors import ConfigError
from scalerl.models.policy import Policy
from scalerl.rollouts.custom import EngineParts, engine_pair, make_engine
from scalerl.rollouts.engine import Sampling
from scalerl.rollouts.interrupt import NEVER, LengthRule
from scalerl.rollouts.testing import Bench, EngineError, check_contract, check_engine_plugin

MODULE = """
    from dataclasses import replace

    class Plain:
        def __init__(self, parts, note=""):
            self.inner = parts.torch_engine()
        def __getattr__(self, name):
            return getattr(self.inner, name)

    class Changed(Plain):
        def changed(self, rollout): return rollout
        def poll(self, timeout_s=0.0):
            return [replace(one, rollout=self.changed(one.rollout)) for one in self.inner.poll()]

    class NanLogps(Changed):
        def changed(self, rollout): return replace(rollout, logps=rollout.logps * float("nan"))
    class ShortLogps(Changed):
        def changed(self, rollout): return replace(rollout, logps=rollout.logps[:-1])
    class OtherLogps(Changed):
        def changed(self, rollout): return replace(rollout, logps=rollout.logps - 0.5)
    class OldVersions(Changed):
        def changed(self, rollout): return replace(rollout, versions=rollout.versions - 1)
    class HugeTokens(Changed):
        def changed(self, rollout): return replace(rollout, tokens=rollout.tokens + 48)

    class Loses(Plain):
        def submit(self, requests): self.inner.submit(requests[1:])
    class NoCancel(Plain):
        def cancel(self, ids): pass
    class NoSwap(Plain):
        def swap(self, version):
            if version == 1: self.inner.swap(1)
    class SwapsNothing(Plain):
        '''Reports the new version, but keeps the old weights.'''
        def __init__(self, parts):
            self.inner = replace(parts, receive=lambda version: parts.receive(1)).torch_engine()
    class OtherKeys(Plain):
        def submit(self, requests):
            self.inner.submit([replace(one, key=one.key + len(requests)) for one in requests])
    class ForgetsState(Plain):
        def load_state(self, state): pass
    class Raises(Plain):
        def poll(self, timeout_s=0.0): raise KeyError("slot")
    class Eager(Plain):
        deterministic = False
    class RaisesEarly:
        def __init__(self, parts): raise OSError("no such server")
    def makes_none(parts): return None
"""


@pytest.fixture(autouse=True)
def module(user_code):
    user_code("checked_engines", MODULE)


def load():
    return Policy(tiny_model("qwen3", seed=5))


def own(name, **params):
    return Custom(function=f"checked_engines:{name}", params=params)


def check(name):
    with torch.no_grad():
        check_contract(Bench(partial(make_engine, own(name)), load(), load, "tiny"))


def test_a_wrapper_around_the_torch_engine_satisfies_the_contract():
    check("Plain")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NanLogps", "nan"),
        ("ShortLogps", "one length"),
        ("OtherLogps", "log-probabilities"),
        ("OldVersions", "versions"),
        ("HugeTokens", "0 to 47"),
        ("Loses", "one rollout for each"),
        ("NoCancel", "after cancel"),
        ("NoSwap", "expected 2"),
        ("SwapsNothing", "after a swap"),
        ("OtherKeys", "alone in the batch"),
        ("ForgetsState", "lost"),
    ],
)
def test_the_error_for_a_broken_contract_describes_the_violation(name, message):
    with pytest.raises(EngineError, match=message):
        check(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("makes_none", "no attribute 'swap'"),
        ("RaisesEarly", "no such server"),
        ("Raises", "'slot'"),
        ("OtherLogps", "not those that were sent"),
        ("Eager", "not deterministic"),
    ],
)
def test_an_unusable_engine_is_an_error_at_start(name, message):
    with pytest.raises(ConfigError, match=message):
        check_engine_plugin(own(name), load(), load, "tiny", deterministic=True)


def test_the_evaluation_engine_follows_swaps_over_one_model():
    loads = []

    def once():
        loads.append(load())
        return loads[-1]

    weights = dict(load().weights())
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=4)
    parts = EngineParts(once, "tiny", 2, 3, rule, Sampling(), lambda version: weights)
    engine, evaluator = engine_pair(own("Plain"), parts)
    engine.swap(3)
    assert engine.version == evaluator.version == 3 and len(loads) == 1
    assert engine.deterministic and engine.occupancy().slots == 2
