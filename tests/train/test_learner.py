import math

import pytest
import torch
from tiny_models import tiny_model

from scalerl.config.recipe import AdamW
from scalerl.models.policy import Policy
from scalerl.train.learner.single import BadGradient, Learner

SETTINGS = AdamW(learning_rate=1e-2, warmup_steps=4, weight_decay=0.0, max_grad_norm=1e9)


def make(settings=SETTINGS, dtype=torch.float32, **options):
    return Learner(Policy(tiny_model("qwen3").to(dtype)), settings, temperature=1.0, **options)


def batch(rows=6, width=10):
    torch.manual_seed(3)
    trained = torch.rand(rows, width) < 0.5
    trained[:, :2] = False
    return torch.randint(2, 48, (rows, width)), trained


def gradients(learner):
    return [p.grad.clone() for p in learner.policy.parameters()]


def test_any_split_into_micro_batches_gives_the_same_gradient():
    tokens, trained = batch()
    weights = torch.rand(trained.shape) * trained
    learner, results = make(), []
    for split in ([6], [1, 2, 3], [1] * 6):
        learner.discard_gradient()
        for rows in torch.arange(6).split(split):
            logp, _ = learner.logprobs(tokens[rows], trained[rows])
            learner.backward(-(logp * weights[rows][trained[rows]]).sum())
        results.append(gradients(learner))
    for other in results[1:]:
        for ours, reference in zip(other, results[0], strict=True):
            torch.testing.assert_close(ours, reference, atol=1e-5, rtol=1e-4)


def test_padding_at_the_end_changes_nothing():
    tokens, trained = batch(rows=2, width=6)
    learner = make()
    padded = torch.cat([tokens, torch.zeros(2, 5, dtype=torch.long)], dim=1)
    mask = torch.cat([trained, torch.zeros(2, 5, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(
        learner.logprobs(padded, mask)[0], learner.logprobs(tokens, trained)[0], atol=1e-5, rtol=1e-5
    )


def test_the_rate_warms_up_linearly_and_then_stays():
    learner, rates = make(), []
    tokens, trained = batch()
    for _ in range(6):
        learner.backward(-learner.logprobs(tokens, trained)[0].mean())
        rates.append(learner.step().learning_rate)
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_the_first_adam_step_moves_every_weight_by_the_rate():
    """Adam's first step is rate * sign(gradient), however small the gradient: that is what eps = 1e-15 is for."""
    learner = make(AdamW(learning_rate=1e-2, warmup_steps=0, weight_decay=0.0, max_grad_norm=1e9))
    before = [p.detach().clone() for p in learner.policy.parameters()]
    tokens, trained = batch()
    learner.backward(-learner.logprobs(tokens, trained)[0].mean() * 1e-9)
    grads = gradients(learner)
    learner.step()
    for p, old, g in zip(learner.policy.parameters(), before, grads, strict=True):
        moved = g.abs() > 1e-13
        torch.testing.assert_close((old - p.detach())[moved], (0.01 * g.sign())[moved], atol=1e-4, rtol=0)


def test_a_long_gradient_is_scaled_down_to_the_limit():
    learner = make(AdamW(learning_rate=1e-2, warmup_steps=0, max_grad_norm=1e-3))
    tokens, trained = batch()
    learner.backward(-learner.logprobs(tokens, trained)[0].sum())
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients(learner)))
    seen = {}
    original = learner._optimizer.step
    learner._optimizer.step = lambda: (
        seen.update(norm=sum(float((p.grad**2).sum()) for p in learner._masters) ** 0.5) or original()
    )
    stats = learner.step()
    assert stats.grad_norm == pytest.approx(norm, rel=1e-5) and seen["norm"] == pytest.approx(1e-3, rel=1e-4)


def test_norms_and_biases_do_not_decay():
    learner = make(AdamW(learning_rate=0.1, warmup_steps=0, weight_decay=0.5))
    before = dict(learner.policy.model.named_parameters())
    before = {name: p.detach().clone() for name, p in before.items()}
    for p in learner.policy.parameters():
        p.grad = torch.zeros_like(p)
    learner.step()
    for name, p in learner.policy.model.named_parameters():
        factor = 0.95 if p.ndim >= 2 else 1.0
        torch.testing.assert_close(p.detach(), before[name] * factor)


def test_bf16_weights_have_fp32_masters_that_add_up_steps_too_small_for_bf16():
    learner = make(AdamW(learning_rate=1e-5, warmup_steps=0, weight_decay=0.0), dtype=torch.bfloat16)
    weight = learner.policy.model.model.layers[0].mlp.up_proj.weight
    start = weight.detach().clone()
    for _ in range(300):  # 300 steps of 1e-5 move weights of size 0.3 by 3e-3; one step is far below bf16's resolution
        weight.grad = torch.ones_like(weight)
        learner.step()
    assert weight.dtype == torch.bfloat16
    assert float((start - weight.detach()).float().mean()) == pytest.approx(3e-3, rel=0.2)


def test_gradient_checkpointing_changes_no_gradient():
    tokens, trained = batch()
    results = []
    for checkpointing in (False, True):
        learner = make(gradient_checkpointing=checkpointing)
        learner.backward(-learner.logprobs(tokens, trained)[0].mean())
        results.append(gradients(learner))
    for plain, checkpointed in zip(*results, strict=True):
        torch.testing.assert_close(checkpointed, plain)


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_raises_and_leaves_the_weights(poison):
    learner = make()
    before = [p.detach().clone() for p in learner.policy.parameters()]
    tokens, trained = batch()
    loss = -learner.logprobs(tokens, trained)[0].mean()
    with pytest.raises(
        BadGradient, match="the loss is nan" if poison == "loss" else "the gradient's norm is (nan|inf)"
    ):
        if poison == "loss":
            learner.backward(loss * float("nan"))
        learner.backward(loss)
        learner.policy.parameters()[0].grad[0, 0] = float("inf")
        learner.step()
    assert all(torch.equal(p, old) for p, old in zip(learner.policy.parameters(), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_learner_goes_on_to_the_same_bits(dtype):
    tokens, trained = batch()

    def train(learner, steps):
        for _ in range(steps):
            learner.backward(-learner.logprobs(tokens, trained)[0].float().mean())
            learner.step()

    original, copy = make(dtype=dtype), make(dtype=dtype)
    train(original, 3)
    copy.load_tensors({k: v.clone() for k, v in original.tensors().items()}, updates=3)
    train(original, 2)
    train(copy, 2)
    for a, b in zip(original.policy.parameters(), copy.policy.parameters(), strict=True):
        assert torch.equal(a, b)
