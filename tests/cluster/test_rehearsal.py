"""`scalerl plan --rehearse`: the peak memory of an update of the real learner, without GPUs or weights."""

import json

import pytest
import transformers

from scalerl import cli

RUN = """
preset = "scalerl"
[model]
kind = "hf"
path = "none"
[data]
kind = "file"
path = "prompts.jsonl"
task = "math"
max_prompt_tokens = 56
[recipe.length]
thinking_tokens = [100, 150]
answer_tokens = 50
[learner]
micro_batch_tokens = 512
gradient_checkpointing = true
[placement]
trainer_ranks = 2
"""
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128  # queries and output, keys and values, the MLP
PARAMS = 3 * LAYER + 2 * 1000 * 64  # with the embedding and the head
NORMS = 7 * 64
ADAPTERS = 8 * 3 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128))


def rehearsed(tmp_path, capsys, *fields):
    (tmp_path / "run.toml").write_text(RUN.replace("prompts.jsonl", f"{tmp_path}/prompts.jsonl"))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    words = ["--model", str(tmp_path / "model"), *fields]
    assert cli.main(["plan", str(tmp_path / "run.toml"), "--rehearse", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def saved_llama(directory):
    transformers.LlamaConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128,
    ).save_pretrained(directory)  # fmt: skip


@pytest.mark.slow
def test_each_of_two_ranks_holds_half_of_the_masters_and_moments(tmp_path, capsys):
    saved_llama(tmp_path / "model")
    found = rehearsed(tmp_path, capsys)
    half = (PARAMS + NORMS) // 2
    assert found["parts"]["parameters"] == pytest.approx(4 * half, rel=0.01)  # inverse frequencies of the rotation too
    assert found["parts"]["optimizer"] == pytest.approx(8 * half, rel=0.01)  # a counter per matrix too
    assert 4 * half <= found["parts"]["gradients"] <= 4 * half + 2 * (PARAMS + NORMS)  # and some of this micro-batch
    # the embedding's group stays gathered, so it is gathered once per micro-batch, and a layer twice (bf16)
    assert found["sent"]["all-gather"] == 2 * 2 * (2 * (3 * (LAYER + 128)) + 2 * 64000 + 64)
    assert found["sent"]["reduce-scatter"] == 4 * 2 * (PARAMS + NORMS)  # FP32, after each micro-batch
    assert found["total"] == sum(found["parts"].values())


@pytest.mark.slow
def test_of_adapters_on_ranks_only_a_and_b_are_reduced_and_the_frozen_model_is_sharded_in_bf16(tmp_path, capsys):
    saved_llama(tmp_path / "model")
    found = rehearsed(tmp_path, capsys, "--model.lora.rank", "8")
    half = (PARAMS + NORMS) // 2
    assert found["parts"]["parameters"] == pytest.approx(2 * half + 4 * ADAPTERS // 2, rel=0.01)
    assert found["parts"]["optimizer"] == pytest.approx(8 * ADAPTERS // 2, rel=0.02)
    assert found["sent"]["reduce-scatter"] == 4 * 2 * ADAPTERS  # FP32, after each of two micro-batches
    assert found["total"] == pytest.approx(found["estimate"], rel=0.1)


def saved_mixture(directory, experts):
    """Write the config.json of a mixture of 2 layers of width 64, with experts of width 32; return their entries."""
    made = transformers.Qwen3MoeConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        num_experts=experts, num_experts_per_tok=1, moe_intermediate_size=32,
    )  # fmt: skip
    made.save_pretrained(directory)
    return 2 * experts * 3 * 64 * 32


@pytest.mark.slow
def test_a_rank_gathers_only_its_own_experts_and_their_tokens_travel(tmp_path, capsys):
    experts = saved_mixture(tmp_path / "model", experts=4)
    options = ["--placement.trainer_ranks", "4", "--placement.gpus", "none"]
    whole, spread = (rehearsed(tmp_path, capsys, *options, "--placement.expert_ranks", n) for n in ("1", "4"))
    assert spread["parts"]["parameters"] == whole["parts"]["parameters"]
    assert whole["sent"]["all-gather"] - spread["sent"]["all-gather"] == 2 * 2 * 2 * experts  # BF16, twice per pass
    assert spread["sent"]["all-to-all"] == 2 * 6 * 2 * 2 * 64 * 512  # two passes of 512 tokens in two layers, BF16
    assert spread["total"] < whole["total"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "masters", "gradients", "trained"),
    [
        # BF16 weights in the passes, and FP32 masters with their gradients and two moments
        ([], (2 + 4) * (PARAMS + NORMS), 4 * (PARAMS + NORMS), PARAMS + NORMS),
        # adapters of rank 8 at the seven matrices of three layers, the only entries with gradients
        (["--model.lora.rank", "8"], 2 * (PARAMS + NORMS) + 6 * ADAPTERS, 4 * ADAPTERS, ADAPTERS),
    ],
    ids=["weights", "adapters"],
)
def test_one_rank_holds_everything_and_adapters_need_little(options, masters, gradients, trained, tmp_path, capsys):
    saved_llama(tmp_path / "model")
    found = rehearsed(tmp_path, capsys, "--placement.trainer_ranks", "1", *options)
    assert found["parts"]["parameters"] == pytest.approx(masters, rel=0.01)
    assert found["parts"]["gradients"] == pytest.approx(gradients, rel=0.01)
    assert found["parts"]["optimizer"] == pytest.approx(8 * trained, rel=0.01)
    assert found["parts"]["gathered"] == 0 and found["sent"] == {}
    assert found["total"] == pytest.approx(found["estimate"], rel=0.05)
