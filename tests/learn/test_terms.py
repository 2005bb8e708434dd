"""The terms of KL and entropy: by hand, against autograd in float64, and the reference after updates and a resume."""

import math
from dataclasses import replace as change

import pytest
import torch
from test_families import relative_error
from test_prefix import grouped_batch
from tiny_models import tiny_model

from scalerl.training.config.base import replace
from scalerl.training.config.recipe import Recipe, Reinforce
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.head import HeadRule, token_logprobs
from scalerl.training.models.policy import Policy
from scalerl.training.recipe.losses import kl_estimate

f64 = torch.float64


def test_the_estimate_by_hand():
    """At a policy of 1/2 and a reference of 1/4, r = 1/2: k3 = 1/2 - 1 - log 1/2, and its gradient is 1 - r."""
    logp = torch.tensor([[0.5, 0.25, 0.5]], dtype=f64).log().requires_grad_()
    reference = torch.tensor([[0.25, 0.25, 0.1]], dtype=f64).log()
    found = kl_estimate(logp, reference, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(found[0], torch.tensor([math.log(2) - 0.5, 0.0, 0.0], dtype=f64))
    found.sum().backward()
    torch.testing.assert_close(logp.grad[0], torch.tensor([0.5, 0.0, 0.0], dtype=f64))


def test_its_mean_over_the_policy_is_the_divergence():
    torch.manual_seed(0)
    policy, reference = (torch.randn(1, 9, dtype=f64).log_softmax(1) for _ in range(2))
    estimate = kl_estimate(policy, reference, torch.ones(1, 9, dtype=torch.bool))
    assert float((policy.exp() * estimate).sum()) == pytest.approx(float((policy.exp() * (policy - reference)).sum()))
    assert bool((estimate >= 0).all())


@pytest.mark.parametrize("distance", [1e3, -1e3])
def test_a_far_token_stays_finite(distance):
    logp = torch.tensor([[-1e3 if distance > 0 else 0.0]], requires_grad=True)
    found = kl_estimate(logp, logp.detach() + distance, torch.ones(1, 1, dtype=torch.bool))
    found.sum().backward()
    assert bool(found.isfinite().all()) and bool(logp.grad.isfinite().all())


@pytest.mark.parametrize("inside", [False, True], ids=["whole", "nucleus"])
@pytest.mark.parametrize("rule", [HeadRule(), HeadRule(softcap=3.0, scale=0.5)], ids=["plain", "softcap"])
@pytest.mark.parametrize("chunk", [7, 16, 1000])
def test_gradients_of_log_probability_and_entropy_are_those_of_autograd_in_float64(rule, chunk, inside):
    torch.manual_seed(0)
    parts = [torch.randn(9, 12), torch.randn(100, 12), torch.randn(100)]
    targets, of_logp, of_entropy = torch.randint(0, 100, (9,)), torch.randn(9), torch.randn(9)
    kept = (torch.rand(9, 100) < 0.3).scatter_(1, targets[:, None], True) if inside else torch.ones(9, 100) > 0
    ours, exact = ([p.to(kind).requires_grad_() for p in parts] for kind in (torch.float32, f64))
    nucleus = tuple(kept.nonzero().unbind(1)) if inside else None
    logp, entropy = token_logprobs(*ours, targets, 0.7, rule, chunk, nucleus, entropy_gradient=True)
    logits = (exact[0] @ exact[1].t() + exact[2]) * rule.scale
    logits = logits if rule.softcap is None else rule.softcap * torch.tanh(logits / rule.softcap)
    every = (logits / 0.7).masked_fill(~kept, -torch.inf).log_softmax(1)
    plogp = torch.where(kept, every.exp() * every.masked_fill(~kept, 0.0), 0.0)
    expected = every.gather(1, targets[:, None])[:, 0], -plogp.sum(1)
    torch.testing.assert_close(entropy.double(), expected[1], atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad((logp * of_logp).sum() + (entropy * of_entropy).sum(), ours)
    truth = torch.autograd.grad((expected[0] * of_logp).sum() + (expected[1] * of_entropy).sum(), exact)
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-4)  # logits of 15 in FP32


TERMS = Recipe(loss=Reinforce(), kl_coefficient=0.3, entropy_coefficient=0.2)


def moved(parameters, seed=5):
    """Move weights away from those of the start."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw).to(parameter.dtype))


def log_softmax(model, batch):
    return model(batch.rollouts.tokens_BT).logits[:, :-1].log_softmax(-1)


@pytest.mark.parametrize(
    ("packing", "budget", "helpers"), [("padded", 1000, 0), ("padded", 14, 2), ("packed", 30, 0), ("shared", 21, 0)]
)
def test_every_layout_and_split_has_the_float64_gradient(packing, budget, helpers):
    batch = grouped_batch()
    policy, start = tiny_model("qwen3").double(), tiny_model("qwen3").double()
    moved(policy.parameters())
    targets, mask = batch.rollouts.tokens_BT[:, 1:, None], batch.trained_BT[:, 1:]
    every = log_softmax(policy, batch)
    logp = every.gather(2, targets)[..., 0]
    apart = log_softmax(start, batch).detach().gather(2, targets)[..., 0] - logp
    entropy = -(every.exp() * every).sum(-1)
    per_token = -batch.advantages_B[:, None] * logp + 0.3 * (apart.exp() - apart - 1) - 0.2 * entropy
    torch.where(mask, per_token * batch.weights_BT[:, 1:], 0.0).sum().backward()
    expected = {name: parameter.grad for name, parameter in policy.named_parameters()}
    options = {"packing": packing, "micro_batch_tokens": budget, "helpers": helpers}
    learner = SingleLearner(Policy(tiny_model("qwen3")), TERMS, **options)
    moved(learner.policy.model.parameters())
    before = [parameter.detach().clone() for parameter in learner.policy.model.parameters()]
    learner._add_gradients(batch, learner._reference_logps(batch))
    found = {name: parameter.grad for name, parameter in learner.policy.model.named_parameters()}
    assert relative_error(found, expected) < 1e-5
    after = learner.policy.model.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))  # exchanged twice


def test_at_the_start_the_kl_term_has_no_gradient():
    batch = change(grouped_batch(), advantages_B=torch.zeros(5))
    learner = SingleLearner(Policy(tiny_model("qwen3")), replace(TERMS, entropy_coefficient=0.0))
    stats = learner.step(batch)
    assert stats.loss == 0.0 and stats.grad_norm == 0.0 and stats.kl == 0.0


def test_a_resumed_learner_has_the_reference_of_the_start_and_its_checkpoint_none(tmp_path):
    whole = SingleLearner(Policy(tiny_model("qwen3")), TERMS)
    for _ in range(3):
        whole.step(grouped_batch())
    without = SingleLearner(Policy(tiny_model("qwen3")), Recipe(loss=Reinforce()))
    without.step(grouped_batch())
    assert whole.tensors().keys() == without.tensors().keys()
    whole.save(tmp_path)
    resumed = SingleLearner(Policy(tiny_model("qwen3")), TERMS)
    resumed.load(tmp_path, 3)
    ours, theirs = resumed.step(grouped_batch()), whole.step(grouped_batch())
    assert ours == theirs
    pairs = zip(resumed._masters, whole._masters, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_weights_in_bf16_are_exchanged_exactly():
    learner = SingleLearner(Policy(tiny_model("qwen3").bfloat16()), TERMS)
    learner.step(grouped_batch())
    before = [parameter.detach().clone() for parameter in learner._parameters]
    learner._reference_logps(grouped_batch())
    pairs = zip(before, learner._parameters, learner._masters, strict=True)
    assert all(torch.equal(one, other) and torch.equal(one, m.bfloat16()) for one, other, m in pairs)
