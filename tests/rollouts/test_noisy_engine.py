"""The noisy engine of the studies of a mismatch, benchmarks/noisy_engine.py."""

import numpy as np
import pytest
import torch
from sampled import run_out
from tiny_models import tiny_model

from scalerl.core.types import Group, Prompt, Score, ScoredGroup, Visit
from scalerl.training.config.recipe import Custom
from scalerl.training.engines.custom import EngineParts, engine_pair
from scalerl.training.engines.engine import Request, Sampling, step
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.replay import largest_difference
from scalerl.training.learner.batch import collate
from scalerl.training.models.policy import Policy
from scalerl.training.models.routing import routing_of
from scalerl.training.models.rows import PolicyRows

NOISY = "noisy_engine:noisy"


@pytest.fixture(autouse=True)
def noisy_engine(benchmark):
    return benchmark("noisy_engine")


def test_training_engines_sample_with_noise_at_every_version_and_evaluations_are_exact():
    torch.manual_seed(0)
    policies = {version: Policy(tiny_model("qwen3")) for version in (0, 1)}
    parts = EngineParts(
        load_policy=lambda: Policy(tiny_model("qwen3")), model_path="m", slots=4, prompt_tokens=4,
        rule=LengthRule(None, NEVER, 20), sampling=Sampling(),
        receive=lambda version: dict(policies[version].weights()),
    )  # fmt: skip
    training, evaluating = engine_pair(Custom(function=NOISY, params={"sigma": 0.5}), parts)
    for version in (0, 1):
        training.swap(version)
        for engine, low, high in ((evaluating, 0.0, 1e-4), (training, 1e-2, np.inf)):
            engine.submit([Request((0, 0), (3, 5), 7)])
            (done,) = [done for _ in range(20) for done in step(engine)]
            assert (done.rollout.versions == version).all()
            assert low <= largest_difference(policies, [((3, 5), done.rollout)]).mean < high


def flipped_rollouts(prompts, tiny="qwen3-moe"):
    """Return a training batch of rollouts of an engine whose routers choose with noise."""
    torch.manual_seed(0)
    policy = Policy(tiny_model(tiny))
    parts = EngineParts(
        load_policy=lambda: Policy(tiny_model(tiny)), model_path="m", slots=8, prompt_tokens=4,
        rule=LengthRule(None, NEVER, 20), sampling=Sampling(), receive=lambda version: dict(policy.weights()),
    )  # fmt: skip
    engine, _ = engine_pair(Custom(function=NOISY, params={"routes": 0.5}), parts)
    engine.swap(1)
    engine.submit([Request((i, 0), prompt, 7 + i) for i, prompt in enumerate(prompts)])
    visits = [Visit(Prompt(str(i), "", prompt, "", "t"), 0, i) for i, prompt in enumerate(prompts)]
    rollouts = [done.rollout for done in run_out(engine)]
    return policy, collate(
        [ScoredGroup(Group(visit, (one,), 1), (Score(1.0, True),)) for visit, one in zip(visits, rollouts, strict=True)]
    )


def test_replay_removes_the_whole_mismatch_of_an_engine_that_chooses_other_experts():
    """Prompts have one token each, so all experts are recorded."""
    policy, batch = flipped_rollouts([(3,), (5,), (9,), (2,)])
    errors = {}
    for replay in (False, True):
        routing_of(policy).use(batch.experts_BTLK.flatten(0, 1), replay=replay)
        with torch.no_grad():
            logp_N, _ = policy(PolicyRows.padded(batch.tokens_BT, batch.sampled_BT, policy.device))
        errors[replay] = (logp_N - batch.behavior_BT[batch.sampled_BT]).abs()
        assert 0.1 < routing_of(policy).differs_NL().float().mean() < 0.9
    assert len(logp_N) == 80 and errors[True].max() < 1e-5 < 1e-2 < errors[False].mean()
