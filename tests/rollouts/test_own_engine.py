"""Custom engines: the checks of the contract, and errors before a run starts."""

import time
from functools import partial

import pytest
import torch
from tiny_models import tiny_model

from scalerl.core.errors import ConfigError
from scalerl.training.config.recipe import Custom
from scalerl.training.engines.custom import EngineParts, engine_pair, make_engine
from scalerl.training.engines.engine import ExactEngine, Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.testing import Bench, EngineError, check_contract, check_engine_plugin
from scalerl.training.models.policy import Policy

MODULE = """
    from dataclasses import replace

    class Plain:
        def __init__(self, parts, note=""):
            self.inner, self.evaluating = parts.torch_engine(), parts.evaluating
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
    class NoState(Plain):
        def __getattr__(self, name):
            if name == "state": raise AttributeError("no attribute 'state'")
            return getattr(self.inner, name)

    def free(parts, shift=0.0, lost=""):
        '''The torch engine in a thread; it dies once, with its first sequences, if `lost` is a path.'''
        import os
        from scalerl.training.engines.hosted import HostedEngines
        from scalerl.training.engines.process_engine import EngineDied

        class Free(HostedEngines):
            def report(self, wait_s):
                report = super().report(wait_s)
                if any(report.finished) and lost and not os.path.exists(lost):
                    open(lost, "w").close()
                    raise EngineDied("the engine: lost")
                moved = tuple(tuple(replace(one, rollout=replace(one.rollout, logps=one.rollout.logps - shift))
                                    for one in part) for part in report.finished)
                return replace(report, finished=moved)

        return Free([parts.torch_engine(), parts.torch_engine()], "the engine")
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
    bench = Bench(partial(make_engine, own(name)), load(), load, "tiny")
    try:
        with torch.no_grad():
            check_contract(bench)
    finally:
        bench.stop()


def test_an_engine_that_samples_on_its_own_is_a_handle_and_needs_the_eager_schedule():
    check("free")
    with pytest.raises(ConfigError, match=r"free samples on its own; allowed: rollouts\.schedule = 'eager'"):
        check_engine_plugin(own("free"), load(), load, "tiny", exact=True)
    assert len(check_engine_plugin(own("free"), load(), load, "tiny", exact=False)) == 5


def test_the_log_probabilities_of_a_handle_are_replayed_at_the_start():
    with pytest.raises(ConfigError, match="not those that were sent"):
        check_engine_plugin(own("free", shift=0.5), load(), load, "tiny", exact=False)


def test_a_users_handle_that_dies_is_made_again_and_its_sequences_are_sampled_again(tmp_path):
    notes, weights = [], dict(load().weights())
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=4)
    parts = EngineParts(load, "tiny", 2, 3, rule, Sampling(), lambda version: weights)
    choice = own("free", lost=str(tmp_path / "lost"))
    engine, evaluator = engine_pair(choice, parts, name="generator 1 of 1", note=notes.append)
    engine.swap(3)
    engine.submit([Request((i, 0), (1, 0), i) for i in range(5)])
    finished, until = [], time.monotonic() + 60
    while len(finished) < 5:
        assert time.monotonic() < until
        finished += engine.poll(0.05)
    assert sorted(one.id for one in finished) == [(i, 0) for i in range(5)] and len(notes) == 1
    assert engine.work.restarts == 1 and engine.version == evaluator.version == 3
    assert not engine.occupancy().busy


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
        ("makes_none", "lacks begin, cancel"),
        ("RaisesEarly", "no such server"),
        ("Raises", "'slot'"),
        ("OtherLogps", "not those that were sent"),
        ("NoState", r"it lacks state; expected an ExactEngine, or an EngineHandle \(post, report, stop\)"),
    ],
)
def test_an_unusable_engine_is_an_error_at_start(name, message):
    with pytest.raises(ConfigError, match=message):
        check_engine_plugin(own(name), load(), load, "tiny", exact=True)


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
    assert evaluator.evaluating  # an engine with noise evaluates without it
    assert isinstance(engine, ExactEngine) and engine.occupancy().slots == 2
