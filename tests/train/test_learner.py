import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

from scalerl.core.types import Rollout
from scalerl.training.config.recipe import AdamW, Recipe, Reinforce
from scalerl.training.learner.base import BadGradient
from scalerl.training.learner.batch import RolloutTensors, TrainBatch
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.policy import Policy

SETTINGS = AdamW(learning_rate=1e-2, warmup_steps=4, weight_decay=0.0, max_grad_norm=1e9)


def make(settings=SETTINGS, dtype=torch.float32, **options):
    return SingleLearner(Policy(tiny_model("qwen3").to(dtype)), Recipe(optimizer=settings, loss=Reinforce()), **options)


def batch(rows=6, width=10, scale=1.0):
    """Return random tokens; the loss is minus the mean log-probability of about half of them, times `scale`."""
    torch.manual_seed(3)
    tokens, trained = torch.randint(2, 48, (rows, width)), torch.rand(rows, width) < 0.5
    lengths = torch.arange(rows) % 5 + width - 4  # five lengths, so that micro-batches have several widths
    trained[:, 1] = True  # every row has a trained token
    trained &= (torch.arange(width) >= 1) & (torch.arange(width) < lengths[:, None])
    weights = trained * scale / trained.sum()
    return TrainBatch(RolloutTensors.without_rewards(tokens, lengths), torch.ones(rows), trained, weights)


def gradients(learner, given):
    """Return the gradient of a batch's loss as the optimizer gets it, and discard it."""
    learner._add_gradients(given)
    copies = [master.grad.clone() for master in learner._masters]
    learner._discard_gradient()
    return copies


def copies(learner):
    return [p.detach().clone() for p in learner.policy.model.parameters()]


def unchanged(learner, before):
    return all(torch.equal(p, old) for p, old in zip(learner.policy.model.parameters(), before, strict=True))


def test_the_rate_warms_up_linearly_and_is_then_constant():
    learner = make()
    rates = [learner.step(batch()).learning_rate for _ in range(6)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_the_first_adam_step_changes_every_weight_by_the_rate():
    """Adam's first step is rate * sign(gradient) even for small gradients, because eps is 1e-15."""
    learner = make(AdamW(learning_rate=1e-2, warmup_steps=0, weight_decay=0.0, max_grad_norm=1e9))
    before, given = copies(learner), batch(scale=1e-9)
    grads = gradients(learner, given)
    learner.step(given)
    for p, old, g in zip(learner.policy.model.parameters(), before, grads, strict=True):
        moved = g.abs() > 1e-13
        assert moved.any()
        torch.testing.assert_close((old - p.detach())[moved], (0.01 * g.sign())[moved], atol=1e-4, rtol=0)


def test_the_gradient_norm_is_clipped():
    learner, given = make(AdamW(learning_rate=1e-2, warmup_steps=0, max_grad_norm=1e-3)), batch(scale=20.0)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients(learner, given)))
    seen = {}
    original = learner._optimizer.step
    learner._optimizer.step = lambda: (
        seen.update(norm=sum(float((p.grad**2).sum()) for p in learner._masters) ** 0.5) or original()
    )
    stats = learner.step(given)
    assert stats.grad_norm == pytest.approx(norm, rel=1e-5) and seen["norm"] == pytest.approx(1e-3, rel=1e-4)
    assert norm > 1


def test_fp32_masters_of_bf16_weights_accumulate_small_steps():
    learner = make(AdamW(learning_rate=1e-5, warmup_steps=0, weight_decay=0.0), dtype=torch.bfloat16)
    weight = learner.policy.model.model.layers[0].mlp.up_proj.weight
    start = weight.detach().clone()
    for _ in range(300):  # 300 steps of 1e-5 move weights of size 0.3 by 3e-3; one step is far below bf16's resolution
        learner._collect([torch.ones_like(p) if p is weight else None for p in learner._parameters])
        learner._update()
        learner._discard_gradient()
    assert weight.dtype == torch.bfloat16
    assert float((start - weight.detach()).float().mean()) == pytest.approx(3e-3, rel=0.2)


def test_gradients_of_bf16_weights_are_accumulated_in_fp32():
    """A bf16 sum of 64 terms has an error of about 1%, because it loses terms below 1/256 of the sum so far."""
    given, rows = batch(rows=64), torch.eye(64, dtype=torch.bool)
    learner = make(dtype=torch.bfloat16, micro_batch_tokens=1)
    assert sum(1 for _ in given.micro_batches(1)) == 64
    ours = gradients(learner, given)
    each = [gradients(learner, replace(given, trained_BT=given.trained_BT & only[:, None])) for only in rows]
    each = [each[int(row)] for part, _ in given.micro_batches(1) for row in part]  # in the learner's order
    for number, found in enumerate(ours):
        exact = torch.stack([one[number].double() for one in each]).sum(dim=0)
        in_bf16 = torch.zeros_like(found, dtype=torch.bfloat16)
        for one in each:
            in_bf16 += one[number].bfloat16()
        assert found.dtype == torch.float32
        assert float((found - exact).norm() / exact.norm()) < 1e-5
        assert float((in_bf16 - exact).norm() / exact.norm()) > 0.005  # the error that this test detects


def test_a_batch_without_trained_tokens_counts_as_an_update_and_changes_nothing():
    learner = make()
    learner.step(batch())
    before, moments = copies(learner), {name: t.clone() for name, t in learner.tensors().items()}
    given = batch()
    nothing = replace(given, trained_BT=torch.zeros_like(given.trained_BT), weights_BT=0 * given.weights_BT)
    stats = learner.step(nothing)
    assert learner.updates == 2 and (stats.trained_tokens, stats.grad_norm, stats.learning_rate) == (0, 0.0, 0.0)
    assert unchanged(learner, before)
    assert all(torch.equal(t, moments[name]) for name, t in learner.tensors().items())


@pytest.mark.parametrize(("dtype", "helpers"), [(torch.bfloat16, 0), (torch.float32, 1)])
@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_nonfinite_loss_or_gradient_raises_and_keeps_the_weights(poison, dtype, helpers):
    learner = make(dtype=dtype, micro_batch_tokens=1, helpers=helpers)
    fresh = make(dtype=dtype, micro_batch_tokens=1)
    before, given = copies(learner), batch()
    if poison == "loss":  # of the last micro-batch alone, after the gradients of the others
        last = [int(rows[0]) for rows, _ in given.micro_batches(1)][-1]
        bad = replace(given, advantages_B=torch.where(torch.arange(6) == last, float("nan"), 1.0))
        expected = "the loss is nan"
    else:
        hook = learner._parameters[0].register_hook(lambda gradient: gradient * float("inf"))
        bad, expected = given, "the gradient's norm is (nan|inf)"
    with pytest.raises(BadGradient, match=expected):
        learner.step(bad)
    assert learner.updates == 0 and unchanged(learner, before)
    if poison == "gradient":
        hook.remove()
    # and the gradient is discarded
    assert learner.step(given) == fresh.step(given) and unchanged(learner, copies(fresh))
    learner.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_learner_gives_the_same_bits(dtype, tmp_path):
    def train(learner, steps):
        for _ in range(steps):
            learner.step(batch())

    original, copy = make(dtype=dtype), make(dtype=dtype)
    train(original, 3)
    original.save(tmp_path)
    copy.load(tmp_path, updates=3)
    train(original, 2)
    train(copy, 2)
    assert unchanged(copy, copies(original)) and copy.updates == original.updates == 5


def test_weights_whose_log_probabilities_are_not_finite_are_reported_by_the_check():
    learner = make()
    rollout = Rollout(
        tokens=np.array([3, 4], np.int32), logps=np.zeros(2, np.float32), versions=np.zeros(2, np.int32),
        sampled=np.ones(2, bool), truncated=False, interrupted=False,
    )  # fmt: skip
    assert learner.check(0, [((1, 2), rollout)]).tokens == 2
    with torch.no_grad():
        learner.policy.head_weight.mul_(float("inf"))
    with pytest.raises(BadGradient, match="not finite"):
        learner.check(0, [((1, 2), rollout)])
