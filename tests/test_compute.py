from types import SimpleNamespace

import pytest
import torch
from tiny_models import ARCHITECTURES, tiny_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from scalerl.training.engines.engine import Request
from scalerl.training.engines.vllm.client import LaneShare
from scalerl.training.learner.batch import RolloutTensors, TrainBatch
from scalerl.training.learner.policy_learner import batch_flops
from scalerl.training.loop.progress import Stopwatch
from scalerl.training.models.cpu import onednn
from scalerl.training.models.policy import Policy
from scalerl.training.models.rows import PolicyRows
from scalerl.training.models.sizes import Attention, ModelSizes, of_config, of_model


def sizes_with(matmul_params, width, windows, **other):
    return ModelSizes(matmul_params, tuple(Attention(width, window) for window in windows), **other)


TWO_LAYERS = sizes_with(1000.0, 10, (0, 0))


def test_forward_flops_by_hand():
    # 3 tokens from position 0: 2 * 1000 * 3, and two layers of 4 * 10 * (1 + 2 + 3)
    assert TWO_LAYERS.forward_flops(0, 3) == 6000 + 2 * 40 * 6
    # one token at position 7 attends to 8
    assert TWO_LAYERS.forward_flops(7, 1) == 2000 + 2 * 40 * 8


def test_a_decode_step_costs_the_sum_of_its_sequences_for_any_windows():
    lengths = [3, 9, 5]
    for windows in ((0, 0), (4, 0), (4, 4, 6)):
        sizes = sizes_with(1000.0, 10, windows, head_params=100.0)
        alone = sum(sizes.forward_flops(n - 1, 1, predicted=1) for n in lengths)
        assert sizes.decode_flops(lengths) == pytest.approx(alone)


def test_the_head_counts_only_for_predicted_tokens():
    # of 1000 entries 300 are the head's: 12 tokens through the other 700, 5 predictions, contexts 1 + ... + 12 = 78
    sizes = sizes_with(1000.0, 10, (0,), head_params=300.0)
    assert sizes.forward_flops(0, 12, predicted=5) == 2 * 700 * 12 + 2 * 300 * 5 + 40 * 78
    # training: three passes through the layers, four with checkpointing; four through the head, computed twice
    assert sizes.training_flops(12, predicted=5) == 3 * (2 * 700 * 12 + 40 * 78) + 4 * 2 * 300 * 5
    assert sizes.training_flops(12, 5, checkpointing=True) == 4 * (2 * 700 * 12 + 40 * 78 + 2 * 300 * 5)


def test_a_batch_counts_the_tokens_of_rows_that_are_trained_and_the_head_for_trained_tokens():
    sizes = sizes_with(1000.0, 10, (0,), head_params=300.0)
    trained = torch.tensor([[0, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
    rollouts = RolloutTensors.without_rewards(trained.long(), torch.tensor([4, 3, 5]))
    batch = TrainBatch(rollouts, torch.ones(3), trained, trained / trained.sum())
    # rows of 4 and 5 tokens: contexts 10 and 15; 2 and 4 trained tokens
    assert batch_flops(sizes, batch, False) == 3 * (2 * 700 * 9 + 40 * 25) + 4 * 2 * 300 * 6


def test_a_vllm_sequence_costs_its_prompt_and_every_input_token():
    class Sequence:
        request = Request((0, 0), (5, 9, 2), 1)
        tokens = 0

        def __len__(self):
            return self.tokens

    sizes = sizes_with(1000.0, 10, (4,), head_params=300.0)
    lane, sequence = LaneShare("train", 4, sizes), Sequence()
    for before, sequence.tokens in ((0, 2), (2, 5)):
        lane.count(sequence, before)
    # 3 + 5 tokens, of which the last is never fed; 5 predictions; contexts 1 2 3 4 4 4 4
    assert lane.work.flops == 2 * 700 * 7 + 2 * 300 * 5 + 40 * 22


def unseen(sizes, queries, keys):
    """Return the FLOPs of scores that torch counts although the mask hides them, `queries` being the last of `keys`."""
    contexts = [[min(key + 1, window or keys) for key in range(keys - queries, keys)] for _, window in sizes.attention]
    return sum(4 * a.width * (queries * keys - sum(c)) for a, c in zip(sizes.attention, contexts, strict=True))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_forward_and_decode_flops_agree_with_torchs_counter(name):
    """FlopCounterMode counts neither torch's CPU kernel for attention nor its fused experts, so the model is eager."""
    model = tiny_model(name, attn_implementation="eager")
    model.config._experts_implementation = "eager"
    sizes, tokens, cache = of_model(model), torch.randint(2, 48, (1, 24)), DynamicCache()
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            model(input_ids=tokens[:, :-1], past_key_values=cache)
        assert counter.get_total_flops() - unseen(sizes, 23, 23) == sizes.forward_flops(0, 23, predicted=23)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=tokens[:, -1:], past_key_values=cache)
        assert counter.get_total_flops() - unseen(sizes, 1, 24) == sizes.decode_flops([24])
    stored = [x for layer in cache.layers if hasattr(layer, "keys") for x in (layer.keys, layer.values)]
    assert Policy(model).cache_bytes == 4 * sum(entries[0, :, 0].numel() for entries in stored if entries is not None)


def test_latent_attention_of_deepseek_v3_by_hand():
    """Sizes of arXiv 2412.19437: 128 heads of 128 + 64 for queries and 128 for values, latents of 512, 61 layers."""
    values = {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280,
        "intermediate_size": 18432, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "tie_word_embeddings": False,
    }  # fmt: skip
    sizes = of_config(values.get)
    assert sizes.attention[0].width == 128 * (192 + 128) / 2 == 20480
    assert sizes.cache_width == 61 * (512 + 64) and sizes.expanded_params == 61 * 512 * 128 * 256
    assert sizes.params == pytest.approx(671e9, rel=1e-3)  # 671B, of which 37B are used per token
    assert sizes.matmul_params + sizes.head_params == pytest.approx(37.5e9, rel=0.01)


def test_the_flops_of_a_policys_update_agree_with_torchs_counter(monkeypatch):
    monkeypatch.setattr(onednn, "used", lambda: False)  # torch does not count its products
    policy = Policy(tiny_model("llama", attn_implementation="eager"))
    tokens, trained = torch.randint(2, 48, (1, 24)), torch.zeros(1, 24, dtype=torch.bool)
    trained[0, 17:22] = True
    with FlopCounterMode(display=False) as counter:
        logp_N, _ = policy(PolicyRows.padded(tokens, trained, policy.device))
        logp_N.sum().backward()
    sizes = policy.sizes
    assert sizes.head_params == 48 * 32
    assert counter.get_total_flops() - 3 * unseen(sizes, 24, 24) == sizes.training_flops(24, predicted=5)


def test_a_stopwatch_excludes_paused_seconds(monkeypatch):
    clock = SimpleNamespace(now=7.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("scalerl.training.loop.progress.time", clock)
    watch = Stopwatch(100.0)
    watch.start()
    clock.now += 2.0
    with watch.paused():
        clock.now += 20.0
        assert watch.seconds == 102.0
    clock.now += 3.0
    assert watch.seconds == 105.0
