"""Nucleus sampling: the trainer normalizes over the ids that the engine could sample, with float64 gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import change
from sampled import samples
from test_families import INTERRUPTED, PROMPTS, learner_gradient, relative_error
from test_prefix import grouped_batch
from tiny_models import tiny_model

from scalerl.training.engines.engine import Request, Sampling, step
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local.torch_engine import torch_engine
from scalerl.training.engines.replay import check_current, largest_difference
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.models.head import nucleus_of
from scalerl.training.models.policy import Policy


def random_sets(targets_N, vocabulary, seed=2):
    """Return kept_NV with the targets and some other ids; the first token has its target alone, the last has all."""
    draw = torch.Generator().manual_seed(seed)
    kept_NV = torch.rand(len(targets_N), vocabulary, generator=draw) < 0.1
    kept_NV[0], kept_NV[-1] = False, True
    kept_NV[torch.arange(len(targets_N)), targets_N] = True
    return kept_NV


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]).log()
    assert nucleus_of(logits, 1.0, 0.65).int().tolist() == [[0, 0, 1, 1], [1, 0, 0, 0]]
    assert nucleus_of(logits, 1.0, 0.71).int().tolist() == [[0, 1, 1, 1], [1, 1, 0, 0]]  # equal ones in order of ids
    # squared and renormalized, the first row is 0.033, 0.133, 0.3, 0.533
    assert nucleus_of(logits, 0.5, 0.5).int().tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


def reference_gradient(model, batch, kept_BTV):
    """Return the gradient of REINFORCE with a softmax over the kept ids of each token, in float64."""
    logits_BTV = model(batch.rollouts.tokens_BT).logits[:, :-1].masked_fill(~kept_BTV[:, 1:], -torch.inf)
    logp_BT = logits_BTV.log_softmax(-1).gather(2, batch.rollouts.tokens_BT[:, 1:, None])[..., 0]
    loss_BT = torch.where(batch.trained_BT[:, 1:], batch.advantages_B[:, None] * batch.weights_BT[:, 1:] * logp_BT, 0.0)
    (-loss_BT.sum()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("packing", "budget"), [("padded", 1000), ("padded", 14), ("packed", 30), ("shared", 21)])
def test_every_layout_and_split_has_the_float64_gradient(packing, budget):
    batch = grouped_batch()
    kept_BTV = random_sets(batch.rollouts.tokens_BT.flatten(), 48).view(5, 14, 48)
    place_M, id_M = (kept_BTV & batch.trained_BT[..., None]).flatten(0, 1).nonzero().unbind(1)
    expected = reference_gradient(tiny_model("qwen3").double(), batch, kept_BTV)
    given = change(batch, nucleus=(place_M, id_M))
    found = learner_gradient(Policy(tiny_model("qwen3")), given, packing=packing, micro_batch_tokens=budget)
    assert relative_error(found, expected) < 1e-5


def test_the_ratio_of_an_engine_with_a_nucleus_is_1_on_policy_and_injected_tokens_have_no_set():
    policy = Policy(tiny_model("qwen3", initializer_range=0.2))
    rollouts = samples(policy, PROMPTS, rule=INTERRUPTED, sampling=Sampling(temperature=0.7, top_p=0.6, stop=(1,)))
    injected = 0
    for _, rollout in rollouts:
        sizes, ids = rollout.nucleus
        sets = np.split(ids, np.cumsum(sizes))[:-1]
        assert [len(one) > 0 for one in sets] == rollout.sampled.tolist()
        assert all(t in one for t, one, own in zip(rollout.tokens, sets, rollout.sampled, strict=True) if own)
        injected += int((~rollout.sampled).sum())
    assert injected > 0
    assert check_current(policy, 0, rollouts, temperature=0.7).largest < 1e-4
    assert largest_difference({0: policy}, rollouts, 0.7).largest < 1e-4
    without = [(prompt, replace(rollout, nucleus=None)) for prompt, rollout in rollouts]
    assert check_current(policy, 0, without, temperature=0.7, bound=9.0).largest > 0.1


def test_a_checkpoint_keeps_the_nuclei_of_sequences_in_flight(tmp_path):
    def engine():
        rule, policy = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=9), Policy(tiny_model("qwen3"))
        return torch_engine(policy, slots=4, prompt_tokens=8, rule=rule, sampling=Sampling(top_p=0.5))

    first, second = engine(), engine()
    first.submit([Request((i, 0), prompt, i) for i, prompt in enumerate(PROMPTS[:3])])
    for _ in range(4):
        step(first)
    save_state(tmp_path, "engine", first.state())
    second.load_state(load_state(tmp_path, "engine"))
    ends = [[done for _ in range(20) for done in step(one)] for one in (first, second)]
    assert len(ends[0]) == 3
    for ours, theirs in zip(*ends, strict=True):
        assert ours.id == theirs.id and all(map(np.array_equal, ours.rollout.nucleus, theirs.rollout.nucleus))
        assert len(ours.rollout.nucleus[0]) == 9
