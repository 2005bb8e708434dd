"""Corrections for engine mismatch: factors worked by hand, gradients in every layout, metrics, warnings, refusals."""

import math
import re
from dataclasses import replace

import pytest
import torch
from batches import change
from pydantic import ValidationError
from test_families import learner_gradient, plain_gradient, relative_error
from test_prefix import grouped_batch
from tiny_models import tiny_model

from scalerl.training.config import LAB
from scalerl.training.config import mismatch as parts
from scalerl.training.config.base import replace as changed
from scalerl.training.config.recipe import SCALERL, Recipe, Reinforce
from scalerl.training.learner.batch import StepSettings
from scalerl.training.learner.single import SingleLearner
from scalerl.training.loop.warnings import mismatch
from scalerl.training.models.policy import Policy
from scalerl.training.recipe.mismatch import correction

RATIO = torch.tensor([[1.0, 4.0, 0.5], [1.25, 0.6, 100.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, True, False]])
"""The products of the trained ratios are 2 and 0.75, their geometric means 1.26 and 0.866."""

CASES = [
    (parts.NoCorrection(), [[1, 1, 1], [1, 1]], 0),
    (parts.TokenMask(keep=(0.5, 3.9)), [[1, 0, 1], [1, 1]], 1),
    (parts.SequenceMask(keep=(0.8, 3.0)), [[1, 1, 1], [0, 0]], 2),
    (parts.SequenceMask(keep=(0.0, 1.5)), [[0, 0, 0], [1, 1]], 3),
    (parts.GeometricMask(keep=(0.8, 1.2)), [[0, 0, 0], [1, 1]], 3),
    (parts.Reject(keep=(0.55, 10.0)), [[0, 0, 0], [1, 1]], 3),
    (parts.TokenTruncate(most=2.0), [[1, 2, 0.5], [1.25, 0.6]], 1),
    (parts.SequenceTruncate(most=1.5), [[1.5, 1.5, 1.5], [0.75, 0.75]], 3),
]


@pytest.mark.parametrize(("params", "factors", "count"), CASES, ids=lambda x: getattr(x, "kind", ""))
def test_factors_are_those_worked_by_hand_and_have_no_gradient(params, factors, count):
    log_ratio = RATIO.log().requires_grad_()
    factor, hit = correction(params, log_ratio, MASK)
    assert not factor.requires_grad and int(hit.sum()) == count and not hit[1, 2]
    torch.testing.assert_close(factor[MASK].double(), torch.tensor([*factors[0], *factors[1]], dtype=torch.float64))


def test_bounds_are_kept_and_a_nan_is_not_masked():
    log_ratio = torch.tensor([[math.log(0.5), math.log(5.0), math.nan]])
    factor, hit = correction(parts.TokenMask(), log_ratio, torch.ones(1, 3, dtype=torch.bool))
    assert factor.tolist() == [[1, 1, 1]] and not hit.any()  # a loss that is NaN must reach the check of the update


def uneven():
    """Return a batch with log ratios of up to 1.5 under the tiny model; every kind of mask keeps a part of it."""
    batch, draw = grouped_batch(), torch.Generator().manual_seed(5)
    log_ratio_BT = 3 * torch.rand(batch.rollouts.tokens_BT.shape, generator=draw, dtype=torch.float64) - 1.5
    with torch.no_grad():
        every = tiny_model("qwen3").double()(batch.rollouts.tokens_BT).logits[:, :-1].log_softmax(-1)
    logp_BT = torch.zeros_like(log_ratio_BT)
    logp_BT[:, 1:] = every.gather(2, batch.rollouts.tokens_BT[:, 1:, None])[..., 0]
    return change(batch, behavior_BT=((logp_BT - log_ratio_BT) * batch.trained_BT).float()), log_ratio_BT


KINDS = [
    parts.TokenMask(keep=(0.5, 2.0)), parts.SequenceMask(keep=(0.5, 2.0)), parts.GeometricMask(keep=(0.9, 1.1)),
    parts.Reject(keep=(0.25, 4.3)), parts.TokenTruncate(), parts.SequenceTruncate(),
]  # fmt: skip


@pytest.mark.parametrize("params", KINDS, ids=lambda p: p.kind)
@pytest.mark.parametrize(("packing", "budget"), [("padded", 1000), ("padded", 14), ("packed", 30), ("shared", 21)])
def test_every_layout_and_split_has_the_float64_gradient_of_the_corrected_loss(params, packing, budget):
    batch, log_ratio = uneven()
    factor, hit = correction(params, log_ratio, batch.trained_BT)
    assert 0 < int(hit.sum()) < int(batch.trained_BT.sum())  # some tokens are corrected, and some are not
    expected = plain_gradient(tiny_model("qwen3").double(), replace(batch, weights_BT=batch.weights_BT * factor))
    recipe = Recipe(loss=Reinforce(), mismatch=params)
    found = learner_gradient(Policy(tiny_model("qwen3")), batch, recipe, packing=packing, micro_batch_tokens=budget)
    assert relative_error(found, expected) < 1e-5


def test_metrics_split_log_ratios_by_staleness_and_count_effective_and_corrected_tokens():
    batch, log_ratio = uneven()
    stale = (torch.arange(14) % 2 == 0).expand(5, 14)
    recipe, settings = Recipe(loss=Reinforce(), mismatch=KINDS[0]), StepSettings(version=1)
    learner = SingleLearner(Policy(tiny_model("qwen3")), recipe, micro_batch_tokens=30)
    stats = learner.step(change(batch, context_BT=(~stale).int(), settings=settings))
    kept = batch.trained_BT
    ratio = log_ratio[kept].exp()
    assert stats.log_ratio_fresh == pytest.approx(float(log_ratio[kept & ~stale].abs().mean()), rel=1e-4)
    assert stats.log_ratio_stale == pytest.approx(float(log_ratio[kept & stale].abs().mean()), rel=1e-4)
    assert stats.effective_samples == pytest.approx(float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())), rel=1e-4)
    assert stats.corrected_share == pytest.approx(float(((ratio < 0.5) | (ratio > 2.0)).double().mean()))
    plain = SingleLearner(Policy(tiny_model("qwen3")), Recipe()).step(batch)  # no token is older than version 0
    assert plain.log_ratio_stale is None and "log_ratio_stale" not in plain.to_dict() and plain.corrected_share == 0


def test_a_truncated_ratio_is_refused_with_a_loss_that_has_one_and_bounds_must_be_ordered():
    with pytest.raises(Exception, match="'token-truncate' with the loss 'cispo', which would count the ratio twice"):
        changed(SCALERL, mismatch="token-truncate")
    assert changed(SCALERL, mismatch="sequence-truncate", loss="reinforce").mismatch.most == 2.0
    assert SCALERL.mismatch == parts.NoCorrection() and changed(SCALERL, mismatch="token-mask").mismatch.keep == (
        0.5,
        5,
    )
    with pytest.raises(ValidationError, match="the lower end first"):
        parts.Reject(keep=(2.0, 1.0))


@pytest.mark.parametrize(
    ("fresh", "stale", "effective", "recipe", "words"),
    [
        (0.049, 0.4, 0.51, {}, None),
        (0.051, 0.06, 0.9, {}, "0.051 nats per token for the same weights: recipe.mismatch = 'token-mask'"),
        (0.1, 0.1, 0.3, {"fp32_head": False}, "recipe.fp32_head = true or recipe.mismatch"),
        (0.2, 0.2, 0.9, {}, "recipe.routing_replay = 'on' or recipe.mismatch"),
        (0.1, 0.1, 0.3, {"mismatch": "reject"}, "check the numerics of the engine"),
        (0.01, 0.8, 0.3, {}, "30% of the trained tokens effective .*recipe.off_policy.max_lag, now"),
        (math.nan, 0.8, 0.3, {"off_policy": "ppo-off-policy"}, "no token is of the same .*off_policy.batches, now 8"),
    ],
)
def test_the_warning_names_the_cure_that_fits(fresh, stale, effective, recipe, words):
    row = {"log_ratio_fresh": fresh, "log_ratio_stale": stale, "effective_samples": effective}
    row |= {"router_disagreement": 0.1} if fresh == 0.2 else {}
    told = mismatch([row] * 20, changed(LAB.recipe, **recipe))
    assert told == {} if words is None else re.search(words, *told.values())
