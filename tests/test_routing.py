"""Routers of mixtures: the engine's choice is recorded, compared with the trainer's, and replayed."""

import dataclasses

import numpy as np
import pytest
import texts
import torch
from batches import change
from sampled import samples
from test_families import INTERRUPTED, PROMPTS, learner_gradient, plain_gradient, relative_error, training_batch
from tiny_models import tiny_model

from scalerl.core.errors import ConfigError
from scalerl.core.serialization import from_plain, to_plain
from scalerl.core.types import Group, Prompt, Score, ScoredGroup, Visit
from scalerl.training.config import RunConfig
from scalerl.training.config.base import replace
from scalerl.training.config.placement import Custom
from scalerl.training.config.recipe import SCALERL, Recipe, Reinforce
from scalerl.training.config.run import Hardware, Placement
from scalerl.training.learner.batch import collate
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.learner.single import SingleLearner
from scalerl.training.loop import run_model
from scalerl.training.loop.run_model import check_sampled
from scalerl.training.models.policy import Policy, load_policy
from scalerl.training.models.routing import UNKNOWN, routing_of
from scalerl.training.placement.choices import policy_spec

MIXTURES = ("mixtral", "qwen3-moe", "olmoe", "gpt-oss")


def generate(policy):
    """Return [(prompt, rollout)]: three slots, refills, interruptions."""
    return samples(policy, PROMPTS, rule=INTERRUPTED)


@torch.no_grad()
def chosen_by(model, tokens):
    """Return [T, L, K]: the top two of the router logits that transformers gives for a whole sequence."""
    out = model(torch.tensor([tokens]), output_router_logits=True)
    return torch.stack([logits.topk(2, dim=-1).indices for logits in out.router_logits], dim=1)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_rollout_carries_the_experts_of_the_token_before_each_token(name):
    policy, plain = Policy(tiny_model(name)), tiny_model(name)
    rollouts = generate(policy)
    assert len(rollouts) == len(PROMPTS)
    for prompt, rollout in rollouts:
        assert rollout.experts.shape == (len(rollout), 2, 2) and rollout.experts.dtype == np.uint8
        tokens = [*prompt, *rollout.tokens.tolist()]
        expected = chosen_by(plain, tokens)[len(prompt) - 1 : -1].sort(dim=-1).values
        np.testing.assert_array_equal(np.sort(rollout.experts, axis=-1), expected.numpy())


def test_recorded_experts_are_placed_at_their_tokens_and_survive_a_checkpoint(tmp_path):
    """A prompt of 2 and 3 tokens: the experts of tokens 1, 2 and 3 led to tokens 2, 3 and 4."""
    experts = np.arange(12).reshape(3, 2, 2).astype(np.uint8)
    without = texts.rollout([7, 8, 1])
    with_experts = dataclasses.replace(without, experts=experts)
    visit = Visit(Prompt("a", "", (5, 6), "", "t"), 0, 0)
    group = ScoredGroup(Group(visit, (with_experts, without), 0), (Score(1.0, True), Score(0.0, False)))
    save_state(tmp_path, "group", {"group": to_plain(group)})
    restored = from_plain(ScoredGroup, load_state(tmp_path, "group", {visit.prompt.reference: visit.prompt})["group"])
    found = collate([restored]).experts_BTLK
    assert found.shape == (2, 5, 2, 2) and found.dtype == torch.int16
    assert torch.equal(found[0, 1:4], torch.from_numpy(experts).short())
    assert (found[0, [0, 4]] == UNKNOWN).all() and (found[1] == UNKNOWN).all()
    dense = ScoredGroup(Group(visit, (without,), 0), (Score(1.0, True),))
    assert collate([dense]).experts_BTLK is None


REPLAY = Recipe(loss=Reinforce(), routing_replay="on")


def routed_batch(name, wrong=0):
    """Return a batch with the trainer's experts, except in the first layer of `wrong` trained tokens."""
    batch, model = training_batch(), tiny_model(name)
    experts = torch.full((*batch.rollouts.tokens_BT.shape, 2, 2), UNKNOWN, dtype=torch.int16)
    for row, length in enumerate(batch.rollouts.length_B.tolist()):
        experts[row, : length - 1] = chosen_by(model, batch.rollouts.tokens_BT[row, :length].tolist())[:-1].short()
    led_to_BT = torch.nn.functional.pad(batch.trained_BT[:, 1:], (0, 1))
    for row, token in led_to_BT.nonzero()[:wrong].tolist():
        experts[row, token, 0] = torch.tensor(sorted(set(range(4)) - set(experts[row, token, 0].tolist())))
    return change(batch, experts_BTLK=experts)


@pytest.mark.parametrize("packing", ["padded", "packed"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "olmoe"])
def test_the_disagreement_is_the_share_of_trained_tokens_and_layers(name, packing):
    """5 of the 36 trained tokens differ in the first of two layers: 5 of 72."""
    batch = routed_batch(name, wrong=5)
    assert int(batch.trained_BT.sum()) == 36
    learner = SingleLearner(Policy(tiny_model(name)), Recipe(loss=Reinforce()), micro_batch_tokens=30, packing=packing)
    stats = learner.step(batch)
    assert stats.router_disagreement == pytest.approx(5 / 72) and "router_disagreement" in stats.to_dict()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", MIXTURES)
def test_replaying_the_trainers_experts_does_not_change_the_gradient(name, checkpointing):
    batch = routed_batch(name)
    options = {"micro_batch_tokens": 30, "gradient_checkpointing": checkpointing}
    found = learner_gradient(Policy(tiny_model(name)), batch, REPLAY, **options)
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) < 1e-5


@pytest.mark.parametrize("name", MIXTURES)
def test_a_replay_uses_the_experts_of_the_engine(name):
    """The engine's router has other weights; replayed, the trainer's log-probabilities and gradient use its experts."""
    batch, policy = routed_batch(name, wrong=36), Policy(tiny_model(name))
    routing = routing_of(policy)
    rows = batch.rollouts.experts_BTLK[:1, :13].flatten(0, 1)
    routing.use(rows, replay=True)
    policy.hidden(batch.rollouts.tokens_BT[:1, :13]).sum().backward()
    assert torch.equal(torch.stack(routing.experts, dim=1), rows.long())
    router = next(parameter for key, parameter in policy.model.named_parameters() if "gate.weight" in key or
                  "router.weight" in key)  # fmt: skip
    assert float(router.grad.abs().max()) > 0  # the trainer computes the scores of the given experts
    routing.use(None)
    policy.hidden(batch.rollouts.tokens_BT[:1, :13])
    assert not torch.equal(torch.stack(routing.experts, dim=1), rows.long())
    found = learner_gradient(policy, batch, REPLAY, micro_batch_tokens=30)
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) > 1e-2


def check(config, path, policy):
    check_sampled(config.placement, config.recipe, "deterministic", "cpu", policy_spec(config, path), policy)


def test_routing_replay_is_refused_where_the_engine_cannot_report_the_experts_of_every_layer(
    tmp_path, monkeypatch, benchmark
):
    benchmark("noisy_engine")
    recipe = replace(SCALERL, routing_replay="on")
    plain = RunConfig(recipe=recipe)
    with pytest.raises(ConfigError, match="no experts"):
        check(plain, "model", Policy(tiny_model("qwen3")))
    check(plain, "model", Policy(tiny_model("qwen3-moe")))
    with_vllm = RunConfig(recipe=recipe, placement=Placement(engine="vllm"))
    tiny_model("qwen3-moe").save_pretrained(tmp_path)
    check(with_vllm, str(tmp_path), Policy(tiny_model("qwen3-moe")))
    sparse = Policy(tiny_model("qwen3-moe", mlp_only_layers=[0]))
    with pytest.raises(ConfigError, match="experts in 1 of its 2 layers"):
        check(with_vllm, str(tmp_path), sparse)
    engine, hardware = Custom(function="noisy_engine:noisy"), Hardware(device="cpu", dtype="float32")
    own = RunConfig(recipe=recipe, placement=Placement(engine=engine), hardware=hardware)
    check(own, str(tmp_path), load_policy(str(tmp_path)))
    monkeypatch.setattr(run_model, "check_engine_plugin", lambda *_: [texts.rollout([7])])
    with pytest.raises(ConfigError, match="whose rollouts have no `experts`"):
        check(own, "model", Policy(tiny_model("qwen3-moe")))
