"""The noisy engine of `scalerl study mismatch`."""

import numpy as np
import torch
from tiny_models import tiny_model

from scalerl.config.recipe import Custom
from scalerl.config.trust import NOISY_ENGINE
from scalerl.learn.mismatch import MISMATCH
from scalerl.models.policy import Policy
from scalerl.rollouts.custom import EngineParts, engine_pair
from scalerl.rollouts.engine import Request, Sampling
from scalerl.rollouts.interrupt import NEVER, LengthRule
from scalerl.rollouts.local.noise import rounded, shifted
from scalerl.rollouts.replay import largest_difference
from scalerl.study.plans import CORRECTIONS


def test_rounding_keeps_bits_after_the_leading_one_and_noise_is_a_share_of_the_root_mean_square():
    weight = torch.tensor([1.0, 1.25, 1.5625, -1.8125, 0.3125])
    assert rounded(weight, 1).tolist() == [1.0, 1.0, 1.5, -2.0, 0.25]  # ties go to the even side
    assert torch.equal(rounded(weight, 23), weight)
    matrix = torch.full((200, 200), 4.0)
    error = shifted(matrix, 0.5, 1) - matrix
    assert abs(error.std() - 2.0) < 0.03 and torch.equal(shifted(matrix, 0.5, 1) - matrix, error)


def test_training_engines_sample_with_noise_at_every_version_and_evaluations_are_exact():
    torch.manual_seed(0)
    policies = {version: Policy(tiny_model("qwen3")) for version in (0, 1)}
    parts = EngineParts(
        load_policy=lambda: Policy(tiny_model("qwen3")), model_path="m", slots=4, prompt_tokens=4,
        rule=LengthRule(None, NEVER, 20), sampling=Sampling(),
        receive=lambda version: dict(policies[version].weights()),
    )  # fmt: skip
    training, evaluating = engine_pair(Custom(function=NOISY_ENGINE, params={"sigma": 0.5}), parts)
    for version in (0, 1):
        training.swap(version)
        for engine, low, high in ((evaluating, 0.0, 1e-4), (training, 1e-2, np.inf)):
            engine.submit([Request((0, 0), (3, 5), 7)])
            (done,) = [done for _ in range(20) for done in engine.poll()]
            assert (done.rollout.versions == version).all()
            assert low <= largest_difference(policies, [((3, 5), done.rollout)]).mean < high


def test_the_plan_has_every_correction():
    assert set(CORRECTIONS) == set(MISMATCH)
