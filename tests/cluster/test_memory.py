"""Sizes and bytes of models, compared with published counts, transformers' models, and hand calculations."""

import dataclasses
import json

import pytest
from tiny_models import tiny_model

from scalerl.training.config.model import Lora
from scalerl.training.machines.memory import (
    adapter_params,
    cache_bytes_per_token,
    generator_memory,
    kept_bytes,
    layer_bytes,
    logits_bytes,
    saved_bytes,
    slots_that_fit,
    trainer_memory,
)
from scalerl.training.machines.speed import GPUS, Assumptions, exchange_seconds, gather_seconds
from scalerl.training.models.policy import Policy
from scalerl.training.models.sizes import WELL_KNOWN, of_config, of_model

VALUES = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "intermediate_size": 16, "vocab_size": 10, "tie_word_embeddings": True,
}  # fmt: skip
SMALL = of_config(VALUES.get)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("meta-llama/Llama-4-Scout-17B-16E", 107_770_000_000),  # 109B with the image encoder
    ],
)
def test_parameter_counts_of_well_known_models_match_published_ones(name, published):
    assert WELL_KNOWN[name].params == pytest.approx(published, rel=1e-3)


def test_active_parameters_of_mixtures_match_their_names():
    """3B of Qwen3-30B-A3B and 17B of Scout, embedding included."""
    for name, active in (("Qwen/Qwen3-30B-A3B", 3.3e9), ("meta-llama/Llama-4-Scout-17B-16E", 17.17e9)):
        sizes = WELL_KNOWN[name]
        assert sizes.matmul_params + sizes.head_params == pytest.approx(active, rel=0.02)


GATED = ["qwen3", "llama", "qwen3-untied", "qwen3-moe", "qwen3-moe-untied", "gemma3-mixed", "seed-oss", "mixtral",
         "deepseek-v2", "deepseek-v3", "mistral4", "youtu"]  # fmt: skip


@pytest.mark.parametrize("family", GATED)
def test_a_config_json_gives_the_sizes_of_the_loaded_model(family, tmp_path):
    model = tiny_model(family)
    model.config.save_pretrained(tmp_path)
    found, counted = of_config(json.loads((tmp_path / "config.json").read_text()).get), of_model(model)
    assert found.params == counted.params == sum(p.numel() for p in model.parameters() if p.ndim >= 2)
    assert [a.width for a in found.attention] == [a.width for a in counted.attention]
    assert dataclasses.replace(found, attention=counted.attention) == counted  # windows are not read
    assert Policy(model).cache_bytes == 4 * found.cache_width


def test_the_cache_of_llama_8b_is_128_kib_per_token():
    assert cache_bytes_per_token(WELL_KNOWN["meta-llama/Llama-3.1-8B"]) == 128 * 1024
    assert cache_bytes_per_token(WELL_KNOWN["meta-llama/Llama-3.1-8B"], tensor_parallel=4) == 32 * 1024


def test_a_single_trainer_holds_20_bytes_per_parameter_and_each_of_four_ranks_4():
    alone = trainer_memory(SMALL, 1, tokens=1, checkpointing=True)
    # at the end of the backward pass, which has the BF16 gradients of the tied head and embedding and their sum
    held = alone.weights + alone.masters + alone.gradients + alone.optimizer
    assert held == alone.total == 20 * SMALL.params + 2 * 2 * 80
    four = trainer_memory(SMALL, 4, tokens=1, checkpointing=True)
    head = 2 * 80  # the head's gradient, while the last layer's is computed
    assert four.weights + four.masters + four.gradients + four.optimizer == 16 * SMALL.params / 4 + head
    # two layers and the tied head in BF16, one layer's gradient in FP32
    assert alone.gathered == 0 and four.gathered == 2 * (2 * 576 + 80) + 4 * 576


def test_the_reference_of_the_kl_term_is_a_copy_of_the_trained_weights():
    """In BF16 next to FP32 masters, FP32 in shards and on CPU, and only of adapters if these are trained."""
    for ranks, options, held in [
        (1, {}, 2 * SMALL.params), (4, {}, SMALL.params), (1, {"width": 4}, 4 * SMALL.params),
        (1, {"adapters": 100}, 200),
    ]:  # fmt: skip
        plain, with_reference = (
            trainer_memory(SMALL, ranks, 1, True, reference=given, **options) for given in (False, True)
        )
        assert plain.reference == 0 and with_reference.reference == held
        assert with_reference.total == plain.total + held


def test_experts_on_other_ranks_cost_an_exchange_instead_of_a_gather():
    sizes = of_config({**VALUES, "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 50}.get)
    assumed = Assumptions(dataclasses.replace(GPUS["H100"], link=100.0), network=10.0)
    other = sizes.params - 2 * 4800
    # BF16 twice and the FP32 gradient, 8 bytes; on one node at 80 bytes/s, of 16 ranks at 10
    assert gather_seconds(sizes, assumed, 4, 1) == pytest.approx(sizes.params * 3 / 4 * 8 / 80)
    assert gather_seconds(sizes, assumed, 4, 1, expert_ranks=4) == pytest.approx(other * 3 / 4 * 8 / 80)
    spread = other * 15 / 16 + 2 * 4800 * (1 / 4 - 1 / 16)
    assert gather_seconds(sizes, assumed, 16, 1, expert_ranks=4) == pytest.approx(spread * 8 / 10)
    # 2 layers x 10 tokens x 8 in BF16, three quarters of them to other ranks, four times and once recomputed
    assert exchange_seconds(sizes, assumed, 4, 10, False) == pytest.approx(4 * 2 * 10 * 8 * 2 * 0.75 / 80)
    assert exchange_seconds(sizes, assumed, 4, 10, True) == pytest.approx(6 * 2 * 10 * 8 * 2 * 0.75 / 80)
    assert exchange_seconds(sizes, assumed, 1, 10, True) == exchange_seconds(SMALL, assumed, 1, 10, True) == 0


def test_activations_by_hand():
    # 5 tokens x (8 x 16 + 16 x 8 + 10 x 8 + 5 x 8) = 1880 per layer; its input is 2 x 5 x 8 = 80
    assert saved_bytes(SMALL, 5) == 1880
    assert kept_bytes(SMALL, 5, checkpointing=False) == 2 * 1880
    assert kept_bytes(SMALL, 5, checkpointing=True) == 2 * 80
    # gradients of two tensors of the MLP and of the layer: 2 x 5 x (2 x 16 + 8)
    assert layer_bytes(SMALL, 5, checkpointing=False) == 400
    assert layer_bytes(SMALL, 5, checkpointing=True) == 400 + 1880


def test_logits_are_two_blocks_of_64_mib_until_a_block_of_256_columns_is_larger():
    assert logits_bytes(SMALL, 100) == 4 * (2 * 100 * 10 + 2 * 100 * 8)  # the whole vocabulary is one block
    large = dataclasses.replace(SMALL, head_params=8 * 2**20)
    assert logits_bytes(large, 100) == 2 * 2**26 + 4 * 2 * 100 * 8
    assert logits_bytes(large, 2**17) == 4 * 2 * 256 * 2**17 + 4 * 2 * 2**17 * 8


def test_slots_fill_the_memory_that_the_weights_leave():
    llama = WELL_KNOWN["meta-llama/Llama-3.1-8B"]
    # 0.9 x 80e9 - 16.06e9 = 55.94e9; 16,384 tokens x 131,072 = 2.147e9: 26 sequences
    assert slots_that_fit(llama, 16_384, 80e9) == 26
    held = generator_memory(llama, 26 * 16_384)
    assert held.total < 0.9 * 80e9 < held.total + 16_384 * 131_072
    assert slots_that_fit(llama, 16_384, 17e9) == 0


def test_bytes_of_a_trainer_with_adapters_by_hand():
    # width 8, 2 heads of 4: q and o 8 + 8; one key-value head of 4: k and v 8 + 4; MLP of 16: three of 8 + 16
    assert adapter_params(SMALL, Lora(rank=3)) == 3 * 2 * (2 * 16 + 2 * 12 + 3 * 24)
    assert adapter_params(SMALL, Lora(rank=3, targets=("v_proj", "layers.1.mlp.up_proj"))) == 3 * 2 * (12 + 24)
    whole, found = trainer_memory(SMALL, 1, 50, False), trainer_memory(SMALL, 1, 50, False, adapters=100)
    assert found.weights == 2 * (SMALL.params + 100) and found.activations == whole.activations
    assert (found.masters, found.gradients, found.optimizer) == (400, 400, 800)
    assert whole.gradients - 4 * SMALL.params == 2 * 8 * 10  # of the head, which adapters freeze
