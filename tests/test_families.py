"""One contract for every model family: engine, trainer, weights and export agree with the transformers forward."""

import pytest
import torch
import transformers
from safetensors.torch import load_file
from sampled import samples
from tiny_models import ARCHITECTURES, tiny_model

from scalerl.core.errors import ConfigError
from scalerl.training.config.recipe import AdamW, Recipe, Reinforce
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.local.torch_engine import check_cached_logps
from scalerl.training.engines.replay import check_current
from scalerl.training.learner.batch import RolloutTensors, TrainBatch
from scalerl.training.learner.metrics import TokenMeter
from scalerl.training.learner.single import SingleLearner
from scalerl.training.loop.run_model import check_length
from scalerl.training.models.policy import Policy, check_head, load_policy

OTHERS = ("qwen3-eager", "qwen3-many-heads", "gemma3-mixed", "mistral4")  # AutoModelForCausalLM lacks Mistral 4
FAMILIES = [name for name in ARCHITECTURES if name not in OTHERS]
SAVED = (
    "qwen3", "qwen3-untied", "qwen3-moe", "mixtral", "deepseek-v3", "gpt-oss", "gpt2", "bloom", "falcon", "gemma4",
    "gemma3-two-ropes", "phi3", "opt",
)  # fmt: skip
"""One of each way in which a family names, ties, fuses or splits its weights."""

PROMPTS = [(5, 9, 2), (7, 3, 11, 4, 6, 8, 2, 12, 31), (20,), (5, 9, 2), (21, 22, 23, 24, 25, 26), (7, 3)]
INTERRUPTED = LengthRule(thinking=(4, 11), answer_tokens=6, max_tokens=17, phrase=(40, 41, 42), end_tag=(41, 42))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_engine_gives_every_token_the_trainers_log_probability(name):
    """Prefill, decoding beyond every window, refills of three slots and an interruption with a phrase of 3 tokens."""
    policy = Policy(tiny_model(name))
    check_head(policy)
    rollouts = samples(policy, PROMPTS, rule=INTERRUPTED)
    assert any(rollout.interrupted for _, rollout in rollouts) and max(len(r) for _, r in rollouts) > 10
    difference = check_current(policy, 0, rollouts)
    assert difference.largest < 1e-4 and difference.tokens > 30, difference


def training_batch(rows=5, width=14):
    draw = torch.Generator().manual_seed(3)
    lengths = torch.tensor([14, 9, 12, 4, 7])
    trained = (torch.arange(width) >= 2) & (torch.arange(width) < lengths[:, None])
    weights = torch.rand(rows, width, generator=draw) * trained
    tokens = torch.randint(2, 48, (rows, width), generator=draw) * (torch.arange(width) < lengths[:, None])
    rollouts = RolloutTensors.without_rewards(tokens, lengths)
    return TrainBatch(rollouts, torch.randn(rows, generator=draw), trained, weights / weights.sum())


def plain_gradient(model, batch):
    """Return the gradient of the same loss from the transformers forward of each sequence alone, without padding."""
    loss = torch.zeros(())
    for tokens_T, length, weights_T, advantage in zip(
        batch.rollouts.tokens_BT, batch.rollouts.length_B.tolist(), batch.weights_BT, batch.advantages_B, strict=True
    ):
        logits_TV = model(tokens_T[None, :length]).logits[0, :-1]
        logp_T = logits_TV.log_softmax(-1).gather(1, tokens_T[1:length, None])[:, 0]
        loss = loss - (advantage * weights_T[1:length] * logp_T).sum()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def relative_error(found, expected):
    """Return |found - expected| / |expected|, over all tensors together."""
    assert found.keys() == expected.keys() and found
    names = [name for name in expected if expected[name] is not None]
    off = sum(float((found[name] - expected[name]).double().pow(2).sum()) for name in names)
    size = sum(float(expected[name].double().pow(2).sum()) for name in names)
    assert size > 0
    return (off / size) ** 0.5


def learner_gradient(policy, batch, recipe=None, **options):
    learner = SingleLearner(policy, recipe or Recipe(loss=Reinforce()), **options)
    learner._add_gradients(batch)
    return {name: parameter.grad for name, parameter in policy.model.named_parameters()}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gradient_equals_that_of_the_transformers_forward(name):
    batch = training_batch()
    found = learner_gradient(Policy(tiny_model(name)), batch, micro_batch_tokens=30)
    assert relative_error(found, plain_gradient(tiny_model(name), batch)) < 1e-5


@pytest.mark.parametrize("name", SAVED)
def test_weights_and_export_contain_the_whole_model(name, tmp_path):
    source, target = Policy(tiny_model(name, seed=1)), Policy(tiny_model(name, seed=2))
    learner = SingleLearner(source, Recipe(optimizer=AdamW(learning_rate=1e-2, warmup_steps=0), loss=Reinforce()))
    learner.step(training_batch())
    channel = DirectoryChannel(tmp_path / "weights")
    learner.send(1, channel)
    target.load_weights(1, channel.receive(1))
    learner.export(tmp_path / "export")
    exported = load_policy(str(tmp_path / "export")).model
    tokens_BT = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        expected = source.model(tokens_BT).logits
        assert torch.equal(target.model(tokens_BT).logits, expected)
        torch.testing.assert_close(exported(tokens_BT).logits, expected, atol=1e-5, rtol=1e-5)
        assert float((tiny_model(name, seed=1)(tokens_BT).logits - expected).abs().max()) > 1e-3  # the weights changed


@pytest.mark.parametrize("name", SAVED)
def test_weights_sent_to_vllm_equal_the_exported_checkpoint(name, tmp_path):
    """Experts are sent one by one if they are published so, such as `mlp.experts.3.up_proj.weight` of Qwen3-MoE."""
    learner = SingleLearner(Policy(tiny_model(name)), Recipe(loss=Reinforce()), sent="checkpoint")
    channel = DirectoryChannel(tmp_path / "weights")
    learner.send(0, channel)
    sent = channel.receive(0)
    learner.policy.model.save_pretrained(tmp_path / "export")
    exported = load_file(tmp_path / "export" / "model.safetensors")
    constant = {key for key, _ in learner.policy.model.named_buffers()}  # biases of DeepSeek-V3's routers
    assert sent.keys() == exported.keys() - constant and len(sent) > 10
    assert all(torch.equal(sent[key], exported[key]) for key in sent)
    if name == "qwen3-moe":  # 2 layers x 4 experts x 3 matrices
        assert sum(".experts." in key for key in sent) == 24 and "model.layers.1.mlp.experts.3.up_proj.weight" in sent


# --------------------------------------------------------------------------------------------- recomputed activations


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("qwen3", {"attention_dropout": 0.5}),
        ("biogpt", {"hidden_dropout_prob": 0.5, "layerdrop": 0.5}),
        ("phimoe", {"router_jitter_noise": 0.5, "input_jitter_noise": 0.5}),  # its router also samples in training mode
    ],
)
def test_recomputed_activations_have_no_dropout_and_no_router_noise(name, noise):
    batch, model = training_batch(), tiny_model(name, **noise).train()
    found = learner_gradient(Policy(model), batch, micro_batch_tokens=30, gradient_checkpointing=True)
    assert relative_error(found, plain_gradient(tiny_model(name, **noise), batch)) < 1e-5


def test_recomputed_activations_are_not_kept():
    """Of two layers, only the inputs are kept: the MLP of 48 columns saves none of its [rows, tokens, 48] tensors."""
    kept = []
    for on in (False, True):
        policy = Policy(tiny_model("qwen3"))
        learner = SingleLearner(policy, Recipe(loss=Reinforce()), gradient_checkpointing=on)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept[-1].append(x.shape) or x, lambda x: x):
            kept.append([])
            learner._micro_batch_loss(training_batch(), (torch.arange(5), 14), False, TokenMeter())
    plain, recomputed = ([shape for shape in shapes if shape == (5, 14, 48)] for shapes in kept)
    assert len(plain) >= 4 and not recomputed


def test_a_model_with_noise_in_updates_only_is_refused():
    policy = Policy(tiny_model("qwen3"))
    noisy = lambda module, inputs, out: out * 1.1 if torch.is_grad_enabled() else out  # noqa: E731
    policy.model.base_model.norm.register_forward_hook(noisy)
    with pytest.raises(ConfigError, match="in an update"):
        SingleLearner(policy, Recipe(loss=Reinforce()), gradient_checkpointing=False)


# ------------------------------------------------------------------------------------------------- what is refused

SMALL = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "eos_token_id": 1, "pad_token_id": 0}


def saved(tmp_path, family, config):
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(tmp_path)
    return str(tmp_path)


LINEAR = {f"linear_{part}": 2 for part in ("num_key_heads", "num_value_heads")}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        ("Mamba", {"state_size": 4}, "linear_attention"),
        ("Rwkv", {"attention_hidden_size": 32}, "recurrent state"),
        ("Qwen3Next", {**LINEAR, **EXPERTS, "num_key_value_heads": 2}, "linear_attention"),
    ],
)
def test_state_space_and_linear_attention_models_are_refused(tmp_path, family, settings, words):
    config = getattr(transformers, f"{family}Config")(**SMALL, **settings)
    with pytest.raises(ConfigError, match=f"{family}.*{words}"):
        load_policy(saved(tmp_path, family, config))


def test_encoder_decoders_and_wrappers_are_refused_before_their_weights_are_read(tmp_path):
    t5 = transformers.T5Config(vocab_size=48, d_model=32, architectures=["T5ForConditionalGeneration"])
    gemma = transformers.Gemma3Config(architectures=["Gemma3ForConditionalGeneration"])
    for config, message in ((t5, "encoder"), (gemma, "wraps")):
        config.save_pretrained(tmp_path)  # without weights
        with pytest.raises(ConfigError, match=message):
            load_policy(str(tmp_path))


def test_an_architecture_that_fails_in_the_cache_is_refused(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("other shapes")

    policy = Policy(tiny_model("llama"))
    monkeypatch.setattr("scalerl.training.engines.local.torch_engine.SlotCache.update", fail)
    with pytest.raises(ConfigError, match="generation cache"):
        check_cached_logps(policy)


def test_sequences_are_limited_to_the_lengths_at_which_log_probabilities_do_not_depend_on_the_batch():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 2.0]}
    scaled = tiny_model("phi3", rope_parameters=rope, original_max_position_embeddings=64)
    assert Policy(scaled).positions == 64 and Policy(tiny_model("phi3")).positions == 128
    assert (
        Policy(tiny_model("doge", keep_window_size=20)).positions == 20
        and Policy(tiny_model("bloom")).positions is None
    )


YARN = {"factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        # as the model cards of Qwen2.5 and Qwen3 write it, with the positions unchanged
        ({"rope_scaling": {"type": "yarn", **YARN}, "max_position_embeddings": 32}, 128),
        # as DeepSeek and GPT-OSS write it, with the extended positions
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}, "max_position_embeddings": 128}, 128),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.5},
          "max_position_embeddings": 40}, 100),
        # kinds that do not extend it
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 40}, 40),
    ],
)  # fmt: skip
def test_yarn_extends_the_original_positions_to_their_multiple(rope, limit):
    policy = Policy(tiny_model("qwen3", **rope))
    assert policy.positions == limit
    rule = LengthRule(thinking=None, answer_tokens=0, max_tokens=limit - 10)
    check_length(policy, rule, 10)
    with pytest.raises(ConfigError, match=f"need {limit + 1} positions; this model has {limit}"):
        check_length(policy, rule, 11)


def test_the_engine_gives_the_trainers_log_probabilities_beyond_the_original_positions_of_yarn():
    policy = Policy(tiny_model("qwen3", rope_scaling={"type": "yarn", **YARN}, max_position_embeddings=32))
    rollouts = samples(policy, [tuple(range(2, 40)), (5, 9, 2)], tokens=40)
    assert max(len(prompt) + len(rollout) for prompt, rollout in rollouts) > 40
    difference = check_current(policy, 0, rollouts)
    assert difference.largest < 1e-4 and difference.tokens > 10, difference
