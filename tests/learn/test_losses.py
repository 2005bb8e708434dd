"""A 2x3 example worked by hand: rollout 0 has advantage 2 and three tokens, rollout 1 advantage -1 and two."""

import math

import pytest
import torch
from doc_pages import blocks

from scalerl.training.config import recipe
from scalerl.training.config.recipe import Cispo, Dapo, Grpo, Gspo, Reinforce
from scalerl.training.recipe import losses
from scalerl.training.recipe.losses import LOSSES

RATIO = torch.tensor([[1.0, 8.0, 0.5], [1.25, 0.75, 1.0]])
LOGP = torch.log(torch.tensor([[0.5, 0.8, 0.2], [0.5, 0.3, 1.0]]))
BEHAVIOR = LOGP - RATIO.log()
ADVANTAGES = torch.tensor([2.0, -1.0])
MASK = torch.tensor([[True, True, True], [True, True, False]])

ALL = [Cispo(), Dapo(), Grpo(), Gspo(), Reinforce()]


def run(params, logp=LOGP, behavior=BEHAVIOR, mask=MASK):
    return LOSSES[params.kind](params, logp, behavior, ADVANTAGES, mask)


def test_cispo_weighs_log_pi_by_the_ratio_with_an_upper_cap():
    loss, capped = run(Cispo(max_ratio=5.0))
    # the ratio 8 is cut to 5; there is no lower bound, so 0.5 and 0.75 are unchanged
    expected = -torch.tensor([[1.0, 5.0, 0.5], [1.25, 0.75, 1.0]]) * ADVANTAGES[:, None] * LOGP
    torch.testing.assert_close(loss, expected)
    assert capped.tolist() == [[False, True, False], [False, False, False]]


def test_the_cispo_cap_is_absolute_and_not_one_plus_epsilon():
    _, capped = run(Cispo(max_ratio=1.1))
    assert capped.tolist() == [[False, True, False], [True, False, False]]


def test_dapo_clips_the_pessimistic_side_at_its_thresholds():
    loss, clipped = run(Dapo(clip_low=0.2, clip_high=0.26))
    # A > 0: min(r, clip(r)) * 2 -> 1, 1.26, 0.5; A < 0: -max(r, clip(r)) -> 1.25, 0.8 (0.75 is raised), 1
    expected = -torch.tensor([[2.0, 2.52, 1.0], [-1.25, -0.8, -1.0]])
    torch.testing.assert_close(loss, expected)
    assert clipped.tolist() == [[False, True, False], [False, True, False]]


def test_grpo_clips_at_one_fifth_on_both_sides():
    loss, _ = run(Grpo())
    torch.testing.assert_close(loss, -torch.tensor([[2.0, 2.4, 1.0], [-1.25, -0.8, -1.0]]))


def test_gspo_clips_the_geometric_mean_of_the_ratios():
    loss, clipped = run(Gspo(clip_low=3e-3, clip_high=4e-3))
    # rollout 0: (1 * 8 * 0.5)^(1/3) = 4^(1/3) > 1.004 is cut
    # rollout 1, two tokens: sqrt(1.25 * 0.75) = sqrt(15)/4 < 0.997
    assert math.isclose(float(loss[0, 0]), -2 * 1.004, rel_tol=1e-6)
    assert math.isclose(float(loss[1, 0]), 1 * 0.997, rel_tol=1e-6)
    assert torch.equal(loss, loss[:, :1].expand(2, 3)) and clipped.all()


def test_gspo_uses_the_unclipped_ratio_if_it_is_pessimistic():
    params = Gspo(clip_low=3e-3, clip_high=4e-3)
    loss, clipped = LOSSES["gspo"](params, LOGP, BEHAVIOR, -ADVANTAGES, MASK)
    assert math.isclose(float(loss[0, 0]), 2 * 4 ** (1 / 3), rel_tol=1e-6)
    assert math.isclose(float(loss[1, 0]), -math.sqrt(15) / 4, rel_tol=1e-6)
    assert not clipped.any()


def test_reinforce_ignores_the_behavior_policy():
    loss, _ = run(Reinforce(), behavior=torch.zeros_like(LOGP))
    torch.testing.assert_close(loss, -ADVANTAGES[:, None] * LOGP)


@pytest.mark.parametrize("params", [Cispo(), Dapo(), Grpo(), Gspo()], ids=lambda p: p.kind)
def test_all_losses_have_the_gradient_of_reinforce_on_policy(params):
    gradients = []
    for p in (params, Reinforce()):
        logp = LOGP.clone().requires_grad_()
        loss, _ = LOSSES[p.kind](p, logp, LOGP, ADVANTAGES, MASK)
        (loss * MASK).sum().backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("params", ALL, ids=lambda p: p.kind)
def test_autograd_and_finite_differences_agree(params):
    base = LOGP.double()
    ratio = torch.log(torch.tensor([[1.1, 0.9, 1.02], [0.95, 1.05, 1.0]], dtype=torch.float64))
    behavior, advantages = base - ratio, ADVANTAGES.double()
    held = ratio.exp().clamp(max=getattr(params, "max_ratio", math.inf))

    def total(logp):
        if params.kind == "cispo":  # its ratio is a constant for the gradient, so the reference holds it fixed
            return (-held * advantages[:, None] * logp * MASK).sum()
        loss, _ = LOSSES[params.kind](params, logp, behavior, advantages, MASK)
        return (loss * MASK).sum()

    logp = base.clone().requires_grad_()
    loss, _ = LOSSES[params.kind](params, logp, behavior, advantages, MASK)
    (loss * MASK).sum().backward()
    step = 1e-6
    for b, t in MASK.nonzero().tolist():
        nudge = torch.zeros_like(base)
        nudge[b, t] = step
        numeric = float(total(base + nudge) - total(base - nudge)) / (2 * step)
        assert math.isclose(float(logp.grad[b, t]), numeric, rel_tol=1e-6, abs_tol=1e-8)


@pytest.mark.parametrize("params", ALL, ids=lambda p: p.kind)
def test_a_ratio_beyond_float_range_gives_a_finite_loss_and_gradient(params):
    logp = torch.tensor([[-1.0, -200.0]], requires_grad=True)
    behavior = torch.tensor([[-300.0, -1.0]])
    loss, _ = LOSSES[params.kind](params, logp, behavior, torch.tensor([-1.0]), torch.ones(1, 2, dtype=torch.bool))
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(logp.grad).all()


def test_gspo_has_no_gradient_for_any_token_of_a_rollout_beyond_the_limit():
    # the mean of the log ratios 40 and 2 is 21
    logp = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    behavior = torch.tensor([[-41.0, -3.0]])
    loss, capped = LOSSES["gspo"](Gspo(), logp, behavior, torch.tensor([-1.0]), torch.ones(1, 2, dtype=torch.bool))
    loss.sum().backward()
    assert not logp.grad.any() and capped.all()


def test_the_loss_of_the_contributing_page_passes_its_test_and_those_of_all_losses(monkeypatch):
    record, function, test = blocks("CONTRIBUTING.md", "python")[:3]
    names = {**vars(recipe), **vars(losses), **globals()}
    exec(record + function + test, names)
    monkeypatch.setitem(LOSSES, "bounded", names["bounded"])
    names["test_bounded_cuts_the_ratio_on_both_sides"]()
    for shared in SHARED:
        shared(names["Bounded"]())


SHARED = [
    test_all_losses_have_the_gradient_of_reinforce_on_policy,
    test_autograd_and_finite_differences_agree,
    test_a_ratio_beyond_float_range_gives_a_finite_loss_and_gradient,
]
"""The tests that have a case for each entry of `ALL`."""
