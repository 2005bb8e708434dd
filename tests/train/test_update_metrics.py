"""Metrics of an update: every sum has its name, so exchanging two of them fails here."""

import math
from dataclasses import asdict

import pytest
import torch
from batches import change
from learn.test_mismatch import uneven
from tiny_models import tiny_model

from scalerl.training.config.mismatch import TokenMask
from scalerl.training.config.recipe import Dapo, Recipe
from scalerl.training.learner.batch import StepSettings
from scalerl.training.learner.metrics import SUM_NAMES, TokenMeter
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.policy import Policy

LN2 = math.log(2)


def two_micro_batches():
    """Return the meter of two micro-batches, with ratios of 2, 1/2, 1 and 4, and of 1/8."""
    meter = TokenMeter()
    meter.add(
        loss=torch.tensor(0.25, dtype=torch.float64),
        log_ratio_n=torch.tensor([2.0, 0.5, 1.0, 4.0], dtype=torch.float64).log(),
        capped_n=torch.tensor([False, False, False, True]),
        entropy_n=torch.tensor([0.1, 0.2, 0.3, 0.5], dtype=torch.float64),
        stale_n=torch.tensor([True, False, False, True]),
        corrected_n=torch.tensor([False, True, True, True]),
        differs_nL=torch.tensor([[True, True, False]] * 3 + [[True, False, False]]),
        kl_n=torch.tensor([0.01, 0.02, 0.03, 0.3], dtype=torch.float64),
    )
    meter.add(
        loss=torch.tensor(-0.75, dtype=torch.float64),
        log_ratio_n=torch.tensor([1 / 8], dtype=torch.float64).log(),
        capped_n=torch.tensor([False]),
        entropy_n=torch.tensor([1.5], dtype=torch.float64),
        stale_n=torch.tensor([False]),
        corrected_n=torch.tensor([False]),
    )
    return meter


SUMS = {
    "tokens": 5,
    "loss": -0.5,
    "log_ratio": (1 - 1 + 0 + 2 - 3) * LN2,
    "log_ratio_min": -3 * LN2,
    "log_ratio_max": 2 * LN2,
    "capped": 1,
    "entropy": 2.6,
    "routed": 12,
    "rerouted": 7,
    "stale": 2,
    "fresh_gap": (1 + 0 + 3) * LN2,
    "stale_gap": (1 + 2) * LN2,
    "ratio": 2 + 1 / 2 + 1 + 4 + 1 / 8,
    "ratio_squared": 4 + 1 / 4 + 1 + 16 + 1 / 64,
    "corrected": 3,
    "referenced": 4,
    "kl": 0.36,
}


def test_every_sum_over_two_micro_batches_is_the_one_worked_by_hand():
    assert asdict(two_micro_batches().read()) == pytest.approx(SUMS)
    assert len({round(value, 9) for value in SUMS.values()}) == len(SUM_NAMES)  # so that no two can be exchanged


def test_every_mean_is_the_one_worked_by_hand():
    expected = {
        "loss": -0.5,
        "trained_tokens": 5,
        "log_ratio_mean": -LN2 / 5,
        "log_ratio_min": -3 * LN2,
        "log_ratio_max": 2 * LN2,
        "capped_share": 1 / 5,
        "entropy": 2.6 / 5,
        "router_disagreement": 7 / 12,
        "log_ratio_fresh": 4 * LN2 / 3,
        "log_ratio_stale": 3 * LN2 / 2,
        "effective_samples": 7.625**2 / (5 * 21.265625),
        "corrected_share": 3 / 5,
        "kl": 0.36 / 4,
    }
    assert two_micro_batches().read().means() == pytest.approx(expected)
    assert len({round(value, 9) for value in expected.values()}) == len(expected)


@pytest.mark.parametrize("budget", [1000, 14])
def test_every_metric_of_an_update_is_that_of_the_transformers_forward_in_float64(budget):
    batch, log_ratio_BT = uneven()
    stale_BT = (torch.arange(14) % 3 == 0).expand(5, 14)
    batch = change(batch, context_BT=(~stale_BT).int(), settings=StepSettings(version=1))
    recipe = Recipe(loss=Dapo(clip_low=0.2, clip_high=0.3), mismatch=TokenMask(keep=(0.4, 3.5)))
    stats = SingleLearner(Policy(tiny_model("qwen3")), recipe, micro_batch_tokens=budget).step(batch).to_dict()

    trained_BT, advantages_B1 = batch.trained_BT, batch.advantages_B[:, None].double()
    with torch.no_grad():
        every = tiny_model("qwen3").double()(batch.rollouts.tokens_BT).logits[:, :-1].log_softmax(-1)
    entropy_BT = torch.nn.functional.pad(-(every.exp() * every).sum(-1), (1, 0))
    ratio_BT = log_ratio_BT.exp()
    free_BT, clipped_BT = ratio_BT * advantages_B1, ratio_BT.clamp(0.8, 1.3) * advantages_B1
    corrected_BT = (ratio_BT < 0.4) | (ratio_BT > 3.5)
    loss_BT = -torch.minimum(free_BT, clipped_BT) * ~corrected_BT * batch.weights_BT
    ratio_N, log_ratio_N = ratio_BT[trained_BT], log_ratio_BT[trained_BT]
    expected = {
        "loss": loss_BT[trained_BT].sum(),
        "trained_tokens": trained_BT.sum(),
        "log_ratio_mean": log_ratio_N.mean(),
        "log_ratio_min": log_ratio_N.min(),
        "log_ratio_max": log_ratio_N.max(),
        "capped_share": (clipped_BT < free_BT)[trained_BT].double().mean(),
        "entropy": entropy_BT[trained_BT].mean(),
        "log_ratio_fresh": log_ratio_BT[trained_BT & ~stale_BT].abs().mean(),
        "log_ratio_stale": log_ratio_BT[trained_BT & stale_BT].abs().mean(),
        "effective_samples": ratio_N.sum() ** 2 / (len(ratio_N) * (ratio_N**2).sum()),
        "corrected_share": corrected_BT[trained_BT].double().mean(),
    }
    values = {name: float(value) for name, value in expected.items()}
    assert {name: stats[name] for name in values} == pytest.approx(values, rel=1e-4, abs=1e-6)
    assert min(abs(a - b) for m, a in values.items() for n, b in values.items() if m < n) > 1e-3  # all distinct
