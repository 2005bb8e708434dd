"""A learner whose policy has adapters, against the learner contract, values computed by hand, and peft."""

import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from sampled import samples
from test_families import INTERRUPTED, PROMPTS, training_batch
from test_learner import batch, gradients
from tiny_models import tiny_model

from scalerl.core.errors import ConfigError
from scalerl.training.config.model import Lora
from scalerl.training.config.recipe import AdamW, Recipe, Reinforce
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.engines.replay import check_current
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.lora import LoraPolicy, target_names
from scalerl.training.models.policy import Policy, load_policy, rounding
from scalerl.training.models.rows import PolicyRows
from scalerl.training.models.sizes import Attention, ModelSizes

peft = pytest.importorskip("peft")

SETTINGS = AdamW(learning_rate=2e-2, warmup_steps=0, eps=1e-8)
SMALL = Lora(rank=4, alpha=8.0)
MODELS = ["qwen3", "qwen3-untied", "qwen2", "llama-untied", "phi3", "gemma2-softcap", "gemma3-two-ropes", "gpt2"]


def make(name="qwen3", lora=SMALL, dtype=torch.float32, settings=SETTINGS, **options):
    policy = LoraPolicy(Policy(tiny_model(name).to(dtype)), lora, seed=0)
    return SingleLearner(policy, Recipe(optimizer=settings, loss=Reinforce()), **options)


def trained(name="qwen3", steps=3, **options):
    learner = make(name, **options)
    for _ in range(steps):
        learner.step(batch())
    return learner


def merged(learner):
    return {name: weight.clone() for name, weight in learner.policy.weights()}


def plain(name, weights):
    policy = Policy(tiny_model(name, seed=9))
    policy.load_weights(3, weights)
    return policy


# --------------------------------------------------------------------------------------------------- what is trained


def test_only_adapters_are_trained():
    learner = make()
    before = {name: p.detach().clone() for name, p in learner.policy.model.named_parameters()}
    for _ in range(3):
        learner.step(batch())
    moved = {n for n, p in learner.policy.model.named_parameters() if not torch.equal(p, before[n])}
    # 2 layers of 7 linear modules with two matrices each
    assert len(moved) == 28 and all(".lora_A." in name or ".lora_B." in name for name in moved)
    # q and o 32 x 32, k and v 16 x 32, three of 32 x 48, times rank 4: 2 layers x 4 x (2 x 64 + 2 x 48 + 3 x 80)
    assert sum(p.numel() for _, p in learner.policy.trained()) == 2 * 4 * (128 + 96 + 240)
    assert {key.split(".", 1)[0] for key in learner.tensors()} == {"master", "exp_avg", "exp_avg_sq", "step"}
    assert len(learner.tensors()) == 4 * 28


def test_new_adapters_have_no_effect():
    source, weights = tiny_model("qwen3"), merged(make())
    assert weights.keys() == dict(source.named_parameters()).keys()
    assert all(torch.equal(weights[name], p) for name, p in source.named_parameters())


@pytest.mark.parametrize("name", ["qwen3", "phi3", "gemma3-two-ropes", "gpt2"])
def test_the_gradient_follows_from_that_of_the_merged_matrices(name):
    """dL/dA = s B^T dL/dW and dL/dB = s dL/dW A^T, with dL/dW of a plain model that has the merged weights."""
    learner = trained(name)
    given = training_batch()
    by_name = dict(zip((n for n, _ in learner.policy.trained()), gradients(learner, given), strict=True))
    whole = SingleLearner(plain(name, merged(learner)), Recipe(optimizer=SETTINGS, loss=Reinforce()))
    by_matrix = dict(zip((n for n, _ in whole.policy.trained()), gradients(whole, given), strict=True))
    parameters, checked = dict(learner.policy.model.named_parameters()), 0
    for key in by_name:
        if ".lora_A." not in key:
            continue
        other, weight = key.replace(".lora_A.", ".lora_B."), key.replace(".lora_A.default", "")
        a, b, dw = parameters[key].detach(), parameters[other].detach(), by_matrix[weight]
        dw = dw.T if name == "gpt2" else dw  # its matrices are [I, O]
        torch.testing.assert_close(by_name[key], 2.0 * b.T @ dw, atol=1e-5, rtol=1e-3)
        torch.testing.assert_close(by_name[other], 2.0 * dw @ a.T, atol=1e-5, rtol=1e-3)
        checked += 1
    assert checked == len(by_name) / 2 >= 8


# --------------------------------------------------------------------------------------- what engines and exports get


@pytest.mark.parametrize("name", MODELS)
def test_an_engine_with_merged_weights_has_the_log_probabilities_of_the_learner(name, tmp_path):
    learner, channel = trained(name), DirectoryChannel(tmp_path)
    learner.send(3, channel)
    policy = plain(name, channel.receive(3))
    rollouts = samples(policy, PROMPTS, rule=INTERRUPTED)
    difference = learner.check(3, rollouts)
    assert difference.largest < 1e-4 and difference.tokens > 30, difference
    assert check_current(Policy(tiny_model(name)), 3, rollouts, bound=9.0).largest > 1e-3  # the weights changed


def test_merged_bf16_weights_are_rounded_once_and_pass_the_replay(tmp_path):
    learner = trained(dtype=torch.bfloat16)
    assert {p.dtype for _, p in learner.policy.trained()} == {torch.bfloat16}
    assert {master.dtype for master in learner._masters} == {torch.float32}
    weights, layer = merged(learner), learner.policy.model.model.layers[0].mlp.up_proj
    exact = layer.base_layer.weight.double() + 2.0 * (
        layer.lora_B.default.weight.double() @ layer.lora_A.default.weight.double()
    )
    assert torch.equal(weights["model.layers.0.mlp.up_proj.weight"], exact.to(torch.bfloat16))
    policy = Policy(tiny_model("qwen3", seed=9).bfloat16())
    policy.load_weights(3, weights)
    given = batch()
    rows = PolicyRows.padded(given.rollouts.tokens_BT, given.trained_BT, policy.device)
    with torch.no_grad():
        ours, theirs = (p(rows)[0] for p in (learner.policy, policy))
    assert float((ours - theirs).abs().mean()) < rounding(torch.bfloat16)


@pytest.mark.parametrize("name", MODELS)
def test_the_export_equals_the_merge_by_peft_and_the_adapter_loads_with_the_base_model(name, tmp_path):
    tiny_model(name).save_pretrained(tmp_path / "base")
    policy = LoraPolicy(load_policy(str(tmp_path / "base")), SMALL, seed=0)
    learner = SingleLearner(policy, Recipe(optimizer=SETTINGS, loss=Reinforce()), sent="checkpoint")
    for _ in range(3):
        learner.step(batch())
    learner.export(tmp_path / "model")
    exported = load_policy(str(tmp_path / "model")).model
    config = peft.PeftConfig.from_pretrained(tmp_path / "adapter")
    assert config.base_model_name_or_path == str(tmp_path / "base") and config.r == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft 0.21 uses a deprecated name of transformers 5.23
        theirs = peft.PeftModel.from_pretrained(load_policy(str(tmp_path / "base")).model, tmp_path / "adapter")
    theirs = theirs.merge_and_unload()
    own, peers = dict(exported.named_parameters()), dict(theirs.named_parameters())
    assert own.keys() == peers.keys() == dict(tiny_model(name).named_parameters()).keys()
    for key in own:
        torch.testing.assert_close(own[key], peers[key], atol=1e-7, rtol=1e-6)
    channel = DirectoryChannel(tmp_path / "weights")
    learner.send(0, channel)
    sent, file = channel.receive(0), load_file(tmp_path / "model/model.safetensors")
    assert sent.keys() == file.keys() and all(torch.equal(sent[key], file[key]) for key in file)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_learner_gives_the_same_bits(dtype, tmp_path):
    original, copy = trained(dtype=dtype), make(dtype=dtype)
    original.save(tmp_path)
    copy.load(tmp_path, updates=3)
    for learner in (original, copy):
        for _ in range(2):
            learner.step(batch())
    ours, theirs = merged(original), merged(copy)
    assert ours.keys() == theirs.keys() and len(ours) > 10
    assert all(torch.equal(ours[key], theirs[key]) for key in ours) and copy.updates == original.updates == 5


def test_a_checkpoint_of_all_weights_or_of_another_rank_is_refused(tmp_path):
    whole = SingleLearner(Policy(tiny_model("qwen3")), Recipe(optimizer=SETTINGS, loss=Reinforce()))
    whole.save(tmp_path / "whole")
    make(lora=Lora(rank=2)).save(tmp_path / "rank")
    for name in ("whole", "rank"):
        with pytest.raises(ConfigError, match="another model"):
            make().load(tmp_path / name, updates=0)


# ------------------------------------------------------------------------------------------------------------- FLOPs


def test_training_flops_by_hand():
    # 1000 frozen entries and 10 trained: 3 tokens x (4 x 1000 + 6 x 10), and attention, 3 x 2 layers x 40 x (1 + 2 + 3)
    sizes = ModelSizes(1010.0, (Attention(10, 0), Attention(10, 0)), frozen_params=1000.0)
    assert sizes.training_flops(3) == 3 * (4000 + 60) + 3 * 2 * 40 * 6
    # 100 of the frozen ones are the head, of 2 predicted tokens: forward, forward again, and the gradient by its input
    headed = replace(sizes, head_params=100.0)
    assert headed.training_flops(3, predicted=2) == 3 * (4 * 900 + 60) + 2 * 6 * 100 + 3 * 2 * 40 * 6
    # activations computed again: 2 more for each entry, and a fourth of the attention
    assert sizes.training_flops(3, checkpointing=True) == 3 * (6000 + 80) + 4 * 2 * 40 * 6


# ----------------------------------------------------------------------------------------------------------- refusals


def test_targets_are_the_linear_modules_of_the_layers_and_never_the_head():
    policy = Policy(tiny_model("qwen3-untied"))
    everything = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert target_names(policy, SMALL) == everything
    chosen = make(lora=Lora(rank=4, targets=("v_proj", "layers.1.mlp.up_proj"))).policy
    adapted = [name for name, _ in chosen.trained() if ".lora_A." in name]
    assert [name.split(".lora_A")[0].removeprefix("model.layers.") for name in adapted] == [
        "0.self_attn.v_proj", "1.self_attn.v_proj", "1.mlp.up_proj",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("qwen3", ("lm_head",), "'lm_head'"),
        ("gpt2", ("c_atn",), "'c_atn' .did you mean 'c_attn'.*c_attn, c_proj, c_fc"),
        ("qwen3", ("q_porj",), "'q_proj'"),
        ("qwen3-moe", "all-linear", "mixture"),
        ("qwen3-moe", ("experts",), "'experts'"),
    ],
)
def test_invalid_targets_are_refused_with_the_allowed_ones(name, targets, message):
    with pytest.raises(ConfigError, match=message):
        LoraPolicy(Policy(tiny_model(name)), Lora(targets=targets), seed=0)


def test_attention_of_a_mixture_can_have_adapters():
    learner = trained("qwen3-moe", lora=Lora(rank=4, targets=("q_proj", "o_proj")))
    weights, own = merged(learner), dict(tiny_model("qwen3-moe").named_parameters())
    moved = {name.rsplit(".", 2)[1] for name in own if not torch.equal(own[name], weights[name])}
    assert moved == {"q_proj", "o_proj"}
