"""The torch engine by replay: log-probabilities match the weights of their version, given the cache at that step."""

import numpy as np
import pytest
import torch
from sampled import replay, run_out
from tiny_models import ARCHITECTURES, tiny_model

from scalerl.core.errors import ConfigError
from scalerl.core.rng import stream_key
from scalerl.training.engines.engine import Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local import torch_engine as module
from scalerl.training.engines.local.torch_engine import check_cached_logps, torch_engine
from scalerl.training.models.policy import Policy
from scalerl.training.models.weights import WeightLayout

STOP = 1
SAME = (5, 9, 2)
PROMPTS = [SAME, (7, 3, 11, 4, 6, 8, 2), SAME, (20,), (21, 22, 23, 24, 25, 26, 27, 28), (7, 3), (30, 31), SAME]


def weights_of(name, seed):
    """Return the weights of a seed as views of one block of bytes, as shared memory provides them."""
    policy = Policy(tiny_model(name, seed))
    layout = WeightLayout.of(policy.weights())
    views = layout.views(torch.zeros(layout.total, dtype=torch.uint8))
    for weight, tensor in policy.weights():
        views[weight].copy_(tensor)
    return views


def make(name, slots=3, tokens=14, refill=1, versions=(), **sampling):
    """Return an engine with all prompts submitted; `versions` are the weights of versions 1, 2, ..."""
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=tokens)
    settings = Sampling(stop=(STOP,), **sampling)
    engine = torch_engine(
        Policy(tiny_model(name)), slots=slots, prompt_tokens=8, rule=rule, sampling=settings, refill=refill,
        receive=lambda version: versions[version - 1],
    )  # fmt: skip
    engine.submit([Request((i, 0), prompt, stream_key("test", i)) for i, prompt in enumerate(PROMPTS)])
    return engine


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_log_probabilities_survive_refills_and_two_swaps_in_flight(name):
    engine = make(name, versions=[weights_of(name, seed) for seed in (1, 2)])
    finished = run_out(engine, swaps=(4, 9))
    assert len(finished) == len(PROMPTS)
    policies = [Policy(tiny_model(name, seed)) for seed in (0, 1, 2)]
    crossing = 0
    for done in finished:
        expected = replay(policies, PROMPTS[done.id[0]], done.rollout)
        np.testing.assert_allclose(done.rollout.logps, expected, atol=2e-5)
        crossing += len(set(done.rollout.versions.tolist())) > 1
    assert crossing >= 3  # otherwise the test has no swap in flight


def test_log_probabilities_are_those_of_the_tempered_distribution():
    engine = make("qwen3", temperature=0.7)
    policies = [Policy(tiny_model("qwen3"))]
    for done in run_out(engine):
        expected = replay(policies, PROMPTS[done.id[0]], done.rollout, temperature=0.7)
        np.testing.assert_allclose(done.rollout.logps, expected, atol=2e-5)


def test_sampled_tokens_follow_the_models_distribution():
    policy = Policy(tiny_model("qwen3", initializer_range=0.2))
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=1)
    engine = torch_engine(policy, slots=256, prompt_tokens=3, rule=rule, sampling=Sampling())
    engine.submit([Request((i, 0), (5, 9, 2), stream_key("fair", i)) for i in range(4096)])
    tokens = [int(done.rollout.tokens[0]) for done in run_out(engine)]
    with torch.no_grad():
        p = policy.logits(policy.hidden(torch.tensor([[5, 9, 2]]))[0, -1:]).softmax(-1)[0].numpy()
    counts = np.bincount(tokens, minlength=48)
    seen = p > 5 / 4096
    chi_square = (((counts - 4096 * p) ** 2) / (4096 * p))[seen].sum()
    assert chi_square < 2.0 * seen.sum()


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("refill", [1, 2])
def test_the_tokens_of_a_rollout_do_not_depend_on_its_neighbors(slots, refill):
    alone = {done.id: done.rollout.tokens.tolist() for done in run_out(make("qwen3", slots=3))}
    others = {done.id: done.rollout.tokens.tolist() for done in run_out(make("qwen3", slots=slots, refill=refill))}
    assert alone == others


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding"])
def test_decoding_flops_are_the_sum_over_sequences(name):
    engine = make(name, slots=3, refill=3)  # slots stay empty until three are free, and cost nothing
    finished, sizes = run_out(engine), Policy(tiny_model(name)).sizes
    lengths = {done.id[0]: len(done.rollout) for done in finished}
    assert len(lengths) == 8
    # a completion of n tokens is sampled from n states, and its last token is not fed
    fed = sum(sizes.forward_flops(len(p), lengths[i] - 1, predicted=lengths[i]) for i, p in enumerate(PROMPTS))
    alone = sum(sizes.forward_flops(0, len(p)) for p in PROMPTS)
    shared = sizes.forward_flops(0, 3)  # of the first three prompts, computed together, two are equal
    assert engine.work.flops == pytest.approx(fed + alone - shared)


def test_an_architecture_with_wrong_results_over_the_cache_is_an_error(monkeypatch):
    """The case for which the check exists: an eager implementation with a boolean mask attends to everything."""
    original = module._MaskMaker.__init__

    def forget_eager(self, *given):
        original(self, *given)
        self.additive = False

    monkeypatch.setattr(module._MaskMaker, "__init__", forget_eager)
    with pytest.raises(ConfigError, match="generation cache"):
        check_cached_logps(Policy(tiny_model("qwen3-eager")))
